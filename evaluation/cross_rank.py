"""A score matrix -> each matching pair's worse rank of the two directions (AOQ, supplementary).

r_i is the pair's rank among the images for its caption, r_t its rank among the captions of other images for
its image. With k captions per image the two weigh the same as max(k r_i - (k - 1), r_t).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .ranks import Scores, check_scores, rank_both_ways

INTERVALS = (1, 5, 10, 50, 200)  # bounds of the histogram


def cross_ranks(scores: Scores, caption_image: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """(I, C) scores and the image row of each caption -> (C,) cross-retrieval ranks from 1."""
    owner = np.asarray(caption_image, np.int64)
    check_scores(scores, owner)
    among_images = rank_both_ways(scores, owner).images
    among_captions = np.empty(len(owner), np.int64)
    for image in np.unique(owner):
        own = np.flatnonzero(owner == image)
        row = np.asarray(scores[image])
        for caption in own:  # ties count against the model, as everywhere
            higher = np.count_nonzero(row >= row[caption])
            among_captions[caption] = 1 + higher - np.count_nonzero(row[own] >= row[caption])
    per_image = round(len(owner) / max(1, len(np.unique(owner))))
    return np.maximum(per_image * among_images - (per_image - 1), among_captions)


def cross_rank_histogram(scores: Scores, caption_image: npt.ArrayLike) -> dict[str, float]:
    """The share of pairs, in percent, whose cross-retrieval rank is 1, 2–5, …, above 200."""
    ranks = cross_ranks(scores, caption_image)
    bounds = [0, *INTERVALS, np.inf]
    shares = {}
    for low, high in pairwise(bounds):
        name = f">{low}" if high == np.inf else str(high) if high - low == 1 else f"{low + 1}–{high}"
        shares[name] = 100.0 * float(((ranks > low) & (ranks <= high)).mean())
    return shares
