"""Events of an extraction -> one live view: units, images/s, failures, time left, what each worker does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol, TextIO

from .extract_events import Event

PLAIN_SECONDS = 5.0  # a log file gets a line this often at most
_JSON_SECONDS = 1.0  # and a machine a progress line


class View(Protocol):
    """Shows what happens; a context, so that a terminal is left tidy."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def begin(self, *, units: int, images: int) -> None:
        """How much there is to do."""

    def handle(self, event: Event) -> None:
        """One event."""


class Tally:
    """Counts over all workers; images of a unit that is lost do not count."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.units = self.images = 0  # in total
        self.units_done = self.quarantined = 0
        self._done = self._failed = 0  # images of finished units
        self._running: dict[str, tuple[str, int, int]] = {}  # worker -> shard, images, failed
        self.workers: dict[str, str] = {}  # worker -> state
        self._start = clock()

    def begin(self, *, units: int, images: int) -> None:
        self.units, self.images = units, images
        self._start = self._clock()

    def handle(self, event: Event) -> None:
        if event.kind == "ready":
            self.workers[event.worker] = "idle"
        elif event.kind == "started":
            self._running[event.worker] = (event.shard, 0, 0)
            self.workers[event.worker] = event.shard
        elif event.kind == "progress":
            shard, images, failed = self._running.get(event.worker, (event.shard, 0, 0))
            self._running[event.worker] = (shard, images + event.images, failed + event.failed)
        elif event.kind in ("done", "error", "lost", "retired"):
            self._running.pop(event.worker, None)
            self.workers[event.worker] = "idle" if event.kind in ("done", "error") else event.kind
            if event.kind == "done":
                self.units_done += 1
                self._done += event.images + event.failed
                self._failed += event.failed
        elif event.kind == "quarantined":
            self.quarantined += 1

    @property
    def images_done(self) -> int:
        return self._done + sum(images for _, images, _ in self._running.values())

    @property
    def failed(self) -> int:
        return self._failed + sum(failed for _, _, failed in self._running.values())

    @property
    def seconds(self) -> float:
        return max(self._clock() - self._start, 1e-9)

    def worker_lines(self) -> list[str]:
        """One line per worker."""
        lines = []
        for worker, state in self.workers.items():
            _, images, failed = self._running.get(worker, ("", 0, 0))
            count = f" {images:,} images" if worker in self._running else ""
            lines.append(f"{worker}: {state}{count}{f', {failed:,} failed' if failed else ''}")
        return lines

    def line(self) -> str:
        """The state as one line."""
        rate = self.images_done / self.seconds
        share = f" ({100 * self.images_done / self.images:.0f}%)" if self.images else ""
        left = (self.images - self.images_done) / rate if rate else 0.0
        parts = [
            f"{self.units_done:,}/{self.units:,} units",
            f"{self.images_done:,}/{self.images:,} images{share}",
            f"{rate:,.3g} images/s",
        ]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} units quarantined")
        if left:
            parts.append(f"{clock_text(left)} left")
        return ", ".join(parts)


class SilentView:
    """Nothing: what library calls use."""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def begin(self, *, units: int, images: int) -> None:
        pass

    def handle(self, event: Event) -> None:
        pass


class PlainView:
    """Lines for logs: what went wrong at once, the counts every few seconds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self.tally = Tally(clock=clock)
        self._last = clock()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def begin(self, *, units: int, images: int) -> None:
        self.tally.begin(units=units, images=images)

    def handle(self, event: Event) -> None:
        self.tally.handle(event)
        if sentence := describe_event(event):
            self._write(sentence)
        elif event.kind in ("progress", "done") and self._clock() - self._last >= PLAIN_SECONDS:
            self._last = self._clock()
            self._write(self.tally.line())

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class JsonView:
    """One JSON object a line, for machines."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self.tally = Tally(clock=clock)
        self._last = -_JSON_SECONDS

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def begin(self, *, units: int, images: int) -> None:
        self.tally.begin(units=units, images=images)
        self._write({"event": "begin", "units": units, "images": images})

    def handle(self, event: Event) -> None:
        self.tally.handle(event)
        if event.kind == "progress":
            if self._clock() - self._last < _JSON_SECONDS:
                return
            self._last = self._clock()
        fields = {name: value for name, value in asdict(event).items() if value}
        fields["event"] = fields.pop("kind")
        tally = self.tally
        self._write(
            {
                **fields,
                "total": {
                    "units_done": tally.units_done,
                    "images_done": tally.images_done,
                    "failed": tally.failed,
                    "images_per_second": round(tally.images_done / tally.seconds, 3),
                },
            }
        )

    def _write(self, value: dict[str, Any]) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._stream.flush()


class TerminalView:
    """A bar and one line per worker, redrawn in place."""

    SHOWN_WORKERS = 16

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.tally = Tally()
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=4)

    def __enter__(self) -> TerminalView:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def begin(self, *, units: int, images: int) -> None:
        self.tally.begin(units=units, images=images)

    def handle(self, event: Event) -> None:
        self.tally.handle(event)
        if sentence := describe_event(event):
            self._console.print(sentence, markup=False, highlight=False)

    def _draw(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally = self.tally
        lines = tally.worker_lines()
        if hidden := len(lines) - self.SHOWN_WORKERS:
            lines = [*lines[: self.SHOWN_WORKERS], f"… and {hidden} more workers"] if hidden > 0 else lines
        bar = ProgressBar(total=max(tally.images, 1), completed=tally.images_done, width=60)
        rows = Table.grid()
        rows.add_row(bar)
        rows.add_row(tally.line())
        for line in lines:
            rows.add_row(Text(f"  {line}", style="dim"))
        return rows


def describe_event(event: Event) -> str | None:
    """The sentence for events a person wants to see, None for the daily ones."""
    where = f"{event.shard}: " if event.shard else ""
    return {
        "ready": f"{event.worker} is ready on {event.text}",
        "error": f"warning: {where}{event.text}",
        "lost": f"warning: {where}{event.worker}: {event.text}; its unit is done again",
        "quarantined": f"warning: {where}given up: {event.text}; its images are recorded as failed",
        "retired": f"note: {event.worker} ended: {event.text}",
        "note": event.text,
    }.get(event.kind)


def clock_text(seconds: float) -> str:
    """3725 -> '1:02:05'; from two days on, days and hours."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
