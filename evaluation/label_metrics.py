"""Scores and multi-hot labels -> MAP and NDCG@500 both ways, Micro-F1: what shows the same things.

An answer is right when it shares a label with the query, and the more it shares the better: the gain is their
number. Ties count against the model: of equal scores the answers that share less come first. Queries without
labels are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .ranks import Scores, check_scores

CUTOFF = 500

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.integer[Any]]


def label_metrics(scores: Scores, caption_image: npt.ArrayLike, labels: Labels) -> dict[str, Any]:
    """(I, C) scores, each caption's image row and (I, L) labels -> the metrics of both directions."""
    owner = np.asarray(caption_image, np.int64)
    check_scores(scores, owner)
    if len(labels) != len(scores):
        raise InputError(f"labels of {len(labels)} images, expected {len(scores)}")
    shown = np.asarray(labels, np.float32)
    shared = shown @ shown.T  # (I, I) how many labels two images share
    return {
        "caption_retrieval": _direction(
            scores, lambda query: shared[query][owner], queries=np.flatnonzero(shown.any(axis=1))
        ),
        "image_retrieval": _direction(
            scores.T, lambda query: shared[owner[query]], queries=np.flatnonzero(shown[owner].any(axis=1))
        ),
    }


def _direction(scores: Scores, gains_of: Any, *, queries: npt.NDArray[np.int64]) -> dict[str, float]:
    if not len(queries):
        raise InputError("no query has a label; MAP and NDCG need some")
    precision, ndcg, chance = [], [], []
    for query in queries:
        gains: Floats = gains_of(int(query)).astype(np.float64)
        order = np.lexsort((gains, -np.asarray(scores[query])))
        precision.append(average_precision(gains[order] > 0))
        ndcg.append(ndcg_at(gains[order], CUTOFF))
        chance.append(chance_precision(int((gains > 0).sum()), len(gains)))
    return {
        "map": float(np.mean(precision)),
        "chance_map": float(np.mean(chance)),
        f"ndcg@{CUTOFF}": float(np.mean(ndcg)),
        "queries": len(queries),
    }


def average_precision(right: npt.NDArray[np.bool_]) -> float:
    """Right or wrong, best answer first -> the mean precision at the right ones."""
    places = np.flatnonzero(right) + 1
    return float((np.arange(1, len(places) + 1) / places).mean()) if len(places) else 0.0


def ndcg_at(gains: Floats, cutoff: int) -> float:
    """Gains, best answer first -> their discounted sum over the first places, as a share of the best one."""
    discount = 1 / np.log2(np.arange(2, min(cutoff, len(gains)) + 2))
    ideal = np.sort(gains)[::-1][:cutoff]
    best = float((ideal * discount).sum())
    return float((gains[:cutoff] * discount).sum()) / best if best else 0.0


def chance_precision(right: int, answers: int) -> float:
    """The expected average precision of a random order."""
    if not right or answers < 2:
        return float(right > 0)
    harmonic = float((1 / np.arange(1, answers + 1)).sum())
    return ((right - 1) / (answers - 1)) * (1 - harmonic / answers) + harmonic / answers


def micro_f1(guesses: npt.NDArray[np.floating[Any]], labels: Labels, *, threshold: float) -> float:
    """(n, L) guesses, taken where they reach the threshold -> F1 over all labels of all rows."""
    taken, right = guesses >= threshold, np.asarray(labels) > 0
    return float(2 * (taken & right).sum() / max(1, taken.sum() + right.sum()))


def best_threshold(guesses: npt.NDArray[np.floating[Any]], labels: Labels) -> float:
    """The threshold with the highest Micro-F1; choose it on validation data."""
    values = np.asarray(guesses).ravel()
    order = np.argsort(-values, kind="stable")
    found = np.cumsum((np.asarray(labels) > 0).ravel()[order])
    scores = 2 * found / (np.arange(1, len(order) + 1) + found[-1])
    # Guesses of one value are taken together.
    last = np.append(values[order][1:] != values[order][:-1], True)
    return float(values[order][np.where(last, scores, -1.0).argmax()])
