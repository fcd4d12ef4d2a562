"""A feature set -> the loader's rows: gathered by threads, converted on the way, watched for changes."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import VerificationError
from .bus_guard import GUARD
from .feature_index import FeatureIndex
from .feature_spec import FeatureSpec
from .row_copy import RowCopy
from .shard_reader import Shard

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

_ROWS_KEPT = 1 << 17  # a view of every row is kept of no more than these: 70 MB


class ShardSource(Protocol):
    """Where shards come from: a folder, or a cache of a remote one."""

    spec: FeatureSpec
    fingerprint: str
    bounds: Integers  # (shards + 1,) shard s has the rows bounds[s]..bounds[s + 1]
    image_ids: Integers  # (rows,)
    num_regions: npt.NDArray[np.int32]  # (rows,)

    remote: bool  # shards have to be fetched, and their copies may be removed under the reader

    def shard(self, number: int) -> Shard:
        """A mapped shard; may take long where it has to be fetched."""

    def is_here(self, number: int) -> bool:
        """Whether it takes no time."""

    def keep(self, numbers: Sequence[int]) -> None:
        """Which shards are needed now and next; others may go."""

    def begin(self) -> None:
        """Somebody is about to read."""

    def close(self) -> None:
        """Nobody reads any more; end what runs in the background."""


class LocalShards:
    """The shards of a folder, mapped at once; only ids and counts are read."""

    remote = False

    def __init__(self, folder: Path) -> None:
        index = FeatureIndex.open(folder)
        self.spec, self.fingerprint = index.spec, index.fingerprint
        self._shards = [Shard(folder, entry, spec=index.spec) for entry in index.shards]
        self.bounds = np.cumsum([0, *(shard.rows for shard in self._shards)])
        for shard in self._shards:
            # Without this, a disk that reads megabytes around every fault would read most of the features.
            shard.read_randomly()
            shard.will_need(0, shard.rows, ("image_id", "num_regions"))
        self.image_ids: Integers = self._column("image_id", np.int64)
        self.num_regions: npt.NDArray[np.int32] = self._column("num_regions", np.int32)

    def _column(self, name: str, dtype: npt.DTypeLike) -> Array:
        views = [view for shard in self._shards for view in shard.views(name)]
        return np.concatenate([np.empty(0, dtype), *views])

    def shard(self, number: int) -> Shard:
        return self._shards[number]

    def is_here(self, number: int) -> bool:
        return True

    def keep(self, numbers: Sequence[int]) -> None:
        pass

    def begin(self) -> None:
        pass

    def close(self) -> None:
        pass


class FeatureRows:
    """Rows of a shard source by position. Threads may share it."""

    def __init__(self, source: ShardSource, *, dtype: torch.dtype | None = None) -> None:
        """`dtype` is what gathered features are converted to."""
        self.source, self.spec = source, source.spec
        stored: torch.dtype = getattr(torch, self.spec.dtype)
        self.dtype = dtype or stored
        self.copy = RowCopy(stored=stored, wanted=self.dtype, numbers=self.spec.regions * self.spec.dim)
        self._open: dict[int, _OpenShard] = {}

    def __len__(self) -> int:
        return int(self.source.bounds[-1])

    def gather(self, positions: Integers, buffer: Tensor) -> Array:
        """The features of some rows -> the first of a buffer's (m, R, D); returns their boxes (n, R, 4).

        Every shard that was touched is looked at afterwards: one that was removed or changed, before or
        during the copy, is an error that names it.
        """
        shards = np.searchsorted(self.source.bounds, positions, side="right") - 1
        rows = (positions - self.source.bounds[shards]).tolist()
        numbers = shards.tolist()
        opened = {number: self._shard(number) for number in set(numbers)}
        if not GUARD.available:  # then a shard that was cut short must not be touched
            for shard in opened.values():
                shard.check()
        features: list[Tensor] = []
        boxes: list[Array] = []
        for number, row in zip(numbers, rows, strict=True):
            shard = opened[number]
            batch, row = divmod(row, shard.step)
            features.append(shard.features[batch][row])
            boxes.append(shard.boxes[batch][row])
        self.copy(features, buffer)
        together = np.empty((len(rows), self.spec.regions, 4), np.float32)
        if boxes:
            np.concatenate(boxes, out=together.reshape(-1, 4))
        for shard in opened.values():
            shard.check()
        return together

    def will_need(self, positions: Integers) -> None:
        """Ask the operating system for some rows' features ahead of time."""
        for shard, first, count in self._runs(positions):
            if self.source.is_here(shard):
                self._shard(shard).shard.will_need(first, count)

    def let_go(self, positions: Integers) -> None:
        """Give their pages back to it."""
        for shard, first, count in self._runs(positions):
            if shard in self._open:
                self._open[shard].let_go(first, count)

    def keep(self, positions: Integers) -> None:
        """Which rows are needed now and next: the shards of all others may go."""
        if not self.source.remote:
            return
        shards = np.searchsorted(self.source.bounds, positions, side="right") - 1
        numbers = list(dict.fromkeys(shards.tolist()))
        self._open = {number: shard for number, shard in self._open.items() if number in numbers}
        self.source.keep(numbers)

    def _runs(self, positions: Integers) -> Iterator[tuple[int, int, int]]:
        """Rows -> (shard, first row, count) of those that lie together."""
        rows = np.unique(positions)
        shards = np.searchsorted(self.source.bounds, rows, side="right") - 1
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(shards) != 0)) + 1
        for run in np.split(np.arange(len(rows)), ends) if len(rows) else []:
            shard = int(shards[run[0]])
            yield shard, int(rows[run[0]] - self.source.bounds[shard]), len(run)

    def _shard(self, number: int) -> _OpenShard:
        shard = self.source.shard(number)
        known = self._open.get(number)
        if known is None or known.shard is not shard:
            known = self._open[number] = _OpenShard(
                shard, self.copy, keep=len(self) <= _ROWS_KEPT, watched=not self.source.remote
            )
        return known


