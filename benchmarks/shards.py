"""Shards against the machine's own limits: writing against numpy.tofile, reading against memory.

python benchmarks/shards.py [--quick] [--json FILE]

Rows of 36×2048. Writing goes from single images in float32, as extractors give them, to a committed shard:
checks, conversion, checksum, fsync, rename and marker included; the limit is numpy.tofile and fsync of the
same features. Reading gathers 128 random rows with a warm cache, by one thread and by two; the limit gathers
the same rows of an array in memory, by numpy.take and by two threads of memmove, numpy and torch. The ratio
sets the best of ours against the best of those.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from harness import Result, arguments, interleaved
from ram_gather import GatherRows, ways_to_gather

from camp.files import read_sealed, write_sealed
from camp.pipeline.aligned_memory import aligned_empty
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec, shard_name
from camp.pipeline.shard_reader import ShardReader
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

R, D, BATCH = 36, 2048, 128
SHARDS = 1000
STORES = ("arrow", "hdf5")


def make_images(count: int = 64) -> list[Regions]:
    """A few images, used again and again: memory would otherwise be the subject."""
    generator = np.random.default_rng(0)
    boxes = np.tile(np.array([0, 0, 99, 99], np.float32), (R, 1))
    return [
        Regions(boxes=boxes, features=generator.random((R, D), np.float32), width=100, height=100)
        for _ in range(count)
    ]


def write_shard(folder: Path, images: list[Regions], spec: FeatureSpec, rows: int) -> None:
    with ShardWriter(folder, shard="train-00000", spec=spec, fingerprint="bench", capacity=rows) as writer:
        for row in range(rows):
            writer.add(row, images[row % len(images)])
        writer.commit()


def time_writing(result: Result, root: Path, *, rows: int) -> None:
    """Committed shards in either format and type, against a plain file of the same bytes."""
    images = make_images()
    shares = []
    for dtype in ("float16", "float32"):
        spec = {store: FeatureSpec(regions=R, dim=D, dtype=dtype, store=store) for store in STORES}
        values = np.stack([images[row % len(images)].features for row in range(rows)]).astype(dtype)

        def plain(values: npt.NDArray[np.generic] = values) -> None:
            with (root / "plain" / "plain.bin").open("wb") as stream:
                values.tofile(stream)
                stream.flush()
                os.fsync(stream.fileno())

        def ours(spec: FeatureSpec) -> None:
            write_shard(root / spec.store, images, spec, rows)

        def clean() -> None:
            for name in ("plain", *STORES):
                shutil.rmtree(root / name, ignore_errors=True)
            (root / "plain").mkdir()
            os.sync()  # freeing the blocks of the one before is nobody's writing

        rivals: dict[str, Callable[[], object]] = {"numpy.tofile + fsync": plain}
        for store in STORES:
            rivals[f"{store} shard"] = lambda spec=spec[store], ours=ours: ours(spec)  # type: ignore[misc]
        best = interleaved(rivals, before=clean)
        for name, seconds in best.items():
            result.row(f"write {dtype}, {name}", values.nbytes / seconds / 1e9, "GB/s")
        shares += [best["numpy.tofile + fsync"] / best[f"{store} shard"] for store in STORES]
    result.ratio("write_tofile", min(shares))


def time_gathering(result: Result, root: Path, *, rows: int, batches: int) -> None:
    """Random batches from maps of both formats, against the same from memory."""
    images = make_images()
    readers = {}
    for store in STORES:
        spec = FeatureSpec(regions=R, dim=D, store=store)
        folder = root / f"read-{store}"
        write_shard(folder, images, spec, rows)
        finalize(folder, provenance={}, spec=spec, expected_shards=["train-00000"])
        readers[store] = ShardReader.open(folder)
    memory = readers["arrow"].gather(np.arange(rows))  # aligned to 64 bytes, like the shards and the buffer
    generator = np.random.default_rng(1)
    orders = [generator.permutation(rows)[:BATCH] for _ in range(batches)]
    out = aligned_empty((BATCH, R, D), np.float16)

    def from_memory(gather: GatherRows) -> None:
        for order in orders:
            gather(order, out)

    def ours(reader: ShardReader, threads: int) -> None:
        for order in orders:
            reader.gather(order, out=out, threads=threads)

    best = interleaved(
        {
            **{
                f"memory, {name}": lambda gather=gather: from_memory(gather)  # type: ignore[misc]
                for name, gather in ways_to_gather(memory, threads=2).items()
            },
            **{store: lambda store=store: ours(readers[store], 1) for store in STORES},  # type: ignore[misc]
            **{
                f"{store}, two threads": lambda store=store: ours(readers[store], 2)  # type: ignore[misc]
                for store in STORES
            },
        },
        repeats=60,  # of some 10 ms each: a neighbour takes memory away for longer than that
    )
    for name, seconds in best.items():
        result.row(f"gather {BATCH} rows, {name}", out.nbytes * batches / seconds / 1e9, "GB/s")
    limit = min(seconds for name, seconds in best.items() if name.startswith("memory"))
    for store in STORES:
        result.ratio(f"gather_ram_{store}", limit / min(best[store], best[f"{store}, two threads"]))
        readers[store].close()


def time_opening(result: Result, root: Path) -> None:
    """A set of a thousand shards: copies of one, under an index that lists them."""
    spec = FeatureSpec(regions=2, dim=4, dtype="float32")
    boxes = np.zeros((2, 4), np.float32)
    regions = Regions(boxes=boxes, features=np.ones((2, 4), np.float32), width=1, height=1)
    folder = root / "open"
    with ShardWriter(folder, shard="train-00000", spec=spec, fingerprint="bench", capacity=500) as writer:
        for row in range(500):
            writer.add(row, regions)
        writer.commit()
    index = finalize(folder, provenance={}, spec=spec, expected_shards=["train-00000"])
    (entry,) = index["shards"]
    index["shards"] = []
    for number in range(SHARDS):
        name = shard_name("train", number)
        index["shards"].append({**entry, "shard": name, "file": f"{name}.arrow"})
        if number:
            shutil.copyfile(folder / "train-00000.arrow", folder / f"{name}.arrow")
    write_sealed(folder / "index.json", index)
    assert read_sealed(folder / "index.json") == index
    start = time.perf_counter()
    rows = len(ShardReader.open(folder))
    result.row(f"open {SHARDS:,} shards of {rows:,} rows", time.perf_counter() - start, "s")


def main() -> None:
    options = arguments(__doc__ or "")
    result = Result("shards")
    with tempfile.TemporaryDirectory(prefix="camp-shards-") as folder:
        root = Path(folder)
        time_writing(result, root, rows=1500 if options.quick else 4000)
        time_gathering(result, root, rows=2000 if options.quick else 8000, batches=10)
        time_opening(result, root)
    result.finish(options.json)


if __name__ == "__main__":
    main()
