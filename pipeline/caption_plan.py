"""A manifest's captions -> slices of them as units of work, and the captions of a slice with their splits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..files import fingerprint
from ..manifests.dataset import Dataset
from ..schema import SPLITS
from .plan import Unit, generation_batches


def plan_captions(dataset: Dataset, *, unit_size: int) -> list[Unit]:
    """Slices of each generation's captions, in order; all splits together. Nothing is read for it."""
    units: list[Unit] = []
    for number, generation in enumerate(dataset.generations):
        rows = generation["captions"]["rows"]
        for first in range(0, rows, unit_size):
            last = min(first + unit_size, rows) - 1
            units.append(
                Unit(
                    shard=f"captions-{len(units):05d}",
                    split="",
                    generation=number,
                    first_row=first,
                    last_row=last,
                    images=last + 1 - first,
                    # The generation's fingerprint covers its captions and its images' splits.
                    digest=fingerprint([generation["fingerprint"], first, last]),
                )
            )
    return units


class CaptionSlices:
    """Reads the captions of units; of the images only the splits are held, nine bytes each."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        paths = [dataset.root / generation["images"]["file"] for generation in dataset.generations]
        images = pa.concat_tables([pq.read_table(path, columns=["image_id", "split"]) for path in paths])
        ids = images["image_id"].to_numpy()
        names = images["split"].combine_chunks().dictionary_encode()
        names = names.chunk(0) if isinstance(names, pa.ChunkedArray) else names
        code_of = np.array([SPLITS.index(name) for name in names.dictionary.to_pylist()], np.int8)
        order = np.argsort(ids, kind="stable")
        self._ids: npt.NDArray[np.int64] = ids[order]
        self._codes = code_of[names.indices.to_numpy()][order]

    def read(self, unit: Unit) -> dict[str, pa.Table]:
        """A unit -> split -> its captions (caption_id, image_id, text), in the order of the manifest."""
        columns = ["caption_id", "image_id", "text"]
        parts = [
            batch.slice(max(unit.first_row - row, 0), unit.last_row + 1 - max(row, unit.first_row))
            for row, batch in generation_batches(
                self._dataset,
                unit.generation,
                columns,
                part="captions",
                first=unit.first_row,
                last=unit.last_row,
            )
        ]
        table = pa.Table.from_batches(parts)
        assert table.num_rows == unit.images
        codes = self._codes[np.searchsorted(self._ids, table["image_id"].to_numpy())]
        return {
            split: table.filter(pa.array(codes == code))
            for code, split in enumerate(SPLITS)
            if (codes == code).any()
        }
