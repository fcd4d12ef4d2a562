"""The background thread keeps order and distance, passes errors on, and always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from camp.pipeline.prefetcher import Prefetcher


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order_however_they_are_finished(threads: int) -> None:
    drawn: list[int] = []
    made = [threading.Event() for _ in range(100)]

    def inputs() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    def make(number: int) -> int:
        if threads > 1 and number % 2 == 0:
            assert made[number + 1].wait(30)  # the next one overtakes it
        made[number].set()
        return number * number

    found = list(Prefetcher(make, inputs(), depth=5, name="test", threads=threads))
    assert found == [number * number for number in range(100)]
    assert drawn == list(range(100))


def test_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def make(number: int) -> int:
        together.wait(30)
        return number

    assert list(Prefetcher(make, range(9), depth=3, name="test", threads=3)) == list(range(9))


@pytest.mark.parametrize("threads", [2, 4])
def test_no_thread_is_forgotten_over_thousands_of_results(threads: int) -> None:
    ahead = Prefetcher(lambda number: number, range(5000), depth=threads, name="test", threads=threads)
    assert list(ahead) == list(range(5000))
    ahead.close()


def test_an_error_while_inputs_are_drawn_ends_every_thread() -> None:
    def inputs() -> Iterator[int]:
        yield 0
        raise ValueError("shard train-00001")

    ahead = Prefetcher(lambda number: number, inputs(), depth=4, name="test", threads=4)
    with pytest.raises(ValueError, match="shard train-00001"):
        list(ahead)
    for thread in ahead._threads:
        thread.join(30)
        assert not thread.is_alive()


def test_the_thread_stays_at_most_so_far_ahead() -> None:
    made: list[int] = []
    reached = threading.Semaphore(0)

    def make(step: int) -> int:
        made.append(step)
        reached.release()
        return step

    ahead = Prefetcher(make, range(50), depth=3, name="test")
    for taken in range(10):
        for _ in range(3 if taken == 0 else 1):
            assert reached.acquire(timeout=30)
        assert made == list(range(taken + 3))  # it cannot go on before something is taken
        assert next(ahead) == taken
    ahead.close()


def test_an_error_reaches_the_consumer_once_and_ends_it() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("shard train-00002")
        return step

    ahead = Prefetcher(make, range(50), depth=1, name="test")
    assert next(ahead) == 0
    with pytest.raises(ValueError, match="shard train-00002"):
        list(ahead)
    assert list(ahead) == []
    ahead.close()


def test_an_error_does_not_wait_behind_what_was_prefetched() -> None:
    failed = threading.Event()

    def make(step: int) -> int:
        if step == 2:
            failed.set()
            raise KeyboardInterrupt
        return step

    ahead = Prefetcher(make, range(50), depth=5, name="test")
    failed.wait(30)
    ahead._threads[0].join()
    with pytest.raises(KeyboardInterrupt):
        next(ahead)


def test_closing_while_the_thread_works_waits_for_that_step_alone() -> None:
    working, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make(step: int) -> int:
        working.set()
        go_on.wait(30)
        made.append(step)
        return step

    ahead = Prefetcher(make, range(50), depth=5, name="test")
    working.wait(30)
    closer = threading.Thread(target=ahead.close)
    closer.start()
    with ahead._arrived:
        ahead._arrived.wait_for(lambda: ahead.closed)
    go_on.set()
    closer.join()
    assert made == [0]
    assert list(ahead) == []
    ahead.close()


def test_a_process_that_ends_in_the_middle_does_not_hang() -> None:
    code = """
from camp.pipeline.prefetcher import Prefetcher
ahead = Prefetcher(lambda step: bytes(1000), range(10**9), depth=3, name="test")
next(ahead)
raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 7
