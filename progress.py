"""Counts of finished work -> a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

PLAIN_SECONDS = 5.0  # a log file gets a line this often at most


class Bar(Protocol):
    """One running task."""

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None:
        """A short state shown behind the numbers: a split, a loss, a count of failures."""


ProgressFactory = Callable[[str, int | None, str], AbstractContextManager[Bar]]
"""(label, total or None, unit) -> a context that gives a Bar."""


class _SilentBar:
    def advance(self, count: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@contextlib.contextmanager
def no_progress(label: str, total: int | None, unit: str) -> Iterator[Bar]:
    """The default of every library call: says nothing."""
    yield _SilentBar()


class PlainBar:
    """Lines for logs: the first after PLAIN_SECONDS, the last always."""

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str,
        *,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._stream, self._clock = stream, clock
        self._start = self._last = clock()
        self.done = 0
        self._note = ""

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = self._clock()
        if now - self._last >= PLAIN_SECONDS:
            self._last = now
            self._write(self.line())

    def note(self, text: str) -> None:
        self._note = text

    def line(self) -> str:
        """The state as one line: done, share, rate and time left."""
        seconds = max(self._clock() - self._start, 1e-9)
        rate = self.done / seconds
        of_total = f"/{self.total:,} ({100 * self.done / self.total:.0f}%)" if self.total else ""
        left = ""
        if self.total and rate > 0 and self.done < self.total:
            left = f", {_clock_text((self.total - self.done) / rate)} left"
        note = f" · {self._note}" if self._note else ""
        return f"{self.label}: {self.done:,}{of_total} {self.unit}, {rate:,.0f} {self.unit}/s{left}{note}"

    def close(self) -> None:
        self._write(f"{self.line()}, took {_clock_text(self._clock() - self._start)}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def terminal_progress(label: str, total: int | None, unit: str) -> Iterator[Bar]:
    """What the commands use: a rich bar on stderr, or plain lines when stderr is not a terminal."""
    if not sys.stderr.isatty():
        plain = PlainBar(label, total, unit, stream=sys.stderr)
        try:
            yield plain
        finally:
            plain.close()
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[rate]}"),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}"),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as view:
        yield _RichBar(view, view.add_task(label, total=total, rate="", note=""), unit)


class _RichBar:
    def __init__(self, view: object, task: int, unit: str) -> None:
        self._view, self._task, self._unit = view, task, unit

    def advance(self, count: int = 1) -> None:
        from rich.progress import Progress, TaskID

        assert isinstance(self._view, Progress)
        speed = self._view.tasks[self._task].speed
        rate = f"{speed:,.0f} {self._unit}/s" if speed else ""
        self._view.update(TaskID(self._task), advance=count, rate=rate)

    def note(self, text: str) -> None:
        from rich.progress import Progress, TaskID

        assert isinstance(self._view, Progress)
        self._view.update(TaskID(self._task), note=text)