class _OpenShard:
    """A shard's arrays, and what its file looked like when it was opened."""

    def __init__(self, shard: Shard, copy: RowCopy, *, keep: bool, watched: bool) -> None:
        self.shard, self._watched = shard, watched
        self.step = shard.layout.batch_rows
        # By `step` rows each. A view of a row costs more than anything else that is done for it but the copy.
        self.features: list[Sequence[Tensor] | Tensor] = [
            copy.sources(view).unbind() if keep else copy.sources(view) for view in shard.views("features")
        ]
        self.boxes: list[Sequence[Array] | Array] = [
            list(view) if keep else view for view in shard.views("boxes")
        ]
        self._path = os.fspath(shard.path)
        self._seen = self._look()
        self._start, size = shard.extent
        GUARD.watch(self._start, size)
        weakref.finalize(self, GUARD.unwatch, self._start).atexit = False

    def let_go(self, first: int, rows: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # check() says it better
            self.shard.let_go(first, rows)

    def check(self) -> None:
        if self._look() != self._seen or GUARD.was_hit(self._start):
            raise VerificationError(
                f"{self._path}: changed while it was being read; "
                "run 'camp-data verify', then start again from the last checkpoint"
            )

    def _look(self) -> tuple[int, int, int]:
        if not self._watched:
            return 0, 0, 0
        try:
            state = os.stat(self._path)  # noqa: PTH116 - once per shard and batch
        except FileNotFoundError:
            raise VerificationError(
                f"{self._path}: disappeared while it was being read; "
                "restore it or run 'camp-data verify', then start again from the last checkpoint"
            ) from None
        return state.st_ino, state.st_size, state.st_mtime_ns


def available_threads() -> int:
    """Threads that gather: memory is saturated by a few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 4)
