"""Whole random batches of regions and tokens: the loader against its limit and its peers, in rows a second.

python benchmarks/loader.py [--quick] [--json FILE]

Rows of 36×2048 in half precision, batches of 128 with boxes and tokens, a global random order where the peer
has one, everything in the page cache. Peers run at the best of 0, 1 and 2 workers and fetch by the batch
where they can; which was best is printed.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import loader_peers as peers
import numpy as np
from harness import Result, arguments, interleaved
from loader_peers import D, R
from ram_gather import GatherRows, ways_to_gather

from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline.aligned_memory import aligned_empty
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.loader import FeatureLoader
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.tokens import tokenize_dataset
from camp.schema import CaptionRow, ImageRow
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer

BATCH, PREFETCH = 128, 3
SETTLE_SECONDS = 1.0
ROUNDS = 15  # two threads only show their best in moments when both cores are free
WORKERS = (0, 1, 2)
WORKER_AHEAD = 2  # torch's default: batches that each worker has ready


def random_rows(count: int, first: int) -> np.ndarray:
    """(count, R, D); the same 64 again and again, as random numbers cost more than the disk."""
    base = np.random.default_rng(0).standard_normal((64, R, D), np.float32).astype(np.float16)
    return base[np.arange(first, first + count) % 64]


def make_dataset(root: Path, rows: int) -> Dataset:
    """Images with one caption each, their features in shards, their tokens."""
    images = (ImageRow(number, f"{number}", "", "train", 640, 480) for number in range(rows))
    captions = (
        CaptionRow(number, number, " ".join(f"w{word}" for word in peers.tokens_of(number)[2:]))
        for number in range(rows)
    )
    dataset = write_generation(
        root,
        manifest_from_rows(images, captions),
        name="bench",
        source={},
        findings={},
        label_names=[],
        image_roots=[None],
    )
    vocabulary = build_vocabulary(dataset, tokenizer=open_tokenizer("plain"), min_count=1)
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    spec = FeatureSpec(regions=R, dim=D)
    names = []
    for number, first in enumerate(range(0, rows, 4096)):
        count = min(4096, rows - first)
        names.append(f"train-{number:05d}")
        with ShardWriter(
            dataset.features_folder("bench"), shard=names[-1], spec=spec, fingerprint="bench", capacity=count
        ) as writer:
            for begin in range(first, first + count, 512):
                part = min(512, first + count - begin)
                writer.add_stored(
                    {
                        "image_id": np.arange(begin, begin + part),
                        "num_regions": np.full(part, R, np.int32),
                        "size": np.tile(np.array([640, 480], np.int32), (part, 1)),
                        "boxes": peers.boxes_of(part),
                        "features": random_rows(part, begin),
                    }
                )
            writer.commit()
    finalize(dataset.features_folder("bench"), provenance={}, spec=spec, expected_shards=names)
    return dataset


def drain(batches: Iterable[Any], rows: int) -> None:
    """Take batches until there were enough rows."""
    if rows <= 0:
        return
    for batch in batches:
        features = batch.regions if hasattr(batch, "regions") else batch[0]
        assert features.shape[1:] == (R, D)
        rows -= len(features)
        if rows <= 0:
            return


def from_memory(gather: GatherRows, rows: int, *, buffers: int) -> Callable[[], None]:
    """All rows in memory, in random order, into buffers in turn: nothing else is done.

    A loader that works ahead of its consumer needs several buffers. A single one would stay in the
    processor's cache, which no batch on its way to a consumer can: that figure is printed, but is no limit.
    """
    outs = [aligned_empty((BATCH, R, D), np.float16) for _ in range(buffers)]
    generator = np.random.default_rng(0)

    def run() -> None:
        order = generator.permutation(rows)
        for number, first in enumerate(range(0, rows - BATCH + 1, BATCH)):
            gather(order[first : first + BATCH], outs[number % buffers])

    return run


class Peer:
    """A peer at its best number of workers."""

    busy_until = 0.0

    def __init__(self, open_with: Callable[[int], Iterator[Any]], rows: int) -> None:
        self.rows = rows
        found: dict[int, float] = {}
        opened: dict[int, Iterator[Any]] = {}
        for workers in WORKERS:
            self.workers, self.batches = workers, open_with(workers)
            opened[workers] = self.batches
            drain(self.batches, BATCH)  # starts the workers
            start = time.perf_counter()
            self.run()
            found[workers] = time.perf_counter() - start
        self.workers = min(found, key=lambda workers: found[workers])
        self.batches = opened.pop(self.workers)
        for batches in opened.values():
            batches.close()  # type: ignore[attr-defined]

    def run(self) -> None:
        """First, uncounted, what the workers made while others were measured; then `rows`."""
        drain(self.batches, BATCH * WORKER_AHEAD * self.workers)
        drain(self.batches, self.rows)
        if self.workers:  # they go on until their queues are full
            Peer.busy_until = time.perf_counter() + SETTLE_SECONDS

    @staticmethod
    def settle() -> None:
        """Wait until nobody's workers run into somebody else's turn."""
        time.sleep(max(0.0, Peer.busy_until - time.perf_counter()))


def first_batch_ms(dataset: Dataset) -> float:
    """From a folder's name to a batch."""
    start = time.perf_counter()
    with FeatureLoader(dataset.root, split="train", features="bench", batch_size=BATCH, dtype=None) as loader:
        next(iter(loader))
        return 1e3 * (time.perf_counter() - start)


