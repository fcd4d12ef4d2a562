"""decode_ahead.py: results in order whatever the threads do; what never ends costs one image."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from camp.pipeline.decode_ahead import DecodeAhead, OverTimeError


@settings(max_examples=25)
@given(
    count=st.integers(0, 40), threads=st.integers(1, 4), ahead=st.integers(0, 8), seed=st.integers(0, 1000)
)
def test_order_is_kept_and_errors_stay_with_their_image(
    count: int, threads: int, ahead: int, seed: int
) -> None:
    generator = random.Random(seed)
    bad = {number for number in range(count) if generator.random() < 0.2}

    def decode(number: int) -> str:
        if number in bad:
            raise ValueError(number)
        return f"image {number}"

    pool = DecodeAhead(decode, threads=threads, seconds=10, ahead=ahead)
    made = list(pool.map(range(count)))
    pool.close()
    assert [number for number, _ in made] == list(range(count))
    for number, result in made:
        if number in bad:
            assert isinstance(result, ValueError)
        else:
            assert result == f"image {number}"


def test_no_more_than_allowed_is_begun_early() -> None:
    begun: list[int] = []

    def source() -> Iterator[int]:
        for number in range(20):
            begun.append(number)
            yield number

    pool: DecodeAhead[int, int] = DecodeAhead(lambda number: number + 1, threads=2, seconds=10, ahead=3)
    made = pool.map(source())
    next(made)
    assert len(begun) == 4
    next(made)
    assert len(begun) == 5
    assert [result for _, result in made] == list(range(3, 21))
    pool.close()


def test_what_never_ends_is_abandoned_and_replaced() -> None:
    release = threading.Event()

    def decode(number: int) -> int:
        if number in (1, 2):
            release.wait()
        return number

    pool = DecodeAhead(decode, threads=1, seconds=0.2, ahead=2)
    made = dict(pool.map(range(6)))
    assert [number for number, result in made.items() if isinstance(result, OverTimeError)] == [1, 2]
    assert str(made[1]) == "took longer than 0.2 s"
    assert [made[number] for number in (0, 3, 4, 5)] == [0, 3, 4, 5]
    assert pool.hanging == 2
    release.set()
    deadline = time.monotonic() + 10
    while pool.hanging and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert pool.hanging == 0  # those that come back end by themselves
    pool.close()
