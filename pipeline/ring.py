"""Batches of rows -> a few large buffers, used over and over."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .aligned_memory import aligned_empty


class Event(Protocol):
    """A point in a stream of work."""

    def query(self) -> bool:
        """Whether the work up to this point is done."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Ring:
    """Buffers (rows, R, D) of one type; pages that are already mapped cost nothing to write again.

    A buffer comes back in one of two ways: `lend` ties it to the life of a tensor, `after` to an event.
    The one that came back last is taken first: part of it may still be in the processor's cache.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype,
        size: int,
        pinned: bool = False,
    ) -> None:
        self.shape, self.dtype, self.size, self.pinned = shape, dtype, size, pinned
        self.made = 0  # buffers ever allocated
        # A list, as finalizers give back at any moment in any thread: append and pop need no lock.
        self._free: list[Tensor] = []
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Event, Tensor]] = deque()

    def take(self) -> Tensor:
        """A free buffer; never waits for the consumer, who may keep as many batches as memory allows."""
        with self._lock:
            while self._waiting and self._waiting[0][0].query():
                self.put_back(self._waiting.popleft()[1])
            try:
                return self._free.pop()
            except IndexError:
                pass
            if self._waiting and self.made >= self.size:
                event, buffer = self._waiting.popleft()
                event.synchronize()
                return buffer
            self.made += 1
        if self.pinned:
            return torch.empty(self.shape, dtype=self.dtype, pin_memory=True)
        # Not torch.empty: NumPy asks for huge pages. A fast consumer got 5 to 12% more rows a second.
        memory = aligned_empty((prod(self.shape) * self.dtype.itemsize,), np.uint8)
        return torch.from_numpy(memory).view(self.dtype).view(self.shape)

    def lend(self, buffer: Tensor, rows: int) -> Tensor:
        """The buffer's first rows as a tensor; when that and all its views are gone, the buffer is free."""
        lease = buffer.view(torch.uint8).numpy()[:rows]  # as bytes: NumPy does not know all of torch's types
        weakref.finalize(lease, self.put_back, buffer).atexit = False
        return torch.from_numpy(lease).view(self.dtype)

    def after(self, event: Event, buffer: Tensor) -> None:
        """The buffer is free once the event has happened."""
        with self._lock:
            self._waiting.append((event, buffer))

    def put_back(self, buffer: Tensor) -> None:
        """The buffer is free now."""
        if len(self._free) < self.size:  # what a greedy consumer made grow goes back to the system
            self._free.append(buffer)
