"""Ranks -> R@1/5/10, median and mean rank, rsum, fold averages and confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .ranks import Ranks, Scores, check_scores, rank_both_ways

CUTOFFS = (1, 5, 10)
DIRECTIONS = ("caption_retrieval", "image_retrieval")  # image -> captions, caption -> images

Ints = npt.NDArray[np.int64]
Metrics = dict[str, Any]


def direction_metrics(ranks: Ints) -> dict[str, float]:
    """Ranks from 1 -> recalls in percent, the median rank (rounded down as in the papers), the mean."""
    if not len(ranks):
        raise InputError("no queries found, expected at least one image with a caption")
    recalls = {f"r@{cutoff}": 100.0 * float((ranks <= cutoff).mean()) for cutoff in CUTOFFS}
    return {**recalls, "medr": float(np.floor(np.median(ranks))), "meanr": float(ranks.mean())}


def summarize(ranks: Ranks) -> Metrics:
    """Ranks in both directions -> the metrics of one test set."""
    metrics: Metrics = {
        "caption_retrieval": direction_metrics(ranks.captions[ranks.captions > 0]),
        "image_retrieval": direction_metrics(ranks.images),
    }
    metrics["rsum"] = _rsum(metrics)
    return metrics


def _rsum(metrics: Metrics) -> float:
    return sum(metrics[direction][f"r@{cutoff}"] for direction in DIRECTIONS for cutoff in CUTOFFS)


def evaluate(
    scores: Scores,
    caption_image: npt.ArrayLike,
    *,
    folds: int = 1,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Metrics:
    """(I, C) scores and each caption's image row -> metrics, averaged over folds of consecutive images.

    Folds are Karpathy's: COCO 1K is five folds of 1,000 consecutive images of the 5K test split.
    """
    owner = np.asarray(caption_image, np.int64)
    check_scores(scores, owner)
    parts = [
        (rank_both_ways(block, block_owner), block_owner)
        for block, block_owner in fold_blocks(scores, owner, folds)
    ]
    metrics = _mean([summarize(ranks) for ranks, _ in parts])
    metrics["folds"] = folds
    if bootstrap:
        metrics["ci"] = _intervals(parts, samples=bootstrap, seed=seed)
    return metrics


def fold_blocks(scores: Scores, owner: Ints, folds: int) -> list[tuple[Scores, Ints]]:
    """The diagonal blocks of consecutive images and their captions."""
    images = len(scores)
    if folds < 1 or images % folds:
        raise InputError(
            f"found {images} images for {folds} folds, expected a fold count that divides them; try --folds 1"
        )
    size = images // folds
    blocks = []
    for start in range(0, images, size):
        columns = np.flatnonzero((owner >= start) & (owner < start + size))
        blocks.append((scores[start : start + size][:, columns], owner[columns] - start))
    return blocks


def _mean(results: list[Metrics]) -> Metrics:
    mean: Metrics = {
        direction: {
            name: float(np.mean([result[direction][name] for result in results]))
            for name in results[0][direction]
        }
        for direction in DIRECTIONS
    }
    mean["rsum"] = _rsum(mean)
    return mean


@dataclass(frozen=True)
class _Hits:
    """Per image: how many of its queries succeed at each cutoff, and how many there are."""

    hits: npt.NDArray[np.float64]  # (I, 2, K)
    queries: npt.NDArray[np.float64]  # (I, 2)


def _intervals(parts: list[tuple[Ranks, Ints]], *, samples: int, seed: int) -> Metrics:
    """95% percentile intervals; images are drawn with all their captions, since those are not independent."""
    counted = [_hits(ranks, owner) for ranks, owner in parts]
    generator = np.random.default_rng(seed)
    recalls = np.zeros((samples, len(DIRECTIONS), len(CUTOFFS)))
    for part in counted:
        images = len(part.queries)
        for sample in range(samples):
            weight = np.bincount(generator.integers(0, images, images), minlength=images).astype(np.float64)
            hits = np.einsum("i,idk->dk", weight, part.hits)
            recalls[sample] += 100 * hits / np.maximum(weight @ part.queries, 1)[:, None] / len(counted)
    low, high = np.percentile(recalls, [2.5, 97.5], axis=0)
    interval: Metrics = {
        direction: {f"r@{cutoff}": [float(low[d, k]), float(high[d, k])] for k, cutoff in enumerate(CUTOFFS)}
        for d, direction in enumerate(DIRECTIONS)
    }
    interval["rsum"] = [float(x) for x in np.percentile(recalls.sum(axis=(1, 2)), [2.5, 97.5])]
    return interval


def _hits(ranks: Ranks, owner: Ints) -> _Hits:
    images = len(ranks.captions)
    hits = np.zeros((images, 2, len(CUTOFFS)))
    queries = np.zeros((images, 2))
    queries[:, 0] = ranks.captions > 0
    np.add.at(queries[:, 1], owner, 1)
    for k, cutoff in enumerate(CUTOFFS):
        hits[:, 0, k] = (ranks.captions > 0) & (ranks.captions <= cutoff)
        np.add.at(hits[:, 1, k], owner, ranks.images <= cutoff)
    return _Hits(hits=hits, queries=queries)


def chance_recalls(caption_image: npt.ArrayLike, *, images: int, folds: int = 1) -> Metrics:
    """What ranking at random reaches on average, in percent: the level below which nothing is learnt."""
    owner = np.asarray(caption_image, np.int64)
    size, captions = images // folds, len(owner) // folds
    own = np.bincount(owner, minlength=images)  # captions of each image
    own = own[own > 0].astype(np.float64)
    metrics: Metrics = {direction: {} for direction in DIRECTIONS}
    for cutoff in CUTOFFS:
        drawn = np.arange(min(cutoff, captions))
        # None of the first `cutoff` captions is the image's own.
        missed = np.prod(np.maximum(captions - own[:, None] - drawn, 0) / (captions - drawn), axis=1)
        metrics["caption_retrieval"][f"r@{cutoff}"] = 100 * float(1 - missed.mean())
        metrics["image_retrieval"][f"r@{cutoff}"] = 100 * min(cutoff / size, 1.0)
    metrics["rsum"] = _rsum(metrics)
    return metrics


def over_seeds(results: list[Metrics]) -> Metrics:
    """Metrics of several runs -> mean and standard deviation (n - 1) of each number."""

    def spread(values: list[float]) -> dict[str, float]:
        return {
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        }

    summary: Metrics = {
        direction: {
            name: spread([result[direction][name] for result in results]) for name in results[0][direction]
        }
        for direction in DIRECTIONS
    }
    summary["rsum"] = spread([result["rsum"] for result in results])
    return summary
