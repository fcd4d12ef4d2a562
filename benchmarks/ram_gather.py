"""Random rows of an array in memory -> a buffer, in every way that may be fastest: the limit of reading."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from camp.pipeline.gather import Gather
from camp.pipeline.row_copy import RowCopy

Array = npt.NDArray[Any]
GatherRows = Callable[[npt.NDArray[np.int64], Array], object]
"""Row numbers and a buffer (n, R, D) for them."""


def ways_to_gather(stored: Array, *, threads: int) -> dict[str, GatherRows]:
    """Rows (n, R, D) in memory -> functions that gather some of them."""
    return {
        "numpy.take": lambda order, out: np.take(stored, order, axis=0, out=out, mode="clip"),
        f"memmove, {threads} threads": _by_memmove(stored, threads),
        f"numpy, {threads} threads": _by_numpy(stored, threads),
        f"torch, {threads} threads": _by_torch(stored, threads),
    }


def _by_memmove(stored: Array, threads: int) -> GatherRows:
    rows, gather = stored.ctypes.data + np.arange(len(stored)) * stored.strides[0], Gather(threads=threads)
    return lambda order, out: gather(rows[order], out, owner=stored)


def _by_numpy(stored: Array, threads: int) -> GatherRows:
    rows = list(stored.reshape(len(stored), -1).view(np.uint8))

    def copy(order: list[int], out: Array) -> None:
        for target, row in enumerate(order):
            out[target] = rows[row]

    parts = _Parts(threads)
    return lambda order, out: parts(copy, order.tolist(), out.reshape(len(out), -1).view(np.uint8))


def _by_torch(stored: Array, threads: int) -> GatherRows:
    dtype = torch.from_numpy(stored[:1]).dtype
    copy = RowCopy(stored=dtype, wanted=dtype, numbers=stored[0].size)
    rows = copy.sources(stored).unbind()

    def some(order: list[int], out: Array) -> None:
        copy([rows[row] for row in order], torch.from_numpy(out))

    parts = _Parts(threads)
    return lambda order, out: parts(some, order.tolist(), out)


class _Parts:
    """Row numbers and a buffer -> a part for each thread."""

    def __init__(self, threads: int) -> None:
        self.threads, self._pool = threads, ThreadPoolExecutor(max(1, threads - 1))

    def __call__(self, copy: Callable[[list[int], Array], None], order: list[int], out: Array) -> None:
        bounds = [len(order) * part // self.threads for part in range(self.threads + 1)]
        first, *rest = [slice(low, high) for low, high in itertools.pairwise(bounds)]
        others = [self._pool.submit(copy, order[part], out[part]) for part in rest]
        copy(order[first], out[first])
        for other in others:
            other.result()
