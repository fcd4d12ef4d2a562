"""Blocks of rows <-> one HDF5 file: contiguous datasets, readable by any HDF5 program and by a plain mmap."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ..errors import VerificationError
from ..files import temporary_name
from .feature_spec import Column, FeatureSpec
from .shard_layout import Segment, ShardLayout

Array = npt.NDArray[Any]

MAGIC = b"\x89HDF\r\n\x1a\n"
META_KEY = "camp"  # attribute of the root: what the shard is, as sealed JSON
DIGEST_KEY = "digests"  # attribute of the root: one per batch of rows

# All metadata fits the first block, the features are allocated first and every dataset begins at a page.
# So they begin here whatever the number of rows, and are streamed here before that number is known.
_FEATURES_OFFSET = 1 << 16
_PAGE = 4096
_COPY_BYTES = 1 << 22


class Hdf5ShardFile:
    """A shard being written: features go straight to their place, the small columns wait in memory.

    A contiguous dataset cannot grow, so h5py makes a skeleton without features (a sparse file) once the
    number of rows is known, and its pages before and behind the features are copied into the shard.
    """

    def __init__(self, path: Path, spec: FeatureSpec, meta: bytes) -> None:
        self._path, self._spec, self._meta = path, spec, meta
        self._file = path.open("x+b", buffering=0)
        self._small: dict[str, list[Array]] = {column.name: [] for column in spec.layout()[:-1]}
        self._digests: list[str] = []
        self._end = _FEATURES_OFFSET

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
        skeleton = temporary_name(self._path)
        try:
            self._write_skeleton(skeleton)
            with skeleton.open("rb", buffering=0) as source:
                size = os.fstat(source.fileno()).st_size
                _copy_range(source.fileno(), self.fileno(), 0, min(size, _FEATURES_OFFSET))
                _copy_range(source.fileno(), self.fileno(), self._end, size)
            os.ftruncate(self.fileno(), size)
        finally:
            skeleton.unlink(missing_ok=True)

    def _write_skeleton(self, path: Path) -> None:
        small = {
            column.name: np.concatenate([np.zeros((0, *column.shape), column.dtype), *blocks])
            for column, blocks in zip(self._spec.layout()[:-1], self._small.values(), strict=True)
        }
        rows = len(small["image_id"])
        with h5py.File(
            path,
            "x",
            libver=("v108", "v108"),
            alignment_threshold=1,
            alignment_interval=_PAGE,
            meta_block_size=_FEATURES_OFFSET,
        ) as file:
            for column in reversed(self._spec.layout()):
                dataset = _create_contiguous(file, column, rows)
                if column.name == "features":
                    assert dataset.get_offset() == (_FEATURES_OFFSET if rows else None)
                else:
                    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, small[column.name])
            file.attrs[META_KEY] = np.bytes_(self._meta)
            file.attrs[DIGEST_KEY] = np.array(self._digests, "S32")

    def close(self) -> None:
        self._file.close()


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


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    """The same bytes at the same place in another file."""
    while start < end:
        piece = os.pread(source, min(_COPY_BYTES, end - start), start)
        _write_all(target, memoryview(piece), start)
        start += len(piece)


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
