"""A feature set -> the loader's rows: gathered by threads, converted on the way, watched for changes."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import VerificationError
from .bus_guard import GUARD
from .feature_index import FeatureIndex
from .feature_spec import FeatureSpec
from .gather import Gather
from .shard_reader import Shard

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

_SERIAL = 32_768 - 1  # numbers; torch copies so many without waking its own threads


class ShardSource(Protocol):
    """Where shards come from: a folder, or a cache of a remote one."""

    spec: FeatureSpec
    fingerprint: str
    bounds: Integers  # (shards + 1,) shard s has the rows bounds[s]..bounds[s + 1]
    image_ids: Integers  # (rows,)
    num_regions: npt.NDArray[np.int32]  # (rows,)

    def shard(self, number: int) -> Shard:
        """A mapped shard; may take long where it has to be fetched."""

    def close(self) -> None: ...


class LocalShards:
    """The shards of a folder, mapped at once; only ids and counts are read."""

    def __init__(self, folder: Path) -> None:
        index = FeatureIndex.open(folder)
        self.spec, self.fingerprint = index.spec, index.fingerprint
        self._shards = [Shard(folder, entry, spec=index.spec) for entry in index.shards]
        self.bounds = np.cumsum([0, *(shard.rows for shard in self._shards)])
        for shard in self._shards:
            # Without this, a disk that reads megabytes around every fault would read most of the features.
            shard.read_randomly()
            shard.will_need(0, shard.rows, ("image_id", "num_regions"))
        self.image_ids: Integers = self._column("image_id", np.int64)
        self.num_regions: npt.NDArray[np.int32] = self._column("num_regions", np.int32)

    def _column(self, name: str, dtype: npt.DTypeLike) -> Array:
        views = [view for shard in self._shards for view in shard.views(name)]
        return np.concatenate([np.empty(0, dtype), *views])

    def shard(self, number: int) -> Shard:
        return self._shards[number]

    def close(self) -> None:
        pass


class FeatureRows:
    """Rows of a shard source by position."""

    def __init__(self, source: ShardSource, *, threads: int) -> None:
        self.source, self.spec = source, source.spec
        self._copy = Gather(threads=threads)
        self._convert = Gather(threads=threads, copy=_convert)
        self._open: dict[int, _OpenShard] = {}

    def __len__(self) -> int:
        return int(self.source.bounds[-1])

    def close(self) -> None:
        """End the threads; gathering again starts new ones."""
        self._copy.close()
        self._convert.close()

    def gather(self, positions: Integers, out: Tensor) -> Array:
        """The features of some rows -> `out` (n, R, D) in out's type; the boxes (n, R, 4) are returned.

        Every shard that was touched is looked at afterwards: one that was removed or changed, before or
        during the copy, is an error that names it.
        """
        shards = np.searchsorted(self.source.bounds, positions, side="right") - 1
        rows = positions - self.source.bounds[shards]
        opened = {number: self._shard(number) for number in np.unique(shards).tolist()}
        if not GUARD.available:  # then a shard that was cut short must not be touched
            for shard in opened.values():
                shard.check()
        places = [(opened[shard], row) for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)]
        boxes = np.empty((len(positions), self.spec.regions, 4), np.float32)
        for number, (shard, row) in enumerate(places):
            boxes[number] = shard.boxes[row // shard.step][row % shard.step]
        if out.dtype == getattr(torch, self.spec.dtype):
            self._copy(
                [shard.features[row // shard.step][row % shard.step] for shard, row in places], out.numpy()
            )
        else:
            self._convert([shard.tensors[row // shard.step][row % shard.step] for shard, row in places], out)
        for shard in opened.values():
            shard.check()
        return boxes

    def will_need(self, positions: Integers) -> None:
        """Ask the operating system for some rows' features ahead of time."""
        for shard, first, count in self._runs(positions):
            self._shard(shard).shard.will_need(first, count)

    def let_go(self, positions: Integers) -> None:
        """Give their pages back to it."""
        for shard, first, count in self._runs(positions):
            if shard in self._open:
                self._open[shard].let_go(first, count)

    def _runs(self, positions: Integers) -> Iterator[tuple[int, int, int]]:
        """Rows -> (shard, first row, count) of those that lie together."""
        rows = np.unique(positions)
        shards = np.searchsorted(self.source.bounds, rows, side="right") - 1
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(shards) != 0)) + 1
        for run in np.split(np.arange(len(rows)), ends) if len(rows) else []:
            shard = int(shards[run[0]])
            yield shard, int(rows[run[0]] - self.source.bounds[shard]), len(run)

    def _shard(self, number: int) -> _OpenShard:
        shard = self.source.shard(number)
        known = self._open.get(number)
        if known is None or known.shard is not shard:
            known = self._open[number] = _OpenShard(shard)
        return known


class _OpenShard:
    """A shard's arrays, and what its file looked like when it was opened."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.step = shard.layout.batch_rows
        self.features = shard.views("features")  # (rows, R, D) per batch of `step` rows
        self.boxes = shard.views("boxes")
        self._tensors: list[Tensor] | None = None
        self._path = os.fspath(shard.path)
        self._seen = self._look()
        self._start, size = shard.extent
        GUARD.watch(self._start, size)
        weakref.finalize(self, GUARD.unwatch, self._start).atexit = False

    @property
    def tensors(self) -> list[Tensor]:
        """The features again; torch converts half precision thirty times as fast as NumPy."""
        if self._tensors is None:
            with warnings.catch_warnings():
                # torch would rather have memory it may write to; these maps are only ever read.
                warnings.simplefilter("ignore", UserWarning)
                self._tensors = [torch.from_numpy(view) for view in self.features]
        return self._tensors

    def let_go(self, first: int, rows: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # check() says it better
            self.shard.let_go(first, rows)

    def check(self) -> None:
        if self._look() != self._seen or GUARD.was_hit(self._start):
            raise VerificationError(
                f"{self._path}: changed while it was being read; "
                "run 'camp-data verify', then start again from the last checkpoint"
            )

    def _look(self) -> tuple[int, int, int]:
        try:
            state = os.stat(self._path)  # noqa: PTH116 - once per shard and batch
        except FileNotFoundError:
            raise VerificationError(
                f"{self._path}: disappeared while it was being read; "
                "restore it or run 'camp-data verify', then start again from the last checkpoint"
            ) from None
        return state.st_ino, state.st_size, state.st_mtime_ns


def _convert(rows: Sequence[Tensor], out: Tensor) -> None:
    """Rows of one type -> `out` of another, in pieces so small that torch stays in this thread."""
    for source, target in zip(rows, out.unbind(), strict=True):
        flat, into = source.view(-1), target.view(-1)
        for first in range(0, len(flat), _SERIAL):
            into[first : first + _SERIAL].copy_(flat[first : first + _SERIAL])


def available_threads() -> int:
    """Threads that gather: memory is saturated by a few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 4)
