"""The order is a permutation, a pure function of its key, and as random as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.pipeline.sample_order import EpochKey, Shuffle, draw, sample_order

KEY = EpochKey("f" * 32, 0, 0)
FULL = [6, 2, 9, 11, 1, 10, 0, 7, 8, 3, 5, 4]
WINDOW = [6, 7, 5, 4, 1, 0, 3, 2, 9, 8, 11, 10]
DRAWN = [2, 4, 4, 0, 4, 3, 0, 4, 4, 4, 3, 0]


@given(
    count=st.integers(0, 300),
    block=st.integers(1, 40),
    blocks=st.integers(1, 10),
    kind=st.sampled_from(["none", "full", "window"]),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_every_sample_once_and_windows_apart(
    count: int, block: int, blocks: int, kind: str, seed: int, epoch: int
) -> None:
    shuffle = Shuffle(kind, block, blocks)
    block_of = np.arange(count) // block
    key = EpochKey("data", seed, epoch)
    order = sample_order(count, key=key, shuffle=shuffle, block_of=block_of)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == sample_order(count, key=key, shuffle=shuffle, block_of=block_of).tolist()
    if kind == "window":
        # Each window's blocks are whole, and there are never more than `blocks` of them.
        seen: set[int] = set()
        first = 0
        while first < count:
            window: set[int] = set()
            last = first
            while last < count and len(window | {int(block_of[order[last]])}) <= blocks:
                window.add(int(block_of[order[last]]))
                last += 1
            assert not window & seen
            seen |= window
            first = last


def test_the_order_never_changes_between_releases() -> None:
    """Somebody's run is to be resumed by the next release, on another machine."""
    assert sample_order(12, key=KEY, shuffle=Shuffle()).tolist() == FULL
    window = sample_order(12, key=KEY, shuffle=Shuffle("window", 2, 2), block_of=np.arange(12) // 2)
    assert window.tolist() == WINDOW
    assert draw(np.full(12, 5), key=KEY).tolist() == DRAWN


def test_seed_epoch_and_data_each_give_another_order() -> None:
    keys = [KEY, EpochKey("f" * 32, 1, 0), EpochKey("f" * 32, 0, 1), EpochKey("e" * 32, 0, 0)]
    orders = {tuple(sample_order(50, key=key, shuffle=Shuffle()).tolist()) for key in keys}
    assert len(orders) == len(keys)


def test_every_permutation_is_as_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        order = tuple(sample_order(4, key=EpochKey("x", 0, epoch), shuffle=Shuffle()).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom, one in a thousand; the seeds are fixed


def test_draws_are_even() -> None:
    counts = np.full(20_000, 5)
    chosen = draw(counts, key=KEY)
    assert ((chosen >= 0) & (chosen < 5)).all()
    assert (np.abs(np.bincount(chosen, minlength=5) - 4000) < 250).all()
    assert draw(np.array([1, 1, 1]), key=KEY).tolist() == [0, 0, 0]


def statistics(order: np.ndarray, block: int, batch: int = 128) -> dict[str, float]:
    """How far an order is from the order on disk."""
    count = len(order)
    batches = order[: count // batch * batch].reshape(-1, batch)
    # A property that whole blocks share, as when a data set was collected topic by topic.
    topic = np.random.default_rng(0).standard_normal(count // block + 1)[order // block]
    means = topic[: batches.size].reshape(batches.shape).mean(axis=1)
    return {
        "displacement": float(np.abs(order - np.arange(count)).mean() / count),
        "step": float(np.abs(np.diff(order)).mean() / count),
        "blocks in a batch": float(np.mean([len(np.unique(row // block)) for row in batches])),
        "variance of batch means": float(means.var() * batch / topic.var()),
    }


def test_windows_are_nearly_as_random_as_a_full_permutation() -> None:
    count, block, blocks = 40_000, 64, 64
    block_of = np.arange(count) // block
    full = statistics(sample_order(count, key=KEY, shuffle=Shuffle()), block)
    window = statistics(
        sample_order(count, key=KEY, shuffle=Shuffle("window", block, blocks), block_of=block_of), block
    )
    # Displacement and steps of a permutation are a third of its length.
    for name in ("displacement", "step"):
        assert full[name] == pytest.approx(1 / 3, abs=0.005)
        assert window[name] == pytest.approx(1 / 3, abs=0.02)
    assert full["blocks in a batch"] > 110
    assert window["blocks in a batch"] > 50  # of 64
    assert full["variance of batch means"] == pytest.approx(1, abs=0.25)
    assert window["variance of batch means"] < 4


def test_settings_are_read_from_text() -> None:
    assert Shuffle.of("full") == Shuffle()
    assert Shuffle.of(None) == Shuffle.of("none") == Shuffle("none")
    assert Shuffle.of("window") == Shuffle("window", 64, 128)
    assert Shuffle.of("window(32, 8)") == Shuffle("window", 32, 8)
    for shuffle in (Shuffle(), Shuffle("none"), Shuffle("window", 3, 4)):
        assert Shuffle.of(str(shuffle)) == shuffle
    for wrong in ("window(0, 4)", "windows", ""):
        with pytest.raises(InputError):
            Shuffle.of(wrong)
