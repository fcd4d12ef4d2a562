"""Ranks share every epoch exactly, and agree on its length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.pipeline.batch_plan import BatchPlan


@given(
    samples=st.integers(0, 200),
    batch=st.integers(1, 40),
    world=st.integers(1, 9),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_every_sample_exactly_once_over_all_ranks(
    samples: int, batch: int, world: int, drop_last: bool, data: st.DataObject
) -> None:
    batch = max(batch, world)
    order = np.random.default_rng(samples).permutation(samples)
    plans = [BatchPlan(samples, batch, rank, world, drop_last) for rank in range(world)]
    (steps,) = {plan.steps for plan in plans}
    found: list[int] = []
    for step in range(steps):
        shares = [plan.share(order, step).tolist() for plan in plans]
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= plans[0].largest
        together = [sample for share in shares for sample in share]
        # Whatever the number of ranks, a step is the same part of the order.
        assert together == order[step * batch : (step + 1) * batch].tolist()
        found += together
    expected = order[: samples // batch * batch] if drop_last else order
    assert found == expected.tolist()
    step = data.draw(st.integers(0, steps))
    assert plans[0].step_of(plans[0].done(step)) == step


@given(samples=st.integers(1, 200), batch=st.integers(5, 30), cut=st.floats(0, 1))
def test_four_ranks_begin_and_three_go_on(samples: int, batch: int, cut: float) -> None:
    order = np.random.default_rng(0).permutation(samples)
    steps = BatchPlan(samples, batch, 0, 4, False).steps
    middle = int(cut * steps)
    found: list[int] = []
    for world, part in ((4, range(middle)), (3, range(middle, steps))):
        for step in part:
            for rank in range(world):
                found += BatchPlan(samples, batch, rank, world, False).share(order, step).tolist()
    assert found == order.tolist()


def test_wrong_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="rank 3 of 3; expected 0 to 2"):
        BatchPlan(10, 5, 3, 3)
    with pytest.raises(InputError, match="batch_size 2 is over all ranks"):
        BatchPlan(10, 2, 0, 3)
