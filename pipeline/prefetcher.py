"""A function of the step -> its results in order, made by a background thread a few steps ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """An iterator. Errors of the thread are raised by the next next(); close() ends the thread at any time.

    The thread is a daemon: a process that ends while somebody still holds the iterator must not hang.
    """

    def __init__(self, make: Callable[[int], T], steps: Iterable[int], *, depth: int, name: str) -> None:
        assert depth >= 1
        self._make, self._steps, self._depth = make, iter(steps), depth
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False  # the thread makes nothing more
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for step in self._steps:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                    if self._closed:
                        break
                made = self._make(step)
                with self._changed:
                    self._ready.append(made)
                    del made  # a lent buffer must not wait for the next step to come back
                    self._changed.notify_all()
        except BaseException as caught:
            error = caught
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or bool(self._ready))
            if self._error is not None and not self._closed:
                error, self._error = self._error, None
                self._ready.clear()
                raise error
            if self._closed or not self._ready:
                raise StopIteration
            self._changed.notify_all()
            return self._ready.popleft()

    def close(self) -> None:
        """End the thread and forget what it made; safe to call twice, and while the thread works."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
