"""mmf's dictionary of one image <-> regions: what `_info.npy` and an LMDB value hold beside the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...schema import Regions
from .arrays import make_regions, real_count


def regions_from_info(where: str, features: npt.NDArray[Any], info: Mapping[str, Any] | None) -> Regions:
    """Features (n, D) and the dictionary -> regions; without it there are no boxes and no size."""
    if features.dtype.kind not in "fiu" or features.ndim != 2:
        raise InputError(
            f"{where}: features of type {features.dtype} and shape {features.shape}, "
            "expected numbers of shape (regions, size)"
        )
    if info is None:
        return make_regions(where, features=features, boxes=None)
    boxes = np.asarray(info.get("bbox"))
    if boxes.ndim != 2:
        raise InputError(f"{where}: no bbox in its info, found {sorted(map(str, info))}")
    # One of mmf's extractors keeps all features but the boxes of the best alone.
    count = min(real_count(features, _declared(where, info, len(features))), len(boxes))
    classes = info.get("objects")
    scores = info.get("cls_prob")
    if scores is not None and classes is not None:
        scores = np.asarray(scores)
        if scores.ndim == 2:  # every class's probability: the one of the class that was chosen
            chosen = np.asarray(classes)
            if (
                len(chosen) != len(scores)
                or chosen.size == 0
                or not 0 <= chosen.min() <= chosen.max() < scores.shape[1]
            ):
                raise InputError(f"{where}: objects do not point into cls_prob of shape {scores.shape}")
            scores = scores[np.arange(len(scores)), chosen]
    return make_regions(
        where,
        features=features[:count],
        boxes=boxes[:count],
        width=info.get("image_width"),
        height=info.get("image_height"),
        classes=None if classes is None else np.asarray(classes)[:count],
        class_scores=None if scores is None else scores[:count],
    )


def _declared(where: str, info: Mapping[str, Any], default: int) -> int:
    value = info.get("num_boxes", default)
    try:
        return default if value is None else int(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: num_boxes {value!r}, expected a whole number") from None


def info_from_regions(image_id: str, regions: Regions) -> dict[str, Any]:
    """Regions -> the dictionary, under mmf's names; it has none for attributes."""
    info: dict[str, Any] = {
        "image_id": image_id,
        "bbox": regions.boxes,
        "num_boxes": len(regions.boxes),
        "image_width": regions.width,
        "image_height": regions.height,
    }
    if regions.classes is not None:
        info["objects"] = regions.classes.astype(np.int64)
    if regions.class_scores is not None:
        info["cls_prob"] = regions.class_scores
    return info
