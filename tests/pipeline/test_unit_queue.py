"""unit_queue.py: every unit ends exactly once, whatever happens to the workers."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from camp.pipeline.plan import Unit
from camp.pipeline.unit_queue import BLAME, CAREFUL_AFTER, MAX_ERRORS, MAX_LOSSES, UnitQueue


def _units(count: int) -> list[Unit]:
    return [
        Unit(
            shard=f"train-{number:05d}",
            split="train",
            generation=0,
            first_row=number,
            last_row=number,
            images=1,
            digest="",
        )
        for number in range(count)
    ]


@settings(max_examples=100)
@given(
    count=st.integers(0, 12),
    workers=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    speculate=st.booleans(),
    poisoned=st.sets(st.integers(0, 11)),
)
def test_every_unit_is_finished_or_quarantined_once(
    count: int, workers: int, seed: int, speculate: bool, poisoned: set[int]
) -> None:
    generator = random.Random(seed)
    now = 0.0
    queue = UnitQueue(_units(count), speculate=speculate, clock=lambda: now)
    held: dict[str, list[str]] = {f"w{number}": [] for number in range(workers)}
    finished: list[str] = []
    while not queue.finished:
        now += generator.random()
        worker = generator.choice(list(held))
        if not held[worker]:
            assignment = queue.take(worker)
            if assignment is not None:
                held[worker].append(assignment.unit.shard)
            continue
        shard = held[worker].pop()
        if int(shard[-5:]) in poisoned:
            generator.choice([queue.fail, queue.lose])(worker, shard, "bad")
        elif generator.random() < 0.05:
            queue.give_back(worker, shard)
        elif queue.finish(worker, shard):
            finished.append(shard)
    bad = {unit.shard for unit in _units(count) if int(unit.shard[-5:]) in poisoned}
    assert sorted([*finished, *queue.quarantined]) == [unit.shard for unit in _units(count)]
    assert set(queue.quarantined) == bad
    assert queue.done == len(finished)


def test_errors_and_losses_have_their_own_caps() -> None:
    queue = UnitQueue(_units(1))
    for attempt in range(MAX_ERRORS):
        for _ in range(3):
            assert queue.take("a") is not None
            queue.give_back("a", "train-00000")  # leaves no mark
        queue.take("a")
        assert queue.fail("a", "train-00000", "ValueError: x") == (attempt == MAX_ERRORS - 1)
    queue = UnitQueue(_units(1))
    for attempt in range(MAX_LOSSES):
        assignment = queue.take("a")
        assert assignment is not None
        assert assignment.careful == (attempt >= CAREFUL_AFTER)
        assert queue.lose("a", "train-00000", "worker died") == (attempt == MAX_LOSSES - 1)
    assert queue.quarantined["train-00000"][1] == "worker died"


def test_an_image_that_keeps_killing_workers_is_left_out() -> None:
    queue = UnitQueue(_units(1))
    for _ in range(CAREFUL_AFTER + BLAME):
        queue.take("a")
        queue.lose("a", "train-00000", "killed by SIGSEGV", suspect=7)
    assignment = queue.take("a")
    assert assignment is not None
    assert assignment.careful
    assert assignment.skip == {7: "killed by SIGSEGV"}
    assert queue.finish("a", "train-00000")


def test_a_straggler_is_done_twice_and_counted_once() -> None:
    now = 0.0
    queue = UnitQueue(_units(3), speculate=True, clock=lambda: now)
    queue.take("slow")
    queue.take("fast")
    now = 1.0
    assert queue.finish("fast", "train-00001")
    queue.take("fast")
    now = 2.0
    assert queue.finish("fast", "train-00002")
    assert queue.take("fast") is None  # not yet suspiciously long
    now = 3.5
    again = queue.take("fast")
    assert again is not None
    assert again.unit.shard == "train-00000"
    assert queue.take("third") is None  # two are enough
    assert queue.finish("fast", "train-00000")
    assert not queue.finish("slow", "train-00000")
    assert queue.done == 3
    assert queue.finished
