"""live_view.py: counts over all workers, as lines, as JSON, on a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

import pytest

from camp.pipeline.extract_events import Event
from camp.pipeline.live_view import JsonView, PlainView, Tally, TerminalView, clock_text


def _story() -> Iterable[Event]:
    yield Event(kind="ready", worker="a", text="cpu")
    yield Event(kind="started", worker="a", shard="train-00000")
    yield Event(kind="started", worker="b", shard="train-00001")
    yield Event(kind="progress", worker="a", shard="train-00000", images=3, failed=1)
    yield Event(kind="progress", worker="b", shard="train-00001", images=4)
    yield Event(kind="lost", worker="b", shard="train-00001", text="worker died (killed by SIGKILL)")
    yield Event(kind="done", worker="a", shard="train-00000", images=4, failed=1)
    yield Event(kind="quarantined", shard="train-00001", text="worker died (killed by SIGKILL)")


def test_images_of_a_lost_unit_do_not_count() -> None:
    now = 0.0
    tally = Tally(clock=lambda: now)
    tally.begin(units=2, images=10)
    counts = []
    for event in _story():
        tally.handle(event)
        counts.append((tally.units_done, tally.images_done, tally.failed))
    assert counts[-4:] == [(0, 7, 1), (0, 3, 1), (1, 5, 1), (1, 5, 1)]
    now = 5.0
    assert tally.line() == (
        "1/2 units, 5/10 images (50%), 1 images/s, 1 failed, 1 units quarantined, 0:05 left"
    )
    assert tally.worker_lines() == ["a: idle", "b: lost"]


def test_plain_lines_say_at_once_what_went_wrong() -> None:
    stream = io.StringIO()
    now = 0.0
    with PlainView(stream, clock=lambda: now) as view:
        view.begin(units=2, images=10)
        for event in _story():
            now += 4.0
            view.handle(event)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a is ready on cpu"
    assert lines[1].startswith("0/2 units, 3/10 images (30%)")
    assert "train-00001: b: worker died (killed by SIGKILL); its unit is done again" in lines[2]
    assert lines[-1].startswith("warning: train-00001: given up")


def test_json_lines_are_for_machines() -> None:
    stream = io.StringIO()
    with JsonView(stream, clock=lambda: 1.0) as view:
        view.begin(units=2, images=10)
        for event in _story():
            view.handle(event)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events].count("progress") == 1  # at most one a second
    assert events[-2]["total"] == {
        "units_done": 1,
        "images_done": 5,
        "failed": 1,
        "images_per_second": pytest.approx(5e9),
    }


def test_the_terminal_shows_a_line_per_worker() -> None:
    from rich.console import Console

    view = TerminalView()
    view.begin(units=2, images=10)
    for number in range(20):
        view.tally.handle(Event(kind="ready", worker=f"w{number}"))
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(view._draw())
    text = capture.get()
    assert text.splitlines()[1].strip() == "0/2 units, 0/10 images (0%), 0 images/s"
    assert "w15: idle" in text
    assert "… and 4 more workers" in text
    assert "w16" not in text


def test_clock_text() -> None:
    assert [clock_text(seconds) for seconds in (5, 65, 3725, 200_000)] == [
        "0:05",
        "1:05",
        "1:02:05",
        "2 d 7 h",
    ]
