"""A score matrix -> mean average precision at R in both directions, ties against the model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .ranks import Scores, check_scores


def mean_average_precision_at_r(scores: Scores, caption_image: npt.ArrayLike) -> dict[str, float]:
    """mAP@R in percent: precision averaged over the first R places, R = the number of right answers."""
    owner = np.asarray(caption_image, np.int64)
    check_scores(scores, owner)
    captions_of = [np.flatnonzero(owner == image) for image in range(len(scores))]
    per_image = [_precision(row, right) for row, right in zip(scores, captions_of, strict=True) if len(right)]
    per_caption = [_precision(column, owner[[number]]) for number, column in enumerate(scores.T)]
    return {
        "caption_retrieval": 100 * float(np.mean(per_image)),
        "image_retrieval": 100 * float(np.mean(per_caption)),
    }


def _precision(scores: Scores, right: npt.NDArray[np.int64]) -> float:
    """Average precision over the first R places of one query."""
    is_right = np.zeros(len(scores), bool)
    is_right[right] = True
    # Places of the right answers, best first: every wrong one that scores at least as high stands before.
    right_scores = np.sort(scores[right])[::-1]
    wrong = np.sort(scores[~is_right])
    before = len(wrong) - np.searchsorted(wrong, right_scores, side="left")
    places = before + np.arange(1, len(right) + 1)
    found = np.arange(1, len(right) + 1)
    return float(np.where(places <= len(right), found / places, 0.0).sum() / len(right))
