"""Every region of an image with its class scores -> the regions that are kept, best first.

`anderson`  each class suppresses for itself at IoU 0.3; a region counts by its best score where it is kept
`maxnms`    one pass over all classes on the regressed boxes, its threshold raised until enough are left
`score`     the regions of the highest class score, however much they overlap
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import nms

from .extractor import RegionPolicy

CLASS_IOU = 0.3
CONFIDENCE = 0.2  # of the adaptive number of regions: everything above it, within the bounds
MAXNMS_IOUS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_PAIRS_AT_ONCE = 4096  # times 1,600 classes: 26 MB of scores per side


def select(policy: RegionPolicy, *, proposals: Tensor, regressed: Tensor, scores: Tensor) -> Tensor:
    """Proposals (R, 4), boxes regressed for the best class (R, 4), scores (R, C) -> rows (n,), best first.

    Scores leave the background out. n is at least min_regions where R is, and at most max_regions.
    """
    proposals, regressed, scores = (part.detach().float().cpu() for part in (proposals, regressed, scores))
    return SELECTIONS[policy.select](policy, proposals, regressed, scores)


def _anderson(policy: RegionPolicy, proposals: Tensor, regressed: Tensor, scores: Tensor) -> Tensor:
    return _most_confident(policy, best_kept_score(proposals, scores, iou=CLASS_IOU))


def _maxnms(policy: RegionPolicy, proposals: Tensor, regressed: Tensor, scores: Tensor) -> Tensor:
    confidence = scores.amax(1)
    kept = confidence.new_empty(0, dtype=torch.int64)
    for iou in MAXNMS_IOUS:
        kept = nms(regressed, confidence, iou)
        if len(kept) >= policy.min_regions:
            break
    return kept[: policy.max_regions]


def _score(policy: RegionPolicy, proposals: Tensor, regressed: Tensor, scores: Tensor) -> Tensor:
    return _most_confident(policy, scores.amax(1))


SELECTIONS: dict[str, Callable[[RegionPolicy, Tensor, Tensor, Tensor], Tensor]] = {
    "anderson": _anderson,
    "maxnms": _maxnms,
    "score": _score,
}


def _most_confident(policy: RegionPolicy, confidence: Tensor) -> Tensor:
    """As many as pass the threshold, within the bounds; of equals the earlier proposal."""
    order = torch.argsort(confidence, descending=True, stable=True)
    passing = int((confidence >= CONFIDENCE).sum())
    return order[: min(max(passing, policy.min_regions), policy.max_regions)]


def best_kept_score(boxes: Tensor, scores: Tensor, *, iou: float) -> Tensor:
    """Boxes (R, 4), scores (R, C) -> (R,): each box's best score in a class whose suppression keeps it, or 0.

    All classes share the boxes, so overlap is computed once and only overlapping pairs matter: (i, j) says
    for each class whether i beats j. A box is kept where no kept box beats it. Starting from 'all kept', each
    round settles one more link of the longest chain of beaten boxes, so a handful of rounds reach greedy
    suppression's own result. Classes are the bits of a row: a round is three operations on (pairs, C / 64).
    """
    first, second = _overlapping_pairs(boxes.numpy(), iou=iou)
    values = scores.contiguous().numpy()
    kept = _bits(np.ones(values.shape, np.bool_))  # (R, C / 64)
    if len(first):
        forward = _classes_won(values, first, second)  # (pairs, C / 64)
        winner, loser = np.concatenate([first, second]), np.concatenate([second, first])
        order = np.argsort(loser, kind="stable")
        winner, beats = winner[order], np.concatenate([forward, ~forward])[order]
        contested, starts = np.unique(loser[order], return_index=True)
        before = np.zeros_like(kept[contested])
        while not np.array_equal(before, kept[contested]):
            before = kept[contested]
            kept[contested] = ~np.bitwise_or.reduceat(kept[winner] & beats, starts, axis=0)
    mask = np.unpackbits(kept.view(np.uint8), axis=1, count=scores.shape[1])
    return torch.from_numpy((values * mask).max(axis=1, initial=0))


def _overlapping_pairs(
    boxes: npt.NDArray[np.float32], *, iou: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Boxes (R, 4) -> rows (i, j), i < j, whose overlap is above the threshold.

    In numpy, like all of this file: 300 boxes are too few to be worth waking torch's threads for.
    """
    left, top, right, bottom = np.ascontiguousarray(boxes.T)
    width = np.minimum.outer(right, right) - np.maximum.outer(left, left)  # (R, R)
    height = np.minimum.outer(bottom, bottom) - np.maximum.outer(top, top)
    shared = np.maximum(width, 0, out=width) * np.maximum(height, 0, out=height)
    area = (right - left) * (bottom - top)
    union = np.add.outer(area, area) - shared
    with np.errstate(invalid="ignore"):  # two empty boxes: 0 / 0, not an overlap
        # In double precision, as torchvision compares the two: float32(0.3) itself lies above 0.3.
        above = (shared / union).astype(np.float64) > iou
    first, second = np.nonzero(np.triu(above, 1))
    return first, second


def _classes_won(
    values: npt.NDArray[Any], first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint64]:
    """For each pair the classes, as bits, in which the first beats the second; the first wins a tie."""
    pieces = [
        _bits(values[i] >= values[j])
        for start in range(0, len(first), _PAIRS_AT_ONCE)
        for i, j in [(first[start : start + _PAIRS_AT_ONCE], second[start : start + _PAIRS_AT_ONCE])]
    ]
    return np.concatenate(pieces)


def _bits(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """(n, C) -> (n, C / 64 rounded up), one bit per class."""
    octets = np.packbits(mask, axis=1)
    padded = np.zeros((len(mask), -(-octets.shape[1] // 8) * 8), np.uint8)
    padded[:, : octets.shape[1]] = octets
    return padded.view(np.uint64)
