"""A manifest -> shard-sized units of work, always the same ones, with a digest of what is in each.

A unit never spans two generations of a data set: an append makes new units and leaves the old ones alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InputError, VerificationError
from ..files import fingerprint
from ..manifests.dataset import Dataset
from ..manifests.manifest import IMAGES_SCHEMA, image_rows
from ..schema import SPLITS, ImageRow

DEFAULT_SHARD_SIZE = 500  # 74 MB of 36 x 2048 in fp16; what a kill can cost at most, per worker
_BATCH_ROWS = 65536
_IDENTITY_COLUMNS = ("image_id", "key", "file")


@dataclass(frozen=True, slots=True)
class Unit:
    """One shard's worth of images: those of `split` among the rows first_row..last_row of a generation.

    It says where its images are listed and not which they are, so that a plan of many millions stays small.
    """

    shard: str  # e.g. train-00012
    split: str
    generation: int  # from 0
    first_row: int
    last_row: int  # inclusive
    images: int
    digest: str  # of the images' ids, keys and files

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def fingerprint(self, features: str) -> str:
        """What the shard's marker must carry for the unit to be done: these images, made in that way."""
        return fingerprint({"features": features, "images": self.digest})


class _OpenUnit:
    """A unit that is still being filled."""

    def __init__(self, first_row: int) -> None:
        self.first_row = self.last_row = first_row
        self.images = 0
        self.digest = hashlib.sha256()

    def add(self, rows: npt.NDArray[np.int64], identity: pa.LargeStringArray) -> None:
        self.last_row = int(rows[-1])
        self.images += len(rows)
        # The texts lie end to end in Arrow's buffer: the digest does not depend on how the rows arrived.
        _, offsets, text = identity.buffers()
        bounds = np.frombuffer(offsets, np.int64)[identity.offset : identity.offset + len(identity) + 1]
        self.digest.update(memoryview(text)[bounds[0] : bounds[-1]])


def _identity(batch: pa.RecordBatch) -> pa.LargeStringArray:
    """One text per image that changes when its id, key or file does."""
    columns = [batch.column(name).cast(pa.large_string()) for name in _IDENTITY_COLUMNS]
    end = pa.scalar("\n", pa.large_string())
    return pc.binary_join_element_wise(*columns, end, pa.scalar("\0", pa.large_string()))


def plan_units(dataset: Dataset, *, shard_size: int, splits: Sequence[str] | None = None) -> list[Unit]:
    """A data set -> the units of some splits (default: all), generation by generation, then split by split.

    A unit's name and content do not depend on which splits are asked for.
    """
    if shard_size < 1:
        raise InputError(
            f"shard size {shard_size}, expected at least 1; e.g. --shard-size {DEFAULT_SHARD_SIZE}"
        )
    if splits is not None:
        dataset.check_splits(splits)
    next_number = dict.fromkeys(SPLITS, 0)
    units: list[Unit] = []
    for generation in range(len(dataset.generations)):
        opened: dict[str, _OpenUnit] = {}
        closed: list[Unit] = []

        def close(split: str) -> None:
            unit = opened.pop(split)  # noqa: B023 - called within the same turn of the loop
            number, next_number[split] = next_number[split], next_number[split] + 1
            closed.append(  # noqa: B023
                Unit(
                    shard=f"{split}-{number:05d}",
                    split=split,
                    generation=generation,  # noqa: B023
                    first_row=unit.first_row,
                    last_row=unit.last_row,
                    images=unit.images,
                    digest=unit.digest.hexdigest()[:32],
                )
            )

        for first_row, batch in generation_batches(dataset, generation, ["split", *_IDENTITY_COLUMNS]):
            names = batch.column("split").dictionary_encode()
            codes = names.indices.to_numpy()
            texts = _identity(batch)
            for code, split in enumerate(names.dictionary.to_pylist()):
                if splits is not None and split not in splits:
                    continue
                positions = np.flatnonzero(codes == code)
                identity = texts.take(pa.array(positions))
                taken = 0
                while taken < len(positions):
                    unit = opened.setdefault(split, _OpenUnit(first_row + int(positions[taken])))
                    part = slice(taken, taken + shard_size - unit.images)
                    unit.add(first_row + positions[part], identity[part])
                    taken = min(part.stop, len(positions))
                    if unit.images == shard_size:
                        close(split)
        for split in list(opened):
            close(split)
        closed.sort(key=lambda unit: (SPLITS.index(unit.split), unit.shard))
        units += closed
    return units


def unit_images(dataset: Dataset, unit: Unit) -> list[ImageRow]:
    """A unit -> its images in the order of the manifest; only the row groups they lie in are read."""
    rows: list[ImageRow] = []
    for first_row, batch in generation_batches(
        dataset, unit.generation, IMAGES_SCHEMA.names, first=unit.first_row, last=unit.last_row
    ):
        start = max(unit.first_row - first_row, 0)
        part = batch.slice(start, unit.last_row + 1 - first_row - start)
        chosen = pc.equal(part.column("split"), unit.split)
        rows += image_rows(pa.Table.from_batches([part.filter(chosen)]))
    if len(rows) != unit.images:
        raise VerificationError(
            f"{dataset.root}: {unit.shard}: {len(rows)} images in the manifest, {unit.images} in the plan; "
            "the manifest changed during the run: run the same command again"
        )
    return rows


def generation_batches(
    dataset: Dataset,
    generation: int,
    columns: Sequence[str],
    *,
    part: str = "images",
    first: int = 0,
    last: int | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A generation's images or captions -> (number of the first row, batch) of what holds first..last."""
    path = dataset.root / dataset.generations[generation][part]["file"]
    try:
        with pq.ParquetFile(path) as file:
            start = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if start + count > first and (last is None or start <= last):
                    row = start
                    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns)):
                        if row + batch.num_rows > first and (last is None or row <= last):
                            yield row, batch
                        row += batch.num_rows
                start += count
    except (OSError, pa.ArrowInvalid) as error:
        raise VerificationError(f"{path}: cannot be read ({error}); restore it or import again") from None
