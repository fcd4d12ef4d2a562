"""A feature set on disk -> rows by position or image id, straight from memory maps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, VerificationError
from ..schema import Regions
from .aligned_memory import aligned_empty
from .feature_index import FAILURES_FILE, FeatureIndex
from .feature_spec import FeatureSpec, parse_shard_name
from .gather import Gather
from .shard_layout import ShardLayout

Array = npt.NDArray[Any]


class Shard:
    """One shard file, mapped: arrays over its columns, without reading them.

    No file handle stays open and no library's lock is involved: threads and forked processes may share it.
    """

    def __init__(self, folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec) -> None:
        """`entry` is a marker, or a shard's part of the index."""
        self.name: str = entry["shard"]
        self.split, _ = parse_shard_name(self.name)
        self.path = folder / entry["file"]
        self.layout = ShardLayout.from_json(entry["layout"], source=self.path)
        self.rows = self.layout.rows
        self.spec = spec
        self._columns = {column.name: column for column in spec.layout()}
        self._map = _map_file(self.path, expected_bytes=entry["bytes"])

    @property
    def extent(self) -> tuple[int, int]:
        """Where in memory the file is mapped, and its size."""
        return np.frombuffer(self._map, np.uint8).ctypes.data, len(self._map)

    def views(self, name: str) -> list[Array]:
        """A column, as one zero-copy array (rows, ...) per batch."""
        return self.layout.column_views(self._map, self._columns[name])

    def blocks(self, name: str) -> tuple[Array, Array]:
        """A column as two zero-copy arrays: (batches, rows, ...) and the shorter tail (0 or 1, rows, ...)."""
        return self.layout.blocks(self._map, self._columns[name])

    def column(self, name: str) -> Array:
        """A column as one array (rows, ...): a view where the file has one batch, else a copy."""
        main, tail = (block.reshape(-1, *self._columns[name].shape) for block in self.blocks(name))
        if not len(main) or not len(tail):
            return main if len(main) else tail
        return np.concatenate([main, tail])

    def row(self, name: str, row: int) -> Array:
        """One row of a column, zero-copy."""
        return self.layout.row_view(self._map, self._columns[name], row)

    def batches(self) -> Iterator[dict[str, Array]]:
        """All columns, a batch of rows at a time, zero-copy; the batches are those that were hashed."""
        views = {name: self.views(name) for name in self._columns}
        for number, view in enumerate(views["image_id"]):
            for first in range(0, len(view), self.spec.batch_rows):
                rows = slice(first, first + self.spec.batch_rows)
                yield {name: columns[number][rows] for name, columns in views.items()}

    def read_randomly(self) -> None:
        """Tell the operating system not to read around what is asked for; a row's neighbours are not next."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_RANDOM)

    def will_need(self, first: int, rows: int, columns: Sequence[str] = ("boxes", "features")) -> None:
        """Tell it that some columns of these rows are read soon."""
        if hasattr(self._map, "madvise"):
            for start, size in self._pages(first, rows, columns):
                self._map.madvise(mmap.MADV_WILLNEED, start, size)

    def let_go(self, first: int, rows: int, columns: Sequence[str] = ("boxes", "features")) -> None:
        """Tell it that they are not needed for long: their pages leave this process, and memory."""
        if not hasattr(self._map, "madvise") or not hasattr(os, "posix_fadvise"):
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for start, size in self._pages(first, rows, columns):
                self._map.madvise(mmap.MADV_DONTNEED, start, size)
                os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def _pages(self, first: int, rows: int, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
        """(start, bytes) of the whole pages under some rows' columns, batch by batch of the file."""
        step, last = self.layout.batch_rows, first + rows
        while first < last:
            count = min(step - first % step, last - first)
            for column in (self._columns[name] for name in columns):
                start = self.layout.row_offset(column, first)
                page = start - start % mmap.PAGESIZE
                stop = -(-(start + count * column.row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
                yield page, min(stop, len(self._map)) - page
            first += count


def _map_file(path: Path, *, expected_bytes: int) -> mmap.mmap:
    try:
        with path.open("rb", buffering=0) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise VerificationError(f"{path}: missing, but the index lists it; run 'camp-data verify'") from None
    except ValueError:
        raise VerificationError(f"{path}: empty, expected {expected_bytes:,} bytes") from None
    if len(mapped) != expected_bytes:
        raise VerificationError(
            f"{path}: {len(mapped):,} bytes, expected {expected_bytes:,}; run 'camp-data verify'"
        )
    return mapped


class ShardReader:
    """All rows of a feature set, numbered from 0 in index order. Threads and forks may share it."""

    def __init__(self, index: FeatureIndex) -> None:
        self.index, self.spec = index, index.spec
        self.shards = [Shard(index.folder, entry, spec=self.spec) for entry in index.shards]
        bounds = np.cumsum([0, *(shard.rows for shard in self.shards)])
        self.bounds: npt.NDArray[np.int64] = bounds  # shard s has the positions bounds[s]..bounds[s + 1]
        self.image_ids: npt.NDArray[np.int64] = self.small_column("image_id")
        self._gathers: dict[int, Gather] = {}

    @classmethod
    def open(cls, folder: Path | str) -> ShardReader:
        """A feature folder -> its rows; reads the index and the ids, not the features."""
        return cls(FeatureIndex.open(Path(folder)))

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the gather threads. The maps go with the last array that uses them."""
        for gather in self._gathers.values():
            gather.close()
        self._gathers = {}

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def small_column(self, name: str) -> Array:
        """A column of all rows, copied: not meant for features."""
        column = next(column for column in self.spec.layout() if column.name == name)
        parts = [block.reshape(-1, *column.shape) for shard in self.shards for block in shard.blocks(name)]
        return np.concatenate([np.empty((0, *column.shape), column.dtype), *parts])

    @cached_property
    def num_regions(self) -> npt.NDArray[np.int32]:
        """(N,) how many of each row's R regions are real."""
        return self.small_column("num_regions")

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """(N, 2) width and height of the original images."""
        return self.small_column("size")

    @cached_property
    def boxes(self) -> npt.NDArray[np.float32]:
        """(N, R, 4) xyxy in original pixels."""
        return self.small_column("boxes")

    @cached_property
    def _addresses(self) -> npt.NDArray[np.int64]:
        """(N,) where in memory each row's features begin, as long as the shards are mapped."""
        parts = [np.empty(0, np.int64)]
        for block in (block for shard in self.shards for block in shard.blocks("features")):
            batches = block.strides[0] * np.arange(block.shape[0])
            rows = block.strides[1] * np.arange(block.shape[1])
            parts.append((block.ctypes.data + batches[:, None] + rows).reshape(-1))
        return np.concatenate(parts)

    @cached_property
    def _by_id(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        order = np.argsort(self.image_ids, kind="stable")
        return self.image_ids[order], order

    def positions(self, split: str | None = None) -> npt.NDArray[np.int64]:
        """The positions of a split's rows (default: all), in index order."""
        parts = [
            np.arange(self.bounds[number], self.bounds[number + 1])
            for number, shard in enumerate(self.shards)
            if split is None or shard.split == split
        ]
        return np.concatenate([np.arange(0), *parts])

    def positions_of(self, image_ids: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Image ids -> positions; an image without a row is an error."""
        wanted = np.asarray(image_ids, np.int64)
        sorted_ids, order = self._by_id
        places = np.searchsorted(sorted_ids, wanted)
        found = places < len(sorted_ids)
        found[found] = sorted_ids[places[found]] == wanted[found]
        if not found.all():
            raise InputError(
                f"{self.index.folder}: no features of image {wanted[~found][0]}; see {FAILURES_FILE} for why"
            )
        return order[places]

    def __contains__(self, image_id: int) -> bool:
        sorted_ids, _ = self._by_id
        place = int(np.searchsorted(sorted_ids, image_id))
        return place < len(sorted_ids) and int(sorted_ids[place]) == image_id

    def features(self, position: int) -> Array:
        """(R, D) of one row, zero-copy, read-only, padding included."""
        number, row = self._place(position)
        return self.shards[number].row("features", row)

    def locate(self, position: int) -> tuple[str, int]:
        """A position -> (shard, row in it), for messages."""
        number, row = self._place(position)
        return self.shards[number].name, row

    def _place(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"row {position} of {len(self)}")
        number = int(np.searchsorted(self.bounds, position, side="right")) - 1
        return number, int(position - self.bounds[number])

    def __getitem__(self, position: int) -> Regions:
        """One row without its padding; the features are a view in the stored type."""
        number, row = self._place(position)
        shard = self.shards[number]
        count = int(shard.row("num_regions", row))
        width, height = shard.row("size", row).tolist()
        return Regions(
            boxes=shard.row("boxes", row)[:count],
            features=shard.row("features", row)[:count],
            width=width,
            height=height,
            **{name: shard.row(name, row)[:count] for name in self.spec.columns},
        )

    def by_id(self, image_id: int) -> Regions:
        """The regions of an image, without padding."""
        return self[int(self.positions_of([image_id])[0])]

    def gather(
        self, positions: Sequence[int] | npt.NDArray[np.int64], *, out: Array | None = None, threads: int = 1
    ) -> Array:
        """The features of many rows -> (len(positions), R, D), into `out` where given.

        A buffer that starts at a multiple of 64 bytes, as torch's do, is filled fastest.
        """
        positions = np.asarray(positions, np.int64)
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"rows {positions.min()}..{positions.max()} of {len(self)}")
        shape = (len(positions), self.spec.regions, self.spec.dim)
        if out is None:
            out = aligned_empty(shape, self.spec.dtype)
        if out.shape != shape or out.dtype != self.spec.dtype:
            raise InputError(f"buffer {out.dtype} {out.shape}, expected {self.spec.dtype} {shape}")
        if not out.flags.writeable:
            raise InputError("buffer is read-only, expected one to write to")
        gather = self._gathers.get(threads) or self._gathers.setdefault(threads, Gather(threads=threads))
        target = out if out.flags.c_contiguous else aligned_empty(shape, self.spec.dtype)
        gather(self._addresses[positions], target, owner=self.shards)
        if target is not out:
            out[...] = target
        return out

    def will_need(self, positions: npt.NDArray[np.int64]) -> None:
        """Tell the operating system that these rows' features are read soon."""
        for position in positions.tolist():
            number, row = self._place(position)
            self.shards[number].will_need(row, 1)
