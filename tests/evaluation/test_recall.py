"""Recall against a naive oracle and on matrices whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.evaluation import ranks as ranks_module
from camp.evaluation.average_precision import mean_average_precision_at_r
from camp.evaluation.ranks import rank_both_ways
from camp.evaluation.recall import evaluate, over_seeds, summarize


def naive_ranks(scores: npt.NDArray[Any], owner: list[int]) -> tuple[list[int], list[int]]:
    """The definition, in loops."""
    captions, images = [], []
    for image in range(scores.shape[0]):
        own = [scores[image, c] for c in range(len(owner)) if owner[c] == image]
        if not own:
            captions.append(0)
            continue
        wrong = [scores[image, c] for c in range(len(owner)) if owner[c] != image]
        captions.append(1 + sum(1 for score in wrong if score >= max(own)))
    for caption, image in enumerate(owner):
        wrong = [scores[i, caption] for i in range(scores.shape[0]) if i != image]
        images.append(1 + sum(1 for score in wrong if score >= scores[image, caption]))
    return captions, images


@st.composite
def matrices(draw: st.DrawFn) -> tuple[npt.NDArray[np.float64], list[int]]:
    images = draw(st.integers(1, 7))
    owner = draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=12))
    values = st.lists(st.integers(-2, 2), min_size=images * len(owner), max_size=images * len(owner))
    return np.array(draw(values), np.float64).reshape(images, len(owner)), owner


@settings(max_examples=300)
@given(matrices(), st.sampled_from([1, 64, 1 << 20]))
def test_ranks_equal_the_definition(matrix: tuple[npt.NDArray[np.float64], list[int]], tile: int) -> None:
    scores, owner = matrix
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "_TILE_BYTES", tile)
        ranks = rank_both_ways(scores, owner)
    assert (ranks.captions.tolist(), ranks.images.tolist()) == naive_ranks(scores, owner)


def five_each(images: int) -> npt.NDArray[np.int64]:
    return np.arange(images).repeat(5)


def test_a_perfect_matrix_is_perfect() -> None:
    owner = five_each(20)
    scores = (owner == np.arange(20)[:, None]).astype(np.float32)
    metrics = evaluate(scores, owner)
    assert metrics["rsum"] == 600
    assert metrics["caption_retrieval"]["medr"] == 1
    assert metrics["ci"]["rsum"] == [600, 600]


@pytest.mark.parametrize("value", [0.0, -np.inf, np.inf])
def test_a_constant_scorer_gets_nothing(value: float) -> None:
    metrics = evaluate(np.full((20, 100), value), five_each(20), bootstrap=0)
    assert metrics["rsum"] == 0
    assert metrics["image_retrieval"]["meanr"] == 20
    assert metrics["caption_retrieval"]["meanr"] == 96  # behind all 95 wrong captions


def test_the_best_of_an_image_s_captions_counts() -> None:
    scores = np.zeros((2, 10))
    scores[0, :5] = [-9, -9, 3, -9, -9]
    scores[0, 5:] = 2
    scores[1, 5:] = [1, 0, 0, 0, 0]
    scores[1, :5] = [5, 6, 0, 0, 0]
    ranks = rank_both_ways(scores, five_each(2))
    assert ranks.captions.tolist() == [1, 3]


def test_folds_are_consecutive_images_and_their_average() -> None:
    generator = np.random.default_rng(0)
    owner = five_each(30)
    scores = generator.normal(size=(30, 150)) + 1.5 * (owner == np.arange(30)[:, None])
    metrics = evaluate(scores, owner, folds=3)
    blocks = [
        summarize(rank_both_ways(scores[s : s + 10, 5 * s : 5 * s + 50], five_each(10))) for s in (0, 10, 20)
    ]
    for direction in ("caption_retrieval", "image_retrieval"):
        for name, value in metrics[direction].items():
            assert value == pytest.approx(np.mean([block[direction][name] for block in blocks]))
    # The sum of the averaged recalls, not six times one of them.
    assert metrics["rsum"] == pytest.approx(np.mean([block["rsum"] for block in blocks]))
    assert evaluate(scores, owner)["rsum"] < metrics["rsum"]


def test_intervals_hold_the_estimate_and_are_reproducible() -> None:
    generator = np.random.default_rng(1)
    owner = five_each(50)
    scores = generator.normal(size=(50, 250)) + (owner == np.arange(50)[:, None])
    metrics = evaluate(scores, owner, seed=3)
    for direction in ("caption_retrieval", "image_retrieval"):
        for cutoff in ("r@1", "r@5", "r@10"):
            low, high = metrics["ci"][direction][cutoff]
            assert low <= metrics[direction][cutoff] <= high
            assert low < high
    assert evaluate(scores, owner, seed=3) == metrics


def test_seeds_are_averaged() -> None:
    owner = five_each(10)
    runs = [evaluate(np.random.default_rng(s).normal(size=(10, 50)), owner, bootstrap=0) for s in range(3)]
    summary = over_seeds(runs)
    assert summary["rsum"]["mean"] == pytest.approx(np.mean([run["rsum"] for run in runs]))
    assert summary["rsum"]["std"] == pytest.approx(np.std([run["rsum"] for run in runs], ddof=1))


@pytest.mark.parametrize(
    ("scores", "owner", "folds", "message"),
    [
        (np.zeros((3, 4)), [0, 1, 2], 1, "found shape 3×4, expected images × 3 captions"),
        (np.zeros((2, 3)), [0, 1, 2], 1, "found 2 images, but a caption belongs to image 2"),
        (np.array([[0.0, np.nan]]), [0, 0], 1, "found NaN at image 0, caption 1"),
        (np.zeros((10, 10)), list(range(10)), 3, "found 10 images for 3 folds"),
    ],
)
def test_bad_matrices(scores: npt.NDArray[Any], owner: list[int], folds: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(scores, owner, folds=folds)


@settings(max_examples=100)
@given(matrices())
def test_map_at_r_equals_the_definition(matrix: tuple[npt.NDArray[np.float64], list[int]]) -> None:
    scores, owner = matrix

    def query(values: list[float], right: set[int]) -> float:
        order = sorted(range(len(values)), key=lambda i: (-values[i], i in right))  # wrong first in a tie
        total = found = 0.0
        for place, item in enumerate(order[: len(right)], start=1):
            if item in right:
                found += 1
                total += found / place
        return total / len(right)

    per_image = [
        query(list(scores[i]), {c for c in range(len(owner)) if owner[c] == i})
        for i in range(len(scores))
        if i in owner
    ]
    per_caption = [query(list(scores[:, c]), {owner[c]}) for c in range(len(owner))]
    result = mean_average_precision_at_r(scores, owner)
    assert result["caption_retrieval"] == pytest.approx(100 * np.mean(per_image))
    assert result["image_retrieval"] == pytest.approx(100 * np.mean(per_caption))
