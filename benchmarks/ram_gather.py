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
        f"numpy, {threads} threads": _by_numpy(stored, threads),
        f"torch, {threads} threads": _by_torch(stored, threads),
    }


def _by_numpy(stored: Array, threads: int) -> GatherRows:
    rows, gather = list(stored.reshape(len(stored), -1).view(np.uint8)), Gather(threads=threads)
    return lambda order, out: gather(
        [rows[row] for row in order.tolist()], out.reshape(len(out), -1).view(np.uint8)
    )


def _by_torch(stored: Array, threads: int) -> GatherRows:
    dtype = torch.from_numpy(stored[:1]).dtype
    copy = RowCopy(stored=dtype, wanted=dtype, numbers=stored[0].size)
    rows = copy.sources(stored).unbind()
    pool = ThreadPoolExecutor(max(1, threads - 1))

    def gather(order: npt.NDArray[np.int64], out: Array) -> None:
        picked, targets = [rows[row] for row in order.tolist()], copy.targets(torch.from_numpy(out))
        bounds = [len(picked) * part // threads for part in range(threads + 1)]
        parts = [slice(low, high) for low, high in itertools.pairwise(bounds)]
        step = copy.sections
        others = [
            pool.submit(copy, picked[part], targets[part.start * step : part.stop * step])
            for part in parts[1:]
        ]
        copy(picked[parts[0]], targets)
        for other in others:
            other.result()

    return gather
