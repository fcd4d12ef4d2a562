"""Scattered rows, by their addresses -> one contiguous buffer, by one thread or several.

Addresses, because a row is a single memmove then: an array object for each costs a twentieth of copying it.

How fast memmove is depends on where its ends lie. Measured on a Zen 4, rows of 147,456 bytes, two threads:
24 to 27 GB/s where both lie alike within 64 bytes, 10 to 20% less where they do not, and 6 to 14 GB/s where
the target lies 1 to 31 bytes further into its page than the source. A large numpy.empty starts 16 bytes into
a page, and the rows of an HDF5 shard at the beginning of one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char, memmove
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_PAGE = 4096


class Gather:
    """Copies rows. Every memmove lets go of the interpreter, so that threads really run side by side."""

    def __init__(self, *, threads: int = 1) -> None:
        assert threads >= 1
        self.threads = threads
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def __call__(self, rows: npt.NDArray[np.int64], out: Array, *, owner: object) -> None:
        """The address of each row, in memory that lives as long as its owner -> out (len(rows), …),
        contiguous."""
        assert out.flags.c_contiguous, "rows are copied whole"
        assert out.flags.writeable, "rows are written"
        assert len(rows) == len(out)
        if not out.size:
            return
        size, target, addresses = out[0].nbytes, out.ctypes.data, rows.tolist()
        copy = _copy_by_torch if _collide(addresses[0], target, size) else _copy
        parts = self.threads if len(rows) >= 2 * self.threads else 1
        bounds = [len(rows) * part // parts for part in range(parts + 1)]

        def part(low: int, high: int) -> None:
            # A thread knows addresses only: what they belong to stays until it ends, even after a Ctrl-C.
            _ = out, owner
            copy(addresses[low:high], target + low * size, size)

        others = [self._threads().submit(part, low, high) for low, high in itertools.pairwise(bounds[1:])]
        part(0, bounds[1])
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


def _collide(row: int, target: int, size: int) -> bool:
    """Whether memmove would crawl; where rows are no whole pages, it does so for few of them."""
    return size % _PAGE == 0 and 0 < (target - row) % _PAGE < 32


def _copy(rows: Sequence[int], target: int, size: int) -> None:
    for place, row in zip(itertools.count(target, size), rows, strict=False):
        memmove(place, row, size)


def _copy_by_torch(rows: Sequence[int], target: int, size: int) -> None:
    # It copies with vector instructions, as fast at any distance. Imported here, as that takes a second.
    import torch

    from .row_copy import SERIAL

    def pieces(address: int) -> Sequence[torch.Tensor]:
        memory = (c_char * size).from_address(address)
        return torch.split(torch.frombuffer(memory, dtype=torch.int64), SERIAL)  # rows are whole pages here

    targets = itertools.islice(itertools.count(target, size), len(rows))
    torch._foreach_copy_(
        [piece for place in targets for piece in pieces(place)],
        [piece for row in rows for piece in pieces(row)],
    )
