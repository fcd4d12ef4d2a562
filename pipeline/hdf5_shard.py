"""Blocks of rows <-> one HDF5 file: contiguous datasets, readable by any HDF5 program and by a plain mmap."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ..errors import VerificationError
from .feature_spec import Column, FeatureSpec
from .shard_layout import Segment, ShardLayout

Array = npt.NDArray[Any]

MAGIC = b"\x89HDF\r\n\x1a\n"
META_KEY = "camp"  # attribute of the root: what the shard is, as sealed JSON
DIGEST_KEY = "digests"  # attribute of the root: one per batch of rows

_PAGE = 4096


class Hdf5ShardFile:
    """A shard being written: features go straight to their place, the small columns wait in memory.

    A contiguous dataset cannot grow, so h5py lays out the file in memory, without the features, once the
    number of rows is known; what lies before and behind the features is then written. HDF5 itself never
    touches the disk: when that is full, the library does not raise but crash.
    """

    def __init__(self, path: Path, spec: FeatureSpec, meta: bytes) -> None:
        self._spec, self._meta = spec, meta
        self._file = path.open("xb", buffering=0)
        self._small: dict[str, list[Array]] = {column.name: [] for column in spec.layout()[:-1]}
        self._digests: list[str] = []
        self._start = self._end = _features_offset(spec.layout()[-1])

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, columns: Mapping[str, Array], digest: str) -> None:
        features = np.ascontiguousarray(columns["features"])
        _write_all(self.fileno(), features.reshape(-1).view(np.uint8).data, self._end)
        self._end += features.nbytes
        for name, blocks in self._small.items():
            blocks.append(columns[name].copy())
        self._digests.append(digest)

    def finish(self) -> None:
        """Write what lies around the features; the bytes are then with the operating system."""
        around = _AroundFeatures(self._start, self._end)
        self._lay_out(around)
        _write_all(self.fileno(), memoryview(around.head), 0)
        _write_all(self.fileno(), memoryview(around.tail), self._end)
        os.ftruncate(self.fileno(), around.size)

    def _lay_out(self, around: _AroundFeatures) -> None:
        small = {
            column.name: np.concatenate([np.zeros((0, *column.shape), column.dtype), *blocks])
            for column, blocks in zip(self._spec.layout()[:-1], self._small.values(), strict=True)
        }
        rows = len(small["image_id"])
        with _create(around) as file:
            for column in reversed(self._spec.layout()):
                dataset = _create_contiguous(file, column, rows)
                if column.name == "features":
                    assert dataset.get_offset() == (self._start if rows else None)
                else:
                    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, small[column.name])
            file.attrs[META_KEY] = np.bytes_(self._meta)
            file.attrs[DIGEST_KEY] = np.array(self._digests, "S32")

    def close(self) -> None:
        self._file.close()


class _AroundFeatures(io.RawIOBase):
    """A file in memory with a hole where the features are."""

    def __init__(self, start: int, end: int) -> None:
        self.head, self.tail = bytearray(), bytearray()
        self.size = 0
        self._hole = start, end
        self._position = 0

    def _part(self, count: int) -> tuple[bytearray, int]:
        """Where a read or write of `count` bytes goes: a buffer, and a place in it."""
        start, end = self._hole
        if self._position + count <= start:
            return self.head, self._position
        assert self._position >= end, "h5py touches the features"
        return self.tail, self._position - end

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        assert whence in (os.SEEK_SET, os.SEEK_END)
        self._position = offset if whence == os.SEEK_SET else self.size + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        part, start = self._part(len(target))
        content = part[start : start + len(target)].ljust(len(target), b"\0")
        target[:] = content
        self._position += len(target)
        return len(target)

    def write(self, content: Any) -> int:
        source = memoryview(content).cast("B")
        part, start = self._part(len(source))
        if len(part) < start:
            part.extend(bytes(start - len(part)))
        part[start : start + len(source)] = source
        self._position += len(source)
        self.size = max(self.size, self._position)
        return len(source)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size


def _create(target: io.RawIOBase) -> h5py.File:
    """A new file in which every dataset begins at a page, as any HDF5 since 1.8 reads it."""
    return h5py.File(target, "w", libver=("v108", "v108"), alignment_threshold=1, alignment_interval=_PAGE)


@functools.lru_cache(maxsize=16)
def _features_offset(column: Column) -> int:
    """Where the features begin when they are created first: the same for any number of rows above 0.

    That is why they can be streamed to their place before the number of rows is known.
    """
    with _create(_AroundFeatures(1 << 40, 1 << 40)) as file:
        offset = _create_contiguous(file, column, 1).get_offset()
    assert isinstance(offset, int)
    return offset


def _create_contiguous(file: h5py.File, column: Column, rows: int) -> h5py.h5d.DatasetID:
    """A dataset with room on disk and nothing in it."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # the same rows give the same bytes, whenever they are written
    return h5py.h5d.create(
        file.id,
        column.name.encode(),
        h5py.h5t.py_create(np.dtype(column.dtype).newbyteorder("<")),
        h5py.h5s.create_simple((rows, *column.shape)),
        properties,
    )


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)


def read_hdf5_meta(path: Path) -> bytes:
    """A shard -> the sealed JSON it carries."""
    with _open(path) as file:
        meta = file.attrs.get(META_KEY)
    if not isinstance(meta, bytes):
        raise VerificationError(f"{path}: an HDF5 file, but not a shard of camp-data; import it instead")
    return bytes(meta)


def locate_hdf5(path: Path, spec: FeatureSpec, meta: bytes) -> tuple[ShardLayout, list[str]]:
    """A shard -> where its columns are, and each batch's digest; the datasets must be the spec's."""
    with _open(path) as file:
        if file.attrs.get(META_KEY) != meta:
            raise VerificationError(f"{path}: its description changed")
        rows = len(file["image_id"]) if "image_id" in file else 0
        columns = spec.layout()
        expected = {
            column.name: (np.dtype(column.dtype).newbyteorder("<").str, (rows, *column.shape))
            for column in columns
        }
        found = {name: (item.dtype.str, item.shape) for name, item in file.items() if hasattr(item, "shape")}
        if found != expected:
            raise VerificationError(f"{path}: datasets {found}, expected {expected}")
        offsets = {column.name: file[column.name].id.get_offset() for column in columns}
        digests = [digest.decode("ascii", "replace") for digest in file.attrs.get(DIGEST_KEY, ())]
    if rows == 0:
        return ShardLayout.of([], batch_rows=1, source=path), digests
    if None in offsets.values():
        raise VerificationError(f"{path}: a chunked dataset, expected contiguous ones")
    return ShardLayout.of([Segment(0, rows, offsets)], batch_rows=rows, source=path), digests


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking=False)  # the writer holds its own lock while it checks
    except FileNotFoundError:
        raise VerificationError(f"{path}: missing") from None
    except OSError as error:
        raise VerificationError(f"{path}: not a whole HDF5 file ({error})") from None
