"""A feature set -> the loader's rows: gathered by threads, converted on the way, watched for changes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import VerificationError
from .feature_spec import FeatureSpec
from .gather import Gather
from .shard_reader import Shard, ShardReader

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
    """The shards of a folder."""

    def __init__(self, folder: Path) -> None:
        self._reader = ShardReader.open(folder)
        self.spec, self.fingerprint = self._reader.spec, self._reader.index.fingerprint
        self.bounds, self.image_ids = self._reader.bounds, self._reader.image_ids
        self.num_regions = self._reader.num_regions

    def shard(self, number: int) -> Shard:
        return self._reader.shards[number]

    def close(self) -> None:
        self._reader.close()


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

        Every shard that is touched is first looked at: one that was removed or changed is an error, not a
        crash of the process.
        """
        shards = np.searchsorted(self.source.bounds, positions, side="right") - 1
        rows = positions - self.source.bounds[shards]
        opened = {number: self._shard(number) for number in np.unique(shards).tolist()}
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
        return boxes

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

    @property
    def tensors(self) -> list[Tensor]:
        """The features again; torch converts half precision thirty times as fast as NumPy."""
        if self._tensors is None:
            with warnings.catch_warnings():
                # torch would rather have memory it may write to; these maps are only ever read.
                warnings.simplefilter("ignore", UserWarning)
                self._tensors = [torch.from_numpy(view) for view in self.features]
        return self._tensors

    def check(self) -> None:
        if self._look() != self._seen:
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
