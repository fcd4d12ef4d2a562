"""Where a shard's numbers are in its file -> zero-copy arrays over a memory map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import VerificationError
from .feature_spec import Column

Array = npt.NDArray[Any]


class Segment(NamedTuple):
    """Rows that lie together: where each column of them starts in the file."""

    first: int
    rows: int
    offsets: dict[str, int]


@dataclass(frozen=True)
class ShardLayout:
    """Batches of equal length and distance, then a shorter tail: row i is arithmetic.

    Kept in the marker and in the index, so that opening a shard needs neither pyarrow nor h5py,
    and a thousand shards open in a fraction of a second.
    """

    rows: int
    batch_rows: int
    stride: int  # bytes from one full batch to the next
    offsets: Mapping[str, int]  # column -> where its first full batch starts
    tail: Mapping[str, int]  # column -> where the tail starts

    @classmethod
    def of(cls, segments: list[Segment], *, batch_rows: int, source: object) -> ShardLayout:
        """Segments in file order -> their layout, if they are as regular as our writers make them."""
        rows = sum(segment.rows for segment in segments)
        full = [segment for segment in segments if segment.rows == batch_rows]
        stride = 0
        if len(full) > 1:
            stride = full[1].offsets["features"] - full[0].offsets["features"]
        tail = segments[-1].offsets if rows % batch_rows else {}
        layout = cls(
            rows=rows,
            batch_rows=batch_rows,
            stride=stride,
            offsets=full[0].offsets if full else {},
            tail=tail,
        )
        if list(layout.segments()) != segments:
            raise VerificationError(f"{source}: batches at irregular places; written by another program?")
        return layout

    def segments(self) -> Iterator[Segment]:
        """Every batch in file order."""
        full, rest = divmod(self.rows, self.batch_rows)
        for number in range(full):
            offsets = {name: offset + number * self.stride for name, offset in self.offsets.items()}
            yield Segment(number * self.batch_rows, self.batch_rows, offsets)
        if rest:
            yield Segment(full * self.batch_rows, rest, dict(self.tail))

    def blocks(self, buffer: Any, column: Column) -> tuple[Array, Array]:
        """A mapped file -> read-only (batches, rows, *shape), strided, and the tail (0 or 1, rows, *shape).

        Two arrays however many batches there are: nothing is copied, read or built batch by batch.
        """
        full, rest = divmod(self.rows, self.batch_rows)
        main = tail = np.empty((0, 1, *column.shape), column.dtype)
        inner = (column.row_bytes, *np.empty(column.shape, column.dtype).strides)
        if full:
            shape, start = (full, self.batch_rows, *column.shape), self.offsets[column.name]
            main = np.ndarray(shape, column.dtype, buffer, start, (self.stride, *inner))
        if rest:
            shape, start = (1, rest, *column.shape), self.tail[column.name]
            tail = np.ndarray(shape, column.dtype, buffer, start, (0, *inner))
        return main, tail

    def column_views(self, buffer: Any, column: Column) -> list[Array]:
        """A mapped file -> one read-only array (rows, *shape) per batch, without copying or reading."""
        main, tail = self.blocks(buffer, column)
        return [*main, *tail]

    def row_view(self, buffer: Any, column: Column, row: int) -> Array:
        """A mapped file -> one row of a column, without copying."""
        count = column.row_bytes // np.dtype(column.dtype).itemsize
        flat = np.frombuffer(buffer, column.dtype, count=count, offset=self.row_offset(column, row))
        return flat.reshape(column.shape)

    def row_offset(self, column: Column, row: int) -> int:
        """Where in the file a row of a column starts."""
        batch, rest = divmod(row, self.batch_rows)
        in_tail = row >= self.rows - self.rows % self.batch_rows
        start = self.tail[column.name] if in_tail else self.offsets[column.name] + batch * self.stride
        return start + rest * column.row_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "batch_rows": self.batch_rows,
            "stride": self.stride,
            "offsets": dict(self.offsets),
            "tail": dict(self.tail),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, source: object) -> ShardLayout:
        try:
            return cls(**value)
        except TypeError as error:
            raise VerificationError(f"{source}: not a shard layout ({error})") from None
