"""A cheap score matrix and an expensive scorer -> ranks after the top k of every query are scored again.

As in CAMP's supplementary (Tables 1 and 2): the cheap model ranks everything, the expensive one re-orders the
first k% of each query, in both directions. A pair that both directions need is scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .ranks import Ranks, Scores, check_scores

Ints = npt.NDArray[np.int64]
ScorePairs = Callable[[Ints, Ints], npt.NDArray[np.floating]]
"""(image rows, caption columns) -> one expensive score per pair."""


@dataclass(frozen=True)
class Reranked:
    """Ranks after re-scoring, and how many of the I × C pairs that took."""

    ranks: Ranks
    pairs: int


def parse_top(text: str, candidates: int) -> int:
    """'10%' or '50' of so many candidates -> a count of at least 1."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else None
        count = int(text) if share is None else int(np.ceil(share * candidates))
    except ValueError:
        count = 0
    if count < 1 or (text.endswith("%") and not 0 < float(text[:-1]) <= 100):
        raise InputError(f"--top: found {text!r}, expected a share such as 10% or a count such as 50")
    return min(count, candidates)


def rerank(
    cheap: Scores, caption_image: npt.ArrayLike, score_pairs: ScorePairs, *, captions: int, images: int
) -> Reranked:
    """Re-score the best `captions` captions of each image and the best `images` images of each caption."""
    owner = np.asarray(caption_image, np.int64)
    check_scores(cheap, owner)
    top_captions = top_columns(cheap, captions)  # (I, k)
    top_images = top_columns(cheap.T, images)  # (C, k')
    image_count, caption_count = cheap.shape
    wanted = np.unique(
        np.concatenate(
            [
                (np.arange(image_count)[:, None] * caption_count + top_captions).ravel(),
                (top_images * caption_count + np.arange(caption_count)[:, None]).ravel(),
            ]
        )
    )
    scored = np.asarray(score_pairs(wanted // caption_count, wanted % caption_count))
    if np.isnan(scored).any():
        raise InputError("reranking: the expensive model gave NaN scores")

    def look_up(rows: Ints, columns: Ints) -> npt.NDArray[np.floating]:
        return scored[np.searchsorted(wanted, rows * caption_count + columns)]

    by_image = _ranks(
        cheap,
        top_captions,
        look_up(np.arange(image_count)[:, None], top_captions),
        right=lambda rows, columns: owner[columns] == rows,
    )
    by_image[np.bincount(owner, minlength=image_count) == 0] = 0
    by_caption = _ranks(
        cheap.T,
        top_images,
        look_up(top_images, np.arange(caption_count)[:, None]),
        right=lambda rows, columns: owner[rows] == columns,
    )
    return Reranked(ranks=Ranks(captions=by_image, images=by_caption), pairs=len(wanted))


def top_columns(scores: Scores, count: int) -> Ints:
    """(Q, A) -> (Q, k), each query's k highest-scoring answers in no order; ties go to the earlier answer."""
    queries, answers = scores.shape
    count = min(count, answers)
    top = np.empty((queries, count), np.int64)
    for start in range(0, queries, 256):
        # A stable sort of the negated tile: the order of equal scores must not depend on the partition.
        tile = np.argsort(-np.asarray(scores[start : start + 256]), axis=1, kind="stable")
        top[start : start + 256] = tile[:, :count]
    return top


def _ranks(
    cheap: Scores,
    top: Ints,
    again: npt.NDArray[np.floating],
    *,
    right: Callable[[Ints, Ints], npt.NDArray[np.bool_]],
) -> Ints:
    """Cheap scores (Q, A), the re-scored answers (Q, k) and their scores -> ranks of the best right answers.

    Re-scored answers stand before all others. A right answer among them ranks by its new score, ties against
    it; otherwise by its cheap one, behind the k and behind every wrong answer that scores at least as high.
    """
    queries, answers = cheap.shape
    ranks = np.empty(queries, np.int64)
    for query in range(queries):
        row = np.full(top.shape[1], query)
        is_right = right(row, top[query])
        if is_right.any():
            best = again[query][is_right].max()
            ranks[query] = 1 + int((again[query][~is_right] >= best).sum())
            continue
        rest = np.setdiff1d(np.arange(answers), top[query], assume_unique=True)
        rest_right = right(np.full(len(rest), query), rest)
        scores = np.asarray(cheap[query])[rest]
        best = scores[rest_right].max() if rest_right.any() else -np.inf
        ranks[query] = 1 + top.shape[1] + int((scores[~rest_right] >= best).sum())
    return ranks


def mean_scores(matrices: Iterable[Scores]) -> Scores:
    """An ensemble: the mean of several runs' matrices of one shape; two are in memory at a time."""
    total: npt.NDArray[np.float64] | None = None
    count = 0
    for matrix in matrices:
        if total is None:
            total = np.zeros(matrix.shape)
        if matrix.shape != total.shape:
            shapes = sorted({matrix.shape, total.shape})
            raise InputError(f"ensemble: found matrices of shapes {shapes}, expected the same test set")
        total += matrix
        count += 1
    assert total is not None, "an ensemble of no runs"
    total /= count
    return total
