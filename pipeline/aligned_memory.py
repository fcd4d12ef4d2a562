"""A shape -> memory that starts, like the features of a shard, at a multiple of 64 bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """numpy.empty at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)
