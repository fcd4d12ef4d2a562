"""Running lists equal a sort of the whole matrix, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.evaluation.top_lists import TopLists, from_keys, to_keys


def naive(scores: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """A stable sort of each row; -inf is no answer."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(scores, order, axis=1)
    answers = np.where(np.isneginf(best), -1, order)
    missing = top - answers.shape[1]
    return (
        np.pad(answers, ((0, 0), (0, max(missing, 0))), constant_values=-1),
        np.pad(best, ((0, 0), (0, max(missing, 0))), constant_values=-np.inf),
    )


@settings(max_examples=60)
@given(
    st.integers(1, 7),
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 3),
    st.booleans(),
)
def test_any_cut_gives_the_sorted_lists(
    queries: int, answers: int, top: int, width: int, levels: int, transposed: bool
) -> None:
    generator = np.random.default_rng(queries * 1000 + answers * 10 + top)
    scores = generator.normal(size=(queries, answers)).astype(np.float32)
    if levels:  # few different scores: ties everywhere
        scores = (np.round(scores * levels) / levels + 0.0).astype(np.float32)
    scores[generator.random(scores.shape) < 0.2] = -np.inf
    lists = TopLists(queries, top=top)
    for start in range(0, answers, width):
        tile = torch.from_numpy(scores[:, start : start + width].copy())
        tile = tile.T.contiguous().T if transposed else tile
        lists.add(slice(0, queries), torch.arange(start, start + tile.shape[1]), tile)
    found, values = from_keys(lists.sorted_keys())
    expected, expected_values = naive(scores, top)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values, expected_values)


def test_scores_that_rise_all_the_time_and_a_stop_in_between() -> None:
    scores = torch.arange(400, dtype=torch.float32).view(2, 200)
    lists = TopLists(2, top=5)
    lists.add(slice(0, 2), torch.arange(90), scores[:, :90])
    again = TopLists(2, top=5)
    again.load(lists.sorted_keys(), seen=90)
    for part in (lists, again):
        part.add(slice(0, 2), torch.arange(90, 200), scores[:, 90:])
        assert from_keys(part.sorted_keys())[0].tolist() == [[199, 198, 197, 196, 195]] * 2


@pytest.mark.parametrize("number", [0, 1, 2**31])
def test_keys_go_round(number: int) -> None:
    scores = torch.tensor([-3.5, -0.0, 0.0, 1e-30, 7.0])
    keys = to_keys(scores, torch.full((5,), number))
    answers, values = from_keys(keys)
    assert answers.tolist() == [number] * 5
    np.testing.assert_array_equal(values, scores.numpy())
