"""A dataset of somebody else's HDF5 file -> its rows: mapped where they lie plain, else through h5py."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ..errors import InputError

Array = npt.NDArray[Any]


class ForeignRows:
    """Rows (axis 0) of one dataset, in this machine's byte order.

    Contiguous data and unfiltered chunks are read from a memory map. Compressed or split ones go through
    h5py (one thread at a time) with a handle that each process opens for itself: one that is carried over a
    fork returns wrong data.
    """

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.path, self.dataset = Path(path), dataset
        with _open(self.path) as file:
            node = file.get(dataset)
            if not isinstance(node, h5py.Dataset) or not node.shape:
                raise InputError(
                    f"{self.path}: no array {dataset!r}; there are {', '.join(_array_names(file)) or 'none'}"
                )
            self.shape: tuple[int, ...] = tuple(node.shape)
            self.stored_dtype = node.dtype
            self.dtype = node.dtype.newbyteorder("=")
            self._blocks = _plain_blocks(node)  # (rows a block, file offset of each block), or None
        self._map: mmap.mmap | None = None
        if self._blocks is not None:
            with self.path.open("rb", buffering=0) as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._handles: dict[int, h5py.File] = {}

    @property
    def mapped(self) -> bool:
        """Whether rows come from a memory map."""
        return self._map is not None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> Array:
        """One row, copied."""
        return self.read(row, 1)[0]

    def read(self, first: int, count: int) -> Array:
        """`count` rows from `first` on, copied."""
        if not 0 <= first <= first + count <= len(self):
            raise IndexError(f"{self.path}: rows {first}..{first + count} of {len(self)}")
        out = np.empty((count, *self.shape[1:]), self.dtype)
        if self._map is None:
            out[...] = self._handle()[self.dataset][first : first + count]
            return out
        assert self._blocks is not None
        block_rows, offsets = self._blocks
        done = 0
        while done < count:
            block, rest = divmod(first + done, block_rows)
            step = min(count - done, block_rows - rest)
            out[done : done + step] = self._view(offsets[block], rest, step)
            done += step
        return out

    def _view(self, offset: int, row: int, count: int) -> Array:
        row_items = int(np.prod(self.shape[1:], dtype=np.int64))
        start = offset + row * row_items * self.stored_dtype.itemsize
        flat = np.frombuffer(self._map, self.stored_dtype, count=count * row_items, offset=start)  # type: ignore[arg-type]
        return flat.reshape(count, *self.shape[1:])

    def _handle(self) -> h5py.File:
        process = os.getpid()
        return self._handles.get(process) or self._handles.setdefault(process, _open(self.path))

    def close(self) -> None:
        """Close this process's handle."""
        if (handle := self._handles.pop(os.getpid(), None)) is not None:
            handle.close()


def _plain_blocks(node: h5py.Dataset) -> tuple[int, list[int]] | None:
    """Where whole rows lie uncompressed in the file, if they do."""
    if node.dtype.kind not in "fiu" or node.is_virtual or node.external or node.size == 0:
        return None
    if node.chunks is None:
        offset = node.id.get_offset()
        return None if offset is None else (node.shape[0], [offset])
    filtered = node.id.get_create_plist().get_nfilters() > 0
    if filtered or node.chunks[1:] != node.shape[1:] or not hasattr(node.id, "chunk_iter"):
        return None
    block_rows = node.chunks[0]
    offsets = [-1] * -(-node.shape[0] // block_rows)

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[0] // block_rows] = chunk.byte_offset

    node.id.chunk_iter(note)
    # A chunk nobody wrote has no place in the file; h5py knows its fill value.
    return None if -1 in offsets else (block_rows, offsets)


def _open(path: Path) -> h5py.File:
    try:
        # Without locking: read-only mounts and network disks refuse it.
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: not a whole HDF5 file ({error})") from None


def _array_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names[:20]
