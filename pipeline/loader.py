"""A data set's features and tokens -> batches, in a random order that is exactly resumable on any ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InputError, MismatchError
from ..manifests.dataset import Dataset
from ..schema import Batch
from .batch_plan import BatchPlan
from .device_copy import Deliver, Delivery, DeviceDelivery, HostDelivery
from .epoch import Epoch, bucketed_epoch, shuffled_epoch
from .feature_rows import available_threads
from .host_batch import HostBatch
from .negatives_join import NegativesJoin, OfflineNegatives
from .one_thread import keep_to_one_thread
from .prefetcher import Prefetcher
from .residency import DiskWatch, Residency
from .ring import Ring
from .sample_order import EpochKey, Shuffle
from .split_data import SplitData, open_source

Integers = npt.NDArray[np.int64]

STATE_VERSION = 1
EPOCH_UNITS = ("image", "caption")

logger = logging.getLogger(__name__)


class FeatureLoader:
    """Iterates the batches of one epoch; set_epoch() chooses it.

    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            ...

    state_dict() counts the batches that were yielded; after load_state_dict() iteration goes on with the next
    one, also with another number of ranks or threads. An iterator that ends, is dropped or fails leaves no
    thread behind.
    """

    def __init__(
        self,
        dataset: Dataset | Path | str,
        *,
        split: str,
        features: str | Path,  # a name in the data set, a folder, or any URL that fsspec knows
        vocab: str | None = None,
        batch_size: int = 128,  # over all ranks
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = torch.float32,  # of the regions; None keeps the stored type
        shuffle: Shuffle | str | None = "full",
        seed: int = 0,
        epoch_unit: str = "image",  # one caption of each image, drawn by seed and epoch; 'caption': every one
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = True,
        max_words: int | None = 50,  # without <start> and <end>; longer captions are cut, and counted
        fixed_length: int | None = None,  # pad every batch to so many ids
        bucket_by_length: bool = False,  # captions of like length together; for evaluation
        images: int | None = None,  # the first so many images of the split alone
        region_classes: npt.NDArray[np.int32] | None = None,  # (rows of the features, R), for the batches
        negatives: OfflineNegatives | None = None,  # one image and one caption join for each caption
        pin_memory: bool | str = "auto",
        prefetch: int = 2,
        threads: int | None = None,
        drop_behind: bool = True,  # with windows: give back the memory of those that are done
        cache: Path | None = None,  # where shards of a URL are kept; default: the user's cache folder
        cache_bytes: int = 50_000_000_000,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
        self.split, self.seed, self.epoch_unit = split, seed, epoch_unit
        self.shuffle = Shuffle.of(shuffle)
        self.device = torch.device(device)
        self.epoch = 0
        self.bucket_by_length = bucket_by_length
        self._check_options(prefetch)
        self._data = SplitData.open(
            self.dataset,
            split=split,
            source=open_source(self.dataset, features, cache=cache, cache_bytes=cache_bytes),
            vocab=vocab,
            # Elsewhere than on a CPU the device converts, and half the bytes are copied to it.
            dtype=dtype if self.device.type == "cpu" else None,
            max_words=max_words,
            fixed_length=fixed_length,
            images=images,
        )
        self._rows, self.samples, self.fingerprint = (
            self._data.rows,
            self._data.samples,
            self._data.fingerprint,
        )
        self._threads = threads or available_threads()
        self.plan = BatchPlan(
            len(self.samples.positions) if epoch_unit == "image" else len(self.samples.captions),
            batch_size,
            rank,
            world_size,
            drop_last,
        )
        self._maker = self._data.maker(one_each=epoch_unit == "image", region_classes=region_classes)
        self._negatives = None if negatives is None else NegativesJoin(negatives, self.samples)
        self._prefetch, self._drop_behind = prefetch, drop_behind
        self._watch = DiskWatch()
        self._delivery = self._make_delivery(dtype, pin_memory)
        self._step = 0  # steps yielded in this epoch
        self._finished = False  # the last iterator came to its end
        self._running: Prefetcher[int, Deliver] | None = None
        self._data.say_what_is_left_out(say)

    def _check_options(self, prefetch: int) -> None:
        if self.epoch_unit not in EPOCH_UNITS:
            raise InputError(f"epoch_unit {self.epoch_unit!r}, expected 'image' or 'caption'")
        if prefetch < 1:
            raise InputError(f"prefetch {prefetch}, expected at least 1")
        if self.bucket_by_length and (self.shuffle.kind != "none" or self.epoch_unit != "caption"):
            raise InputError(
                "bucket_by_length decides the order of all captions: use it with shuffle=None, "
                "epoch_unit='caption'"
            )

    def _make_delivery(self, dtype: torch.dtype | None, pin_memory: bool | str) -> Delivery:
        spec, on_host = self._rows.spec, self.device.type == "cpu"
        ring = Ring(
            (self.plan.largest * (1 if self._negatives is None else 3), spec.regions, spec.dim),
            dtype=self._rows.dtype,
            size=self._prefetch
            + 2,  # the one in hand and the one before it, which is let go of a moment later
            pinned=not on_host if pin_memory == "auto" else bool(pin_memory),
        )
        return HostDelivery(ring) if on_host else DeviceDelivery(ring, device=self.device, dtype=dtype)

    @property
    def missing_images(self) -> int:
        """Images that have captions but no features."""
        return self.samples.missing_images

    @property
    def cut_captions(self) -> int:
        """Captions that are longer than max_words."""
        return self._data.cut_captions

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.plan.steps

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch; all of it where the last iterator came to its end."""
        self._stop()
        if self._finished:
            self._step, self._finished = 0, False
        key = EpochKey(self._data.order_fingerprint, self.seed, self.epoch)
        steps = self._epoch(key).own(self.plan)
        negatives = None if self._negatives is None else self._negatives.draw(key)
        residency = Residency(
            self._rows,
            positions=self.samples.positions[self.samples.caption_image[steps.captions]],
            bounds=steps.bounds,
            window_of=steps.window_of,
            drop_behind=self._drop_behind,
            watch=self._watch,
            behind=self._prefetch + 1,
        )
        self._rows.source.begin()

        def announced() -> Iterator[int]:
            for step in range(self._step, self.plan.steps):
                residency.before(step)
                yield step

        def make(step: int) -> Deliver:
            captions = steps.step(step)
            if negatives is None:
                return self._make(self._maker.make(captions))
            return self._make(self._maker.make(captions, negatives=negatives.of(captions)))

        running = self._running = Prefetcher(
            make,
            announced(),
            depth=self._prefetch,
            name=f"loader-{self.split}",
            threads=self._threads,
            begin=keep_to_one_thread,  # torch copies with memcpy then, 4 to 6% more rows a second
        )
        try:
            while (deliver := next(running, None)) is not None:
                self._step += 1
                yield deliver()
                del deliver
            if running.closed:
                raise InputError(
                    "this iterator was left behind: the loader was moved to another place or iterated anew"
                )
            self._finished = True
        finally:
            if self._running is running:
                self._stop()
            residency.finish()

    def _epoch(self, key: EpochKey) -> Epoch:
        if self.bucket_by_length:
            return bucketed_epoch(self._data.tokens.lengths[self.samples.captions])
        return shuffled_epoch(
            self.samples,
            unit=self.epoch_unit,
            shuffle=self.shuffle,
            key=key,
            bounds=self._rows.source.bounds,
            by_shard=self._rows.source.remote,
        )

    def _make(self, host: HostBatch) -> Deliver:
        """Runs in the background threads."""
        ring = self._delivery.ring
        buffer = ring.take()
        try:
            boxes = self._rows.gather(host.positions, buffer)
        except BaseException:
            ring.put_back(buffer)
            raise
        parts = {**host.tensors(), "boxes": torch.from_numpy(boxes)}
        return self._delivery.start(buffer, len(host.positions), parts)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the one under way keeps its place, so that resuming works."""
        if epoch == self.epoch and not self._finished:
            return
        self._stop()
        self.epoch, self._step, self._finished = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as plain JSON values."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "sample_in_epoch": self.plan.done(self._step),
            **self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        """What has to be the same for a place in the order to mean the same."""
        return {
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "global_batch": self.plan.global_batch,
            "shuffle": self.shuffle.to_json(),
            "epoch_unit": self.epoch_unit,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader stood; one of other data, seed, order or batch size is refused."""
        if state.get("version") != STATE_VERSION:
            raise MismatchError(f"loader state: version {state.get('version')}, expected {STATE_VERSION}")
        for name, wanted in self._identity().items():
            if state.get(name) != wanted:
                raise MismatchError(
                    f"loader state: {name} {state.get(name)}, this loader has {wanted}; "
                    "resume with the settings and data of before, or start anew"
                )
        self._stop()
        self.epoch, self._step = int(state["epoch"]), self.plan.step_of(int(state["sample_in_epoch"]))
        self._finished = False

    def _stop(self) -> None:
        running, self._running = self._running, None  # close() may come from another thread
        if running is not None:
            self._rows.source.close()  # first, as a thread may be waiting for a shard
            running.close()

    def close(self) -> None:
        """End what runs in the background; the loader may be iterated again."""
        self._stop()

    def __enter__(self) -> FeatureLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
