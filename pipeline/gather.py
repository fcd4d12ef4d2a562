"""Scattered rows -> one contiguous buffer, by one thread or several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


class Gather:
    """Copies rows; numpy lets go of the interpreter during a copy, so threads really run side by side."""

    def __init__(self, *, threads: int = 1) -> None:
        assert threads >= 1
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0

    def __call__(self, rows: Sequence[Array], out: Array) -> None:
        """rows[i] -> out[i], all of the same shape and type."""
        count = len(rows)
        if self.threads == 1 or count < 2 * self.threads:
            _copy(rows, out)
            return
        bounds = [count * part // self.threads for part in range(self.threads + 1)]
        pool = self._threads()
        others = [
            pool.submit(_copy, rows[low:high], out[low:high])
            for low, high in zip(bounds[1:-1], bounds[2:], strict=True)
        ]
        _copy(rows[: bounds[1]], out[: bounds[1]])
        for other in others:
            other.result()

    def _threads(self) -> ThreadPoolExecutor:
        # Threads do not survive a fork; the child starts its own.
        if self._pool is None or self._pool_process != os.getpid():
            self._pool = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="gather")
            self._pool_process = os.getpid()
        return self._pool

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None and self._pool_process == os.getpid():
            self._pool.shutdown()
        self._pool = None


def _copy(rows: Sequence[Array], out: Array) -> None:
    for target, row in enumerate(rows):
        out[target] = row
