"""Detections and true boxes -> average precision, as area under the precision envelope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import box_iou


class Found(NamedTuple):
    """What was found in one image."""

    boxes: npt.NDArray[np.float32]  # (n, 4)
    classes: npt.NDArray[np.int64]  # (n,)
    scores: npt.NDArray[np.float32]  # (n,)


class Truth(NamedTuple):
    """What is in one image."""

    boxes: npt.NDArray[np.float32]  # (m, 4)
    classes: npt.NDArray[np.int64]  # (m,)


def mean_average_precision(
    found: Sequence[Found], truths: Sequence[Truth], *, iou: float, classes: int
) -> float:
    """All images -> AP averaged over the classes that occur."""
    values = [class_average_precision(found, truths, iou=iou, label=label) for label in range(classes)]
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else 0.0


def class_average_precision(
    found: Sequence[Found], truths: Sequence[Truth], *, iou: float, label: int
) -> float | None:
    """One class -> its AP; None where it never occurs.

    Best score first, a detection takes the free true box it overlaps most; a second one on it is false.
    """
    total = sum(int((truth.classes == label).sum()) for truth in truths)
    if total == 0:
        return None
    scores: list[float] = []
    hits: list[bool] = []
    for one, truth in zip(found, truths, strict=True):
        mine = np.flatnonzero(one.classes == label)
        mine = mine[np.argsort(-one.scores[mine], kind="stable")]
        true_boxes = truth.boxes[truth.classes == label]
        overlaps = box_iou(torch.from_numpy(one.boxes[mine]), torch.from_numpy(true_boxes)).numpy()
        free = np.ones(len(true_boxes), bool)
        for row, number in enumerate(mine):
            candidates = np.where(free, overlaps[row], -1.0)
            best = int(candidates.argmax()) if len(true_boxes) else -1
            hit = best >= 0 and candidates[best] >= iou
            if hit:
                free[best] = False
            scores.append(float(one.scores[number]))
            hits.append(bool(hit))
    order = np.argsort(-np.array(scores), kind="stable")
    true_so_far = np.cumsum(np.array(hits, bool)[order])
    precision = true_so_far / np.arange(1, len(order) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    recall_steps = np.diff(true_so_far, prepend=0) / total
    return float((envelope * recall_steps).sum())
