"""Chunks in order, in this process and in others, a few at a time."""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Iterator

import pytest

from camp.vocab.workers import available_cores, map_chunks

SETUP = functools.partial(int, 10)


def test_in_this_process() -> None:
    assert list(map_chunks(operator.add, [1, 2, 3], setup=SETUP)) == [11, 12, 13]
    assert list(map_chunks(operator.add, [], setup=SETUP)) == []


def test_in_two_processes_the_order_is_the_same() -> None:
    before = threading.active_count()
    assert list(map_chunks(operator.add, range(20), setup=SETUP, workers=2)) == list(range(10, 30))
    assert threading.active_count() == before


def test_impatience_moves_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert available_cores() == 2
    here = os.getpid()
    processes = list(map_chunks(_process_id, range(4), setup=SETUP, workers=None, patience=0.0))
    assert processes[0] == here
    assert here not in processes[1:]


def test_patience_stays_here() -> None:
    results = list(map_chunks(_process_id, range(4), setup=SETUP, workers=None, patience=1e9))
    assert set(results) == {os.getpid()}


def test_a_long_stream_is_not_read_ahead() -> None:
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield number

    results = map_chunks(operator.add, stream(), setup=SETUP, workers=2)
    assert next(results) == 10
    assert read <= 6
    results.close()  # type: ignore[attr-defined]


def test_an_error_in_a_worker_arrives() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_chunks(operator.floordiv, [5, 0, 1], setup=SETUP, workers=2))


def _process_id(state: int, chunk: int) -> int:
    return os.getpid()
