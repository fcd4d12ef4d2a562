"""Blocks of rows <-> one Arrow IPC file: uncompressed, no nulls, a record batch per block."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import VerificationError
from .feature_spec import FeatureSpec
from .shard_layout import Segment, ShardLayout

Array = npt.NDArray[Any]

MAGIC = b"ARROW1"
META_KEY = b"camp"  # in the schema's metadata: what the shard is, as sealed JSON
DIGEST_KEY = b"digest"  # in each record batch's metadata
PADDING_KEY = b"padding"  # there too: so long that the features begin at a multiple of ALIGNMENT
ALIGNMENT = (
    64  # bytes of a cache line; Arrow aligns batches to 8 bytes, and rows are read 10% more slowly then
)


def arrow_schema(spec: FeatureSpec, meta: bytes) -> pa.Schema:
    """The columns as Arrow types: an image's values are one fixed-size list."""
    return pa.schema(
        [
            pa.field(column.name, _arrow_type(column.dtype, column.shape), nullable=False)
            for column in spec.layout()
        ],
        metadata={META_KEY: meta},
    )


def _arrow_type(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> pa.DataType:
    value = pa.from_numpy_dtype(dtype)
    return pa.list_(pa.field("item", value, nullable=False), prod(shape)) if shape else value


class ArrowShardFile:
    """A shard being written: blocks are appended as they come, nothing is kept in memory."""

    def __init__(self, path: Path, spec: FeatureSpec, meta: bytes) -> None:
        self._schema = arrow_schema(spec, meta)
        self._file = path.open("xb")
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), self._schema)
        self._padding = _Padding(spec, self._schema)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, columns: Mapping[str, Array], digest: str) -> None:
        arrays = [
            _to_arrow(array, field.type) for array, field in zip(columns.values(), self._schema, strict=True)
        ]
        batch = pa.record_batch(arrays, schema=self._schema)
        padding = self._padding.find(self._file.tell(), list(columns.values()), digest)
        self._writer.write_batch(batch, custom_metadata={DIGEST_KEY: digest, PADDING_KEY: padding})

    def finish(self) -> None:
        """Write the footer; the bytes are then with the operating system, not yet on disk."""
        self._writer.close()
        self._file.flush()

    def close(self) -> None:
        # What a full disk did not take was an error of finish(); here it is only thrown away.
        with contextlib.suppress(OSError):
            self._file.close()


class _Padding:
    """How long a batch's metadata has to be for its features to lie well, found out on a batch of one row."""

    def __init__(self, spec: FeatureSpec, schema: pa.Schema) -> None:
        row = [np.zeros((1, *column.shape), column.dtype) for column in spec.layout()]
        arrays = [_to_arrow(array, field.type) for array, field in zip(row, schema, strict=True)]
        self._schema, self._row = schema, pa.record_batch(arrays, schema=schema)
        self._before = _bytes_before_features(row)
        self._sizes: dict[int, tuple[int, int]] = {}

    def find(self, position: int, columns: Sequence[Array], digest: str) -> str:
        """The file's length so far and the next batch -> filler for its metadata."""
        before = _bytes_before_features(columns)
        for length in range(0, 2 * ALIGNMENT, 8):
            header, size = self._measure(length, digest)
            if (max(position, header) + size + before) % ALIGNMENT == 0:
                return "." * length
        return ""

    def _measure(self, length: int, digest: str) -> tuple[int, int]:
        """Filler -> bytes before the first batch (written together with it), bytes of a batch's metadata."""
        if length not in self._sizes:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, self._schema) as writer:
                for _ in range(2):
                    metadata = {DIGEST_KEY: digest, PADDING_KEY: "." * length}
                    writer.write_batch(self._row, custom_metadata=metadata)
            whole = sink.getvalue()
            reader = pa.ipc.open_file(whole)
            first, second = (
                reader.get_batch(number).columns[-1].buffers()[-1].address - whole.address
                for number in range(2)
            )
            end = first + self._row.columns[-1].buffers()[-1].size  # of the first batch
            end += -end % 8
            size = second - self._before - end
            self._sizes[length] = first - self._before - size, size
        return self._sizes[length]


def _bytes_before_features(columns: Sequence[Array]) -> int:
    return sum(array.nbytes + -array.nbytes % 8 for array in columns[:-1])


def _to_arrow(array: Array, type: pa.DataType) -> pa.Array:
    rows, buffer = len(array), pa.py_buffer(np.ascontiguousarray(array))
    if not pa.types.is_fixed_size_list(type):
        return pa.Array.from_buffers(type, rows, [None, buffer])
    values = pa.Array.from_buffers(type.value_type, array.size, [None, buffer])
    return pa.Array.from_buffers(type, rows, [None], children=[values])


def read_arrow_meta(path: Path) -> bytes:
    """A shard -> the sealed JSON it carries."""
    _, reader = _open(path)
    meta = (reader.schema.metadata or {}).get(META_KEY)
    if meta is None:
        raise VerificationError(f"{path}: an Arrow file, but not a shard of camp-data; import it instead")
    return bytes(meta)


def locate_arrow(path: Path, spec: FeatureSpec, meta: bytes) -> tuple[ShardLayout, list[str]]:
    """A shard -> where its columns are, and each batch's digest; the schema must be the spec's."""
    whole, reader = _open(path)
    expected = arrow_schema(spec, meta)
    if not reader.schema.equals(expected, check_metadata=True):
        raise VerificationError(f"{path}: columns {_describe(reader.schema)}, expected {_describe(expected)}")
    segments, digests, first = [], [], 0
    for number in range(reader.num_record_batches):
        try:
            batch, custom = reader.get_batch_with_custom_metadata(number)
            batch.validate()
        except (OSError, pa.ArrowInvalid) as error:
            raise VerificationError(f"{path}: batch {number} is damaged ({error})") from None
        if any(array.null_count for array in batch.columns):
            raise VerificationError(f"{path}: batch {number} has nulls, expected none")
        offsets = {
            name: array.buffers()[-1].address - whole.address
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        }
        segments.append(Segment(first, batch.num_rows, offsets))
        digests.append((custom or {}).get(DIGEST_KEY, b"").decode("ascii", "replace"))
        first += batch.num_rows
    return ShardLayout.of(segments, batch_rows=spec.batch_rows, source=path), digests


def _open(path: Path) -> tuple[pa.Buffer, pa.ipc.RecordBatchFileReader]:
    """The mapped file and a reader whose batches lie in that map."""
    try:
        whole = pa.memory_map(os.fspath(path)).read_buffer()
        return whole, pa.ipc.open_file(whole)
    except FileNotFoundError:
        raise VerificationError(f"{path}: missing") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise VerificationError(f"{path}: not a whole Arrow file ({error})") from None


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
