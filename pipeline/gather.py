"""Scattered rows, as bytes -> one contiguous buffer, by one thread or several.

How fast memcpy is depends on where its two ends lie. Measured on a Zen 4, rows of 147,456 bytes, two threads:
24 to 27 GB/s where both lie alike within 64 bytes, 10 to 20% less where they do not, and 6 to 14 GB/s where
the target lies 1 to 31 bytes further into its page than the source. A large numpy.empty starts 16 bytes into
a page, and the rows of an HDF5 shard at the beginning of one: the plainest use is the slowest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_PAGE, _ALIGNMENT = 4096, 64


class Gather:
    """Copies rows. Several threads use numpy, which lets go of the interpreter during a copy, so that they
    really run side by side; one alone does better with plain memory, which spends half a microsecond less.
    """

    def __init__(self, *, threads: int = 1) -> None:
        assert threads >= 1
        self.threads = threads
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def __call__(self, rows: Sequence[Array], out: Array) -> None:
        """rows[i], uint8 (n,) -> out[i] of uint8 (len(rows), n), contiguous."""
        count = len(rows)
        if not count:
            return
        copy = _copy_by_torch if _collide(rows[0], out) else _copy
        if self.threads == 1 or count < 2 * self.threads:
            (_copy_alone if copy is _copy else copy)(rows, out)
            return
        bounds = [count * part // self.threads for part in range(self.threads + 1)]
        pool = self._threads()
        others = [
            pool.submit(copy, rows[low:high], out[low:high]) for low, high in itertools.pairwise(bounds[1:])
        ]
        copy(rows[: bounds[1]], out[: bounds[1]])
        for other in others:
            other.result()

    def _threads(self) -> ThreadPoolExecutor:
        # By process, as threads do not survive a fork; setdefault, as two threads may come here first.
        # A pool that loses the race has started no thread.
        if (pool := self._pools.get(os.getpid())) is not None:
            return pool
        new = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="gather")
        return self._pools.setdefault(os.getpid(), new)

    def close(self) -> None:
        """End the threads."""
        if (pool := self._pools.pop(os.getpid(), None)) is not None:
            pool.shutdown()


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """numpy.empty that lies within 64 bytes as shards' rows do."""
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)


def _collide(row: Array, out: Array) -> bool:
    """Whether memcpy would crawl; where rows are no whole pages, it does so for few of them."""
    return out.shape[1] % _PAGE == 0 and 0 < (out.ctypes.data - row.ctypes.data) % _PAGE < 32


def _copy_by_torch(rows: Sequence[Array], out: Array) -> None:
    # Its loop of vector instructions does not mind. Imported here: it takes a second, and few come here.
    import torch

    from .row_copy import RowCopy

    copy = RowCopy(stored=torch.uint8, wanted=torch.uint8, numbers=out.shape[1])
    copy(copy.rows(rows), copy.targets(torch.from_numpy(out)))


def _copy_alone(rows: Sequence[Array], out: Array) -> None:
    target, size = out.reshape(-1).data, out.shape[1]
    for start, row in zip(range(0, out.size, size), rows, strict=True):
        target[start : start + size] = row.data


def _copy(rows: Sequence[Array], out: Array) -> None:
    for target, row in enumerate(rows):
        out[target] = row
