"""What a detector says of one resized image -> the Regions that are kept, in pixels of the original."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError
from ..schema import Regions
from .extractor import RegionPolicy
from .selection import select

Size = tuple[int, int]  # width, height


@dataclass(frozen=True, slots=True)
class Detections:
    """All regions of one image before any is chosen. Boxes are xyxy in pixels of the resized image."""

    proposals: Tensor  # (R, 4)
    features: Tensor  # (R, D), taken at the proposals
    scores: Tensor  # (R, C) probabilities, the background not among them
    regressed: Tensor  # (R, 4), for the best class
    attribute_scores: Tensor | None = None  # (R, A) probabilities


def choose_regions(detections: Detections, policy: RegionPolicy, *, original: Size, resized: Size) -> Regions:
    """Detections, and the image's size before and after resizing -> its regions, best first."""
    found = detections
    if not bool(torch.isfinite(found.features).all() & torch.isfinite(found.scores).all()):
        raise InputError(
            "features are not finite numbers: the weights do not suit the model, or the precision is too low"
        )
    rows = select(policy, proposals=found.proposals, regressed=found.regressed, scores=found.scores)
    rows = rows.to(found.features.device)
    proposals = _to_original(found.proposals[rows], original=original, resized=resized)
    regressed = _to_original(found.regressed[rows], original=original, resized=resized)
    classes = class_scores = attributes = attribute_scores = None
    if policy.with_labels:
        classes, class_scores = _best(found.scores[rows])
        if found.attribute_scores is not None:
            attributes, attribute_scores = _best(found.attribute_scores[rows])
    return Regions(
        boxes=regressed if policy.boxes == "regressed" else proposals,
        features=found.features[rows].float().cpu().numpy(),
        width=original[0],
        height=original[1],
        classes=classes,
        class_scores=class_scores,
        attributes=attributes,
        attribute_scores=attribute_scores,
        regressed_boxes=regressed if policy.with_both_boxes else None,
    )


def _to_original(boxes: Tensor, *, original: Size, resized: Size) -> npt.NDArray[np.float32]:
    """Each axis by its own ratio (sides are rounded to whole pixels), so that a full-width box stays one."""
    limit = np.array([*original, *original], np.float32)
    scale = limit / np.array([*resized, *resized], np.float32)
    scaled = boxes.float().cpu().numpy() * scale
    return np.clip(scaled, 0, limit)


def _best(scores: Tensor) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Probabilities (n, C) -> the most likely index and its probability, (n,) each."""
    values, indices = scores.float().max(1)
    return indices.cpu().numpy().astype(np.int32), values.cpu().numpy()
