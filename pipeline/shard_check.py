"""One shard and what is recorded of it -> what is wrong with it: bytes, schema, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CampError
from ..files import checksum_file, sealed
from .arrow_shard import MAGIC as ARROW_MAGIC
from .feature_spec import FeatureSpec
from .finding import MAX_ROWS
from .hdf5_shard import MAGIC as HDF5_MAGIC
from .row_block import INFINITY_BITS, block_digest, boxes_inside, content_checksum, largest_bits
from .shard_file import locate, read_meta
from .shard_reader import Shard

Array = npt.NDArray[Any]

_MAGIC = {"arrow": ARROW_MAGIC, "hdf5": HDF5_MAGIC}


class Problem(NamedTuple):
    """What is wrong with a shard, or with one of its rows."""

    text: str
    row: int | None = None
    image_id: int | None = None


def check_bytes(folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec) -> list[Problem]:
    """Whether the file is the one that was committed, bit for bit; `entry` is its marker or index entry."""
    path = folder / entry["file"]
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            magic = stream.read(len(_MAGIC[spec.store]))
    except FileNotFoundError:
        return [Problem("missing")]
    if size != entry["bytes"]:
        return [Problem(f"{size:,} bytes, expected {entry['bytes']:,}: truncated or overwritten")]
    if magic != _MAGIC[spec.store]:
        return [Problem(f"begins with {magic!r}, expected {_MAGIC[spec.store]!r}: not an {spec.store} file")]
    if checksum_file(path) == entry["checksum"]:
        return []
    return [Problem(f"checksum differs: {_damaged_part(folder, entry, spec=spec)}")]


def _damaged_part(folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec) -> str:
    """Which rows do not fit their digests; found without asking a library to parse a damaged file."""
    digests, damaged, first = entry.get("digests"), [], 0
    if digests is None:
        return "damaged"
    shard = Shard(folder, entry, spec=spec)
    for batch, expected in zip(shard.batches(), digests, strict=True):
        last = first + len(batch["image_id"]) - 1
        if block_digest(batch) != expected:
            damaged.append(f"{first}..{last}")
        first = last + 1
    return f"damaged in rows {', '.join(damaged)}" if damaged else "damaged outside its rows"


def check_schema(folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec) -> list[Problem]:
    """Whether an intact file is the shard that marker and index speak of."""
    path = folder / entry["file"]
    try:
        meta = read_meta(path)
        layout, digests = locate(path, spec, sealed(meta))
    except CampError as error:
        return [Problem(str(error).removeprefix(f"{path}: "))]
    expected = {
        "shard": entry["shard"],
        "spec": spec.to_json(),
        "fingerprint": entry["fingerprint"],
    }
    problems = [
        Problem(f"says {name} {meta[name]}, expected {value}")
        for name, value in expected.items()
        if meta[name] != value
    ]
    if layout.to_json() != entry["layout"]:
        problems.append(Problem("its columns are elsewhere than recorded"))
    if content_checksum(digests) != entry["content"]:
        problems.append(Problem("the digests of its rows are others than recorded"))
    return problems


def check_digests(folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec) -> bool:
    """Whether all rows fit the digests that the shard itself carries: proof where no checksum is left."""
    shard = Shard(folder, entry, spec=spec)
    found = [block_digest(batch) for batch in shard.batches()]
    return found == list(entry["digests"])


def check_rows(shard: Shard) -> Iterator[Problem]:
    """What is wrong inside a shard's rows; the first MAX_ROWS are named."""
    first, count = 0, 0
    for batch in shard.batches():
        for text, wrong in _row_problems(batch, shard.spec):
            for row in np.flatnonzero(wrong).tolist():
                count += 1
                if count <= MAX_ROWS:
                    yield Problem(text, row=first + row, image_id=int(batch["image_id"][row]))
        first += len(batch["image_id"])
    if count > MAX_ROWS:
        yield Problem(f"and {count - MAX_ROWS} more problems in other rows")


def _row_problems(batch: Mapping[str, Array], spec: FeatureSpec) -> Iterator[tuple[str, Array]]:
    """A batch -> (what is wrong, (rows,) in which rows)."""
    largest = largest_bits(batch["features"])
    yield "features not finite (NaN or infinity)", largest >= INFINITY_BITS[batch["features"].dtype.itemsize]
    yield "features all zero", largest == 0
    counts: Array = batch["num_regions"]
    yield f"num_regions not in 1..{spec.regions}", (counts < 1) | (counts > spec.regions)
    real = np.arange(spec.regions) < counts[:, None]  # (rows, R)
    if spec.boxes:
        inside = boxes_inside(batch["boxes"], batch["size"][:, None, :])  # (rows, R)
        yield "boxes outside the image", np.asarray((real & ~inside).any(axis=1))
        yield "image size below 1×1", np.asarray((batch["size"] < 1).any(axis=1))
    for name in spec.columns:
        finite = np.isfinite(batch[name]).reshape(len(counts), -1)
        yield f"{name} not finite", np.asarray(~finite.all(axis=1))
