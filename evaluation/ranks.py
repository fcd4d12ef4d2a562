"""A score matrix -> the rank of the right answer for every image and every caption.

Ties count against the model: rank = 1 + the number of wrong items that score at least as high as the best
right one. A constant scorer therefore ranks last, never first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Scores = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

_TILE_BYTES = 64 << 20  # comparisons are made a tile of rows at a time


@dataclass(frozen=True)
class Ranks:
    """Ranks from 1, per query."""

    captions: Ints  # (I,) of the best own caption, for each image; 0 where an image has no caption
    images: Ints  # (C,) of the own image, for each caption


def rank_both_ways(scores: Scores, caption_image: npt.ArrayLike) -> Ranks:
    """(I, C) scores and the image row of each caption -> ranks in both directions."""
    owner = np.asarray(caption_image, np.int64)
    check_scores(scores, owner)
    image_count, caption_count = scores.shape
    own_score = np.empty(caption_count, scores.dtype)
    caption_ranks = np.zeros(image_count, np.int64)
    higher_or_equal = np.zeros(caption_count, np.int64)
    columns = np.arange(caption_count)
    rows_per_tile = max(1, _TILE_BYTES // max(1, caption_count * scores.dtype.itemsize))
    own_score[:] = scores[owner, columns]
    has_caption = np.bincount(owner, minlength=image_count) > 0
    best_own = np.full(image_count, -np.inf, scores.dtype)
    np.maximum.at(best_own, owner, own_score)
    for start in range(0, image_count, rows_per_tile):
        tile = scores[start : start + rows_per_tile]  # (T, C)
        stop = start + len(tile)
        higher_or_equal += (tile >= own_score).sum(axis=0)
        at_least = tile >= best_own[start:stop, None]
        mine = (owner >= start) & (owner < stop)
        at_least[owner[mine] - start, columns[mine]] = False  # own captions are never wrong
        caption_ranks[start:stop] = 1 + at_least.sum(axis=1)
    caption_ranks[~has_caption] = 0
    # The own image compares equal to itself: what is counted beyond it is wrong.
    return Ranks(captions=caption_ranks, images=higher_or_equal)


def check_scores(scores: Scores, caption_image: Ints) -> None:
    """Refuse a matrix that is not images × captions, or that holds NaN."""
    if scores.ndim != 2 or scores.shape[1] != len(caption_image):
        raise InputError(
            f"scores: found shape {'×'.join(map(str, scores.shape))}, "
            f"expected images × {len(caption_image)} captions"
        )
    if len(caption_image) and not 0 <= caption_image.min() <= caption_image.max() < scores.shape[0]:
        raise InputError(
            f"scores: found {scores.shape[0]} images, but a caption belongs to image {caption_image.max()}"
        )
    for start in range(0, len(scores), 1024):
        wrong = np.isnan(scores[start : start + 1024])
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise InputError(
                f"scores: found NaN at image {start + row}, caption {column}; "
                "a model that diverged cannot be ranked"
            )
