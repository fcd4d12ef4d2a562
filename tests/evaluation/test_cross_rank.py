"""Cross-retrieval ranks against a loop over pairs."""

from __future__ import annotations

import numpy as np
import pytest

from camp.evaluation.cross_rank import cross_rank_histogram, cross_ranks


def loop(scores: np.ndarray, owner: np.ndarray, per_image: int) -> list[int]:
    ranks = []
    for caption, image in enumerate(owner):
        score = scores[image, caption]
        among_images = 1 + sum(
            scores[other, caption] >= score for other in range(len(scores)) if other != image
        )
        others = [c for c in range(len(owner)) if owner[c] != image]
        among_captions = 1 + sum(scores[image, other] >= score for other in others)
        ranks.append(max(per_image * among_images - (per_image - 1), among_captions))
    return ranks


@pytest.mark.parametrize("levels", [3, 1000])  # with and without ties
def test_against_the_loop(levels: int) -> None:
    owner = np.arange(6).repeat(5)
    scores = np.random.default_rng(levels).integers(0, levels, (6, 30)).astype(np.float32)
    assert cross_ranks(scores, owner).tolist() == loop(scores, owner, 5)


def test_perfect_and_constant() -> None:
    owner = np.arange(4).repeat(5)
    perfect = (owner == np.arange(4)[:, None]).astype(np.float32)
    assert set(cross_ranks(perfect, owner)) == {1}
    assert set(cross_ranks(np.zeros((4, 20)), owner)) == {16}


def test_the_histogram_has_every_pair_once() -> None:
    owner = np.arange(60).repeat(5)
    scores = np.random.default_rng(0).normal(size=(60, 300))
    ranks, shares = cross_ranks(scores, owner), cross_rank_histogram(scores, owner)
    assert list(shares) == ["1", "2–5", "6–10", "11–50", "51–200", ">200"]
    assert sum(shares.values()) == pytest.approx(100)
    assert shares["11–50"] == pytest.approx(100 * np.mean((ranks >= 11) & (ranks <= 50)))
