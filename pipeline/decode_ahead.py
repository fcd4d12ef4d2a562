"""Images in order -> what a function made of each, in order: ahead of need, in threads, with a time limit.

A thread cannot be stopped from outside. One that is over its limit is abandoned: its image counts as failed,
a new thread takes its place, and it ends by itself if it ever comes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


class _Task(Generic[Given, Made]):
    def __init__(self, given: Given) -> None:
        self.given = given
        self.started: float | None = None
        self.thread: threading.Thread | None = None
        self.made: Made | None = None
        self.error: Exception | None = None
        self.ended = False
        self.abandoned = False


class OverTimeError(Exception):
    """An image took longer than it may."""


class DecodeAhead(Generic[Given, Made]):
    """A few daemon threads that stay between calls; close() ends those that can be ended."""

    def __init__(
        self, function: Callable[[Given], Made], *, threads: int, seconds: float, ahead: int
    ) -> None:
        self._function, self._seconds, self._ahead = function, seconds, ahead
        self._tasks: SimpleQueue[_Task[Given, Made] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._abandoned: list[threading.Thread] = []
        self._threads: set[threading.Thread] = set()
        for _ in range(threads):
            self._add_thread()

    @property
    def hanging(self) -> int:
        """How many abandoned threads have not come back."""
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        return len(self._abandoned)

    def map(self, givens: Iterable[Given]) -> Iterator[tuple[Given, Made | Exception]]:
        """Each given and what became of it, in order; `ahead` of them are begun before they are asked for."""
        source, waiting = iter(givens), deque[_Task[Given, Made]]()
        while True:
            while len(waiting) <= self._ahead and (given := next(source, None)) is not None:
                task = _Task[Given, Made](given)
                waiting.append(task)
                self._tasks.put(task)
            if not waiting:
                return
            task = waiting.popleft()
            yield task.given, self._wait(task)

    def close(self) -> None:
        """Let the threads go; those that hang stay behind as daemons."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=self._seconds)
        self._threads.clear()

    def _wait(self, task: _Task[Given, Made]) -> Made | Exception:
        with self._changed:
            while not task.ended:
                # Tasks start in order, so this one has started or will as soon as a thread is free.
                spent = 0.0 if task.started is None else time.monotonic() - task.started
                if spent >= self._seconds:
                    task.abandoned = True
                    assert task.thread is not None
                    self._threads.discard(task.thread)
                    self._abandoned.append(task.thread)
                    self._add_thread()
                    return OverTimeError(f"took longer than {self._seconds:g} s")
                self._changed.wait(self._seconds - spent)
        if task.error is not None:
            return task.error
        made, task.made = task.made, None
        assert made is not None
        return made

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="decode-ahead", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            with self._changed:
                task.started, task.thread = time.monotonic(), threading.current_thread()
                self._changed.notify_all()  # the limit of a waiting consumer counts from here
            made: Made | None = None
            error: Exception | None = None
            try:
                made = self._function(task.given)
            except Exception as caught:
                error = caught
            with self._changed:
                if task.abandoned:
                    return
                task.made, task.error, task.ended = made, error, True
                self._changed.notify_all()
            del task, made, error  # an idle thread must not keep an image alive
