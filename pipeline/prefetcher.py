"""Inputs and a function -> its results in their order, made by background threads a few inputs ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Prefetcher(Generic[S, T]):
    """An iterator. Errors of a thread are raised by the next next(); close() ends the threads at any time.

    Each thread makes whole results: nothing is shared within one, so threads never wait for each other.
    Inputs are drawn in order, by one thread at a time. The threads are daemons: a process that ends while
    somebody still holds the iterator must not hang.
    """

    def __init__(
        self,
        make: Callable[[S], T],
        inputs: Iterable[S],
        *,
        depth: int,  # results that are being made or wait to be taken
        name: str,
        threads: int = 1,
        begin: Callable[[], None] = lambda: None,  # in each thread, before anything else
    ) -> None:
        assert depth >= 1
        self._begin_thread = begin
        self._make, self._depth = make, depth
        self._inputs = iter(inputs)
        self._begun = self._taken = 0  # results
        self._ready: dict[int, T] = {}
        lock = threading.RLock()  # the collector may close a forgotten iterator inside any of these threads
        self._arrived = threading.Condition(lock)  # what the consumer waits for
        self._room = threading.Condition(lock)  # what a thread with nothing to do waits for
        self._drawing = False  # one thread at a time draws an input
        self._error: BaseException | None = None
        self._running = min(threads, depth)
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(self._running)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._begin_thread()
            while (begun := self._begin()) is not None:
                number, given = begun
                del begun
                made = self._make(given)
                del given
                with self._arrived:
                    self._ready[number] = made
                    del made  # a lent buffer must not wait for the next result to come back
                    if number == self._taken:
                        self._arrived.notify()
        except BaseException as caught:
            error = caught
        with self._arrived:
            self._error = self._error or error
            self._running -= 1
            self._wake_all()

    def _begin(self) -> tuple[int, S] | None:
        """The next input and its number, when there is room for its result."""
        with self._room:
            self._room.wait_for(
                lambda: self._over or (not self._drawing and self._begun - self._taken < self._depth)
            )
            if self._over:
                return None
            self._drawing = True
        try:
            for given in self._inputs:  # may take long: advice to the system, shards that are fetched
                number, self._begun = self._begun, self._begun + 1
                return number, given
            return None
        finally:
            with self._room:
                self._drawing = False
                # Only where there is something to do. Measured: with all threads woken at every result, a
                # consumer of 5 ms a batch spent 8% of its time in next(), so about 1%.
                if self._over or self._begun - self._taken < self._depth:
                    self._room.notify()

    @property
    def _over(self) -> bool:
        return self._closed or self._error is not None

    def _wake_all(self) -> None:
        self._arrived.notify_all()
        self._room.notify_all()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._arrived:
            self._arrived.wait_for(lambda: self._over or self._taken in self._ready or not self._running)
            if self._error is not None and not self._closed:
                error, self._error = self._error, None
                self._closed = True
                self._wake_all()
                raise error
            if self._closed or self._taken not in self._ready:
                raise StopIteration
            made = self._ready.pop(self._taken)
            self._taken += 1
            self._room.notify()
            return made

    def close(self) -> None:
        """End the threads and forget what they made; safe to call twice, and while they work."""
        with self._arrived:
            self._closed = True
            self._ready.clear()
            self._wake_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()
