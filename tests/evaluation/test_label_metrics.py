"""MAP, NDCG and Micro-F1 against loops; ties count against the model; chance is what random orders give."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.evaluation.label_metrics import (
    CUTOFF,
    best_threshold,
    chance_precision,
    label_metrics,
    micro_f1,
    ndcg_at,
)


def naive(scores: list[float], gains: list[int]) -> tuple[float, float]:
    """One query: sort with the worse answer first among equals, then add up."""
    order = sorted(range(len(scores)), key=lambda answer: (-scores[answer], gains[answer]))
    right, precisions = 0, []
    for place, answer in enumerate(order, start=1):
        if gains[answer] > 0:
            right += 1
            precisions.append(right / place)
    found = sum(gains[a] / log2(place + 1) for place, a in enumerate(order[:CUTOFF], start=1))
    ideal = sum(g / log2(p + 1) for p, g in enumerate(sorted(gains, reverse=True)[:CUTOFF], start=1))
    return sum(precisions) / len(precisions), found / ideal


@settings(max_examples=40)
@given(st.integers(2, 7), st.integers(1, 3), st.integers(1, 5), st.integers(0, 2), st.integers(0, 99))
def test_metrics_equal_the_loops(images: int, each: int, count: int, levels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = (generator.random((images, count)) < 0.5).astype(np.uint8)
    labels[0, 0] = 1
    owner = np.repeat(np.arange(images), each)
    scores = generator.normal(size=(images, images * each)).astype(np.float32)
    if levels:
        scores = np.round(scores * levels).astype(np.float32)
    shared = labels.astype(int) @ labels.T.astype(int)
    found = label_metrics(scores, owner, labels)
    by_image = [
        naive(scores[i].tolist(), shared[i][owner].tolist()) for i in range(images) if labels[i].any()
    ]
    by_text = [
        naive(scores[:, c].tolist(), shared[owner[c]].tolist())
        for c in range(len(owner))
        if labels[owner[c]].any()
    ]
    for direction, expected in (("caption_retrieval", by_image), ("image_retrieval", by_text)):
        values = np.mean(expected, axis=0)
        assert found[direction]["queries"] == len(expected)
        assert found[direction]["map"] == pytest.approx(values[0], abs=1e-12)
        assert found[direction]["ndcg@500"] == pytest.approx(values[1], abs=1e-12)


def test_equal_scores_are_worse_than_chance_and_right_ones_perfect() -> None:
    labels = np.eye(4, dtype=np.uint8)
    flat = label_metrics(np.zeros((4, 4), np.float32), range(4), labels)["caption_retrieval"]
    assert flat["map"] == 0.25
    assert flat["map"] < flat["chance_map"]
    good = label_metrics(np.eye(4, dtype=np.float32), range(4), labels)["caption_retrieval"]
    assert good["map"] == good["ndcg@500"] == 1


@pytest.mark.parametrize(("right", "answers"), [(1, 5), (3, 7), (7, 7)])
def test_chance_is_the_mean_over_orders(right: int, answers: int) -> None:
    generator = np.random.default_rng(0)
    means = []
    for _ in range(4000):
        places = np.sort(generator.permutation(answers)[:right]) + 1
        means.append((np.arange(1, right + 1) / places).mean())
    assert chance_precision(right, answers) == pytest.approx(np.mean(means), abs=0.015)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_micro_f1_and_its_best_threshold(rows: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = (generator.random((rows, count)) < 0.5).astype(np.uint8)
    guesses = np.round(generator.random((rows, count)), 1)

    def slow(threshold: float) -> float:
        both = sum(
            1 for r in range(rows) for c in range(count) if guesses[r, c] >= threshold and labels[r, c]
        )
        taken, right = int((guesses >= threshold).sum()), int(labels.sum())
        return 2 * both / max(1, taken + right)

    values = [slow(threshold) for threshold in np.unique(guesses)]
    for threshold, value in zip(np.unique(guesses), values, strict=True):
        assert micro_f1(guesses, labels, threshold=threshold) == pytest.approx(value)
    assert micro_f1(guesses, labels, threshold=best_threshold(guesses, labels)) == pytest.approx(max(values))


def test_bad_input_is_told() -> None:
    assert ndcg_at(np.zeros(3), 2) == 0
    with pytest.raises(InputError, match="labels of 3 images, expected 2"):
        label_metrics(np.zeros((2, 2), np.float32), [0, 1], np.ones((3, 1), np.uint8))
    with pytest.raises(InputError, match="no query has a label"):
        label_metrics(np.zeros((2, 2), np.float32), [0, 1], np.zeros((2, 1), np.uint8))
