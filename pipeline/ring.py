"""Batches of rows -> a few large buffers, used over and over."""

from __future__ import annotations

import queue
import weakref
from collections import deque
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream of work."""

    def query(self) -> bool:
        """Whether the work up to this point is done."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Ring:
    """Buffers (rows, R, D) of one type; pages that are already mapped cost nothing to write again.

    A buffer comes back in one of two ways: `lend` ties it to the life of a tensor, `after` to an event.
    """

    def __init__(
        self, shape: tuple[int, ...], *, dtype: torch.dtype, size: int, pinned: bool = False
    ) -> None:
        self.shape, self.dtype, self.size, self.pinned = shape, dtype, size, pinned
        self.made = 0  # buffers ever allocated
        # Filled by finalizers, which run at any moment in any thread: put() of this queue is made for that.
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._waiting: deque[tuple[Event, Tensor]] = deque()

    def take(self) -> Tensor:
        """A free buffer; never waits for the consumer, who may keep as many batches as memory allows."""
        while self._waiting and self._waiting[0][0].query():
            self._give_back(self._waiting.popleft()[1])
        try:
            return self._free.get_nowait()
        except queue.Empty:
            pass
        if self._waiting and self.made >= self.size:
            event, buffer = self._waiting.popleft()
            event.synchronize()
            return buffer
        self.made += 1
        return torch.empty(self.shape, dtype=self.dtype, pin_memory=self.pinned)

    def lend(self, buffer: Tensor, rows: int) -> Tensor:
        """The buffer's first rows as a tensor; when that and all its views are gone, the buffer is free."""
        lease = buffer.numpy()[:rows]
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return torch.from_numpy(lease)

    def after(self, event: Event, buffer: Tensor) -> None:
        """The buffer is free once the event has happened."""
        self._waiting.append((event, buffer))

    def put_back(self, buffer: Tensor) -> None:
        """A buffer that nobody was given."""
        self._give_back(buffer)

    def _give_back(self, buffer: Tensor) -> None:
        if self._free.qsize() < self.size:  # what a greedy consumer made grow goes back to the system
            self._free.put(buffer)