def growth_mb(run: Callable[[], object], times: int = 10) -> float:
    """How much memory, other than that of mapped files, some more epochs take."""

    def resident() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon:"))

    for _ in range(3):
        run()
    before = resident()
    for _ in range(times):
        run()
    return resident() - before


def main() -> None:
    given = arguments(__doc__ or "")
    warnings.filterwarnings("ignore")  # the peers'
    rows = 8192 if given.quick else 32768
    slow_rows = 256 if given.quick else 2048  # of the peers that are slow
    result = Result("loader")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dataset = make_dataset(folder / "dataset", rows)
        options: dict[str, Any] = {
            "split": "train",
            "features": "bench",
            "batch_size": BATCH,
            "prefetch": PREFETCH,
        }
        loader = FeatureLoader(dataset, dtype=None, **options)
        converting = FeatureLoader(dataset, **options)
        epoch = itertools.count()

        def ours(source: FeatureLoader) -> None:
            source.set_epoch(next(epoch))
            drain(source, rows)

        run_loader = partial(ours, loader)
        stored = aligned_empty((rows, R, D), np.float16)  # as shards and the loader's buffers are
        stored[...] = random_rows(rows, 0)
        ways = ways_to_gather(stored, threads=2)
        limits = {f"gather from memory, {name}": gather for name, gather in ways.items()}
        rivals: dict[str, Callable[[], object]] = {
            "loader": run_loader,
            "loader, to float32": partial(ours, converting),
            **{name: from_memory(gather, rows, buffers=PREFETCH + 2) for name, gather in limits.items()},
            "gather from memory, memmove, one buffer": from_memory(
                ways["memmove, 2 threads"], rows, buffers=1
            ),
        }
        best_times = interleaved(rivals, repeats=ROUNDS)
        limit = rows / min(best_times[name] for name in limits)
        rates = {name: rows / seconds for name, seconds in best_times.items()}
        result.ratio("gather_limit", rates["loader"] / limit)
        del rivals, limits, ways, stored  # the peers' files must not push ours out of memory
        counts = {"loader": rows}
        against: dict[str, Callable[[], object]] = {"loader": run_loader}
        mapped = partial(peers.dataloader_mmap, folder, random_rows, rows, BATCH)
        slow = (folder, random_rows, 2 * slow_rows, BATCH)
        everybody: dict[str, tuple[int, Callable[[int], Iterator[Any]]]] = {
            "dataloader_mmap": (rows // 2, partial(mapped, batched=True)),
            "dataloader_mmap_by_rows": (rows // 4, partial(mapped, batched=False)),
            "webdataset": (slow_rows, partial(peers.webdataset, *slow)),
            "litdata": (slow_rows, partial(peers.litdata, *slow)),
            "hf_datasets": (slow_rows, partial(peers.hf_datasets, *slow)),
        }
        for name, (count, open_with) in everybody.items():
            try:
                peer = Peer(open_with, count)
            except ImportError as error:
                result.notes.append(f"{name}: left out, {error.name} is missing (pip install '.[bench]')")
                continue
            counts[name], against[name] = count, peer.run
            result.notes.append(f"{name}: {peer.workers} workers were the best of 0, 1 and 2")
        best_times = interleaved(against, before=Peer.settle)
        beside = {name: counts[name] / seconds for name, seconds in best_times.items()}
        for name, rate in {**rates, "loader, beside the peers": beside.pop("loader"), **beside}.items():
            result.row(name, rate, "rows/s")
        result.row("time to first batch", min(first_batch_ms(dataset) for _ in range(7)), "ms")
        result.row("memory, growth over 10 epochs", growth_mb(run_loader), "MB")
        for name, rate in beside.items():
            result.ratio(name, rows / best_times["loader"] / rate)
            result.row(f"{name}: what memory allows, the gather's rate over its", limit / rate, "times")
        result.finish(given.json)


if __name__ == "__main__":
    main()
