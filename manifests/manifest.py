"""Image and caption rows <-> the two Parquet tables of a manifest, and their fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..errors import VerificationError
from ..schema import CaptionRow, ImageRow

IMAGES_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("imgid", pa.int64()),
        pa.field("cocoid", pa.int64()),
        pa.field("root", pa.int16(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("labels", pa.list_(pa.int32())),
    ]
)
CAPTIONS_SCHEMA = pa.schema(
    [
        pa.field("caption_id", pa.int64(), nullable=False),
        pa.field("image_id", pa.int64(), nullable=False),
        pa.field("sentid", pa.int64()),
        pa.field("text", pa.string(), nullable=False),
    ]
)
# Sizes and roots say where the pixels are, not what the data set is: moving it keeps its fingerprint.
_IDENTITY_COLUMNS = ("image_id", "key", "imgid", "cocoid", "file", "split", "labels")
_HASH_ROWS = 65536


@dataclass(frozen=True)
class Manifest:
    """The two tables; rows in the order of the source, which is the order of evaluation."""

    images: pa.Table
    captions: pa.Table

    def fingerprint(self) -> str:
        """32 hex digits over ids, keys, splits, labels and texts."""
        digest = hashlib.sha256()
        for table, names in (
            (self.images, _IDENTITY_COLUMNS),
            (self.captions, CAPTIONS_SCHEMA.names),
        ):
            for name in names:
                digest.update(name.encode())
                for start in range(0, table.num_rows, _HASH_ROWS):
                    values = table.column(name).slice(start, _HASH_ROWS).to_pylist()
                    digest.update(json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    def split_counts(self) -> dict[str, dict[str, int]]:
        """Split -> number of images and captions, splits in order of appearance."""
        image_counts = _value_counts(self.images.column("split"))
        split_of_image = dict(
            zip(
                self.images.column("image_id").to_pylist(),
                self.images.column("split").to_pylist(),
                strict=True,
            )
        )
        caption_counts = dict.fromkeys(image_counts, 0)
        for entry in self.captions.column("image_id").value_counts().to_pylist():
            if entry["values"] not in split_of_image:
                raise VerificationError(
                    f"a caption belongs to image {entry['values']}, which is not there; import again"
                )
            caption_counts[split_of_image[entry["values"]]] += entry["counts"]
        return {
            split: {"images": count, "captions": caption_counts[split]}
            for split, count in image_counts.items()
        }


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}


def manifest_from_rows(images: Iterable[ImageRow], captions: Iterable[CaptionRow]) -> Manifest:
    """Rows -> tables."""
    return Manifest(
        images=_table(images, IMAGES_SCHEMA),
        captions=_table(captions, CAPTIONS_SCHEMA),
    )


def _table(rows: Iterable[ImageRow] | Iterable[CaptionRow], schema: pa.Schema) -> pa.Table:
    """Rows -> one table, a batch at a time so that a million rows never exist as Python objects at once."""
    batches, columns = [], {name: [] for name in schema.names}  # type: ignore[var-annotated]
    pending = 0
    for row in rows:
        for name, values in columns.items():
            values.append(getattr(row, name))
        pending += 1
        if pending == _HASH_ROWS:
            batches.append(pa.record_batch(list(columns.values()), schema=schema))
            columns, pending = {name: [] for name in schema.names}, 0
    if pending:
        batches.append(pa.record_batch(list(columns.values()), schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def image_rows(table: pa.Table) -> Iterator[ImageRow]:
    """An images table -> its rows."""
    for batch in table.to_batches(max_chunksize=_HASH_ROWS):
        for row in batch.to_pylist():
            labels = row.pop("labels")
            yield ImageRow(**row, labels=None if labels is None else tuple(labels))


def caption_rows(table: pa.Table) -> Iterator[CaptionRow]:
    """A captions table -> its rows."""
    for batch in table.to_batches(max_chunksize=_HASH_ROWS):
        for row in batch.to_pylist():
            yield CaptionRow(**row)
