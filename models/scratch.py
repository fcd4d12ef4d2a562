"""A shape -> memory that the scores of one tile after another are computed in, never handed out fresh.

A tile's intermediate results are megabytes that live for milliseconds. On a CPU, fresh memory for each costs
more than the arithmetic done in it: the system clears every page first. GPUs have an allocator that keeps
memory, so there this only makes tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from threading import local

import torch
from torch import Tensor

KEPT_BYTES = 64 << 20  # more than a tile needs; what is larger is not kept
CPU_ROWS = 1024  # measured: d-wide rows that stay in the cache and still fill a matrix product
GPU_ROWS = 64 << 10


class _Kept(local):
    """What a thread has been handed so far."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_kept = _Kept()


def scratch(name: str, shape: tuple[int, ...], *, like: Tensor) -> Tensor:
    """Memory with arbitrary content, valid until this thread asks for the same name again."""
    count = prod(shape)
    if like.device.type != "cpu" or count * like.element_size() > KEPT_BYTES:
        return like.new_empty(shape)
    buffers = _kept.buffers
    found = buffers.get((name, like.dtype))
    if found is None or len(found) < count:
        with torch.inference_mode(False):  # a tensor born in inference mode could not be written outside it
            found = buffers[name, like.dtype] = torch.empty(count, dtype=like.dtype)
    return found[:count].view(shape)


def may_overwrite(like: Tensor) -> bool:
    """Whether intermediate results are nobody's: autograd keeps none, no compiler plans the memory, and no
    autocast chooses their precision."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return not torch.is_autocast_enabled(like.device.type)


def row_chunks(attention: Tensor) -> Iterator[slice]:
    """Groups of rows (g, m, …) -> slices of groups whose rows are worked on together."""
    rows = CPU_ROWS if attention.device.type == "cpu" else GPU_ROWS
    groups, step = attention.shape[0], max(1, rows // max(1, attention.shape[1]))
    for start in range(0, groups, step):
        yield slice(start, min(start + step, groups))
