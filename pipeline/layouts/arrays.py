"""Arrays from a foreign file -> Regions of the right shapes and types, or an error that names the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...schema import Regions


def make_regions(
    where: str,
    *,
    features: npt.ArrayLike,
    boxes: npt.ArrayLike | None,
    width: Any = 0,
    height: Any = 0,
    classes: npt.ArrayLike | None = None,
    class_scores: npt.ArrayLike | None = None,
    attributes: npt.ArrayLike | None = None,
    attribute_scores: npt.ArrayLike | None = None,
) -> Regions:
    """What a row holds -> its regions; `where` is the file and the line or key. No boxes: zeros.

    Types, shapes and lengths are checked here; what the numbers say is checked by whoever stores them.
    """
    features = _floats(where, "features", features, dims=2)
    count, dim = features.shape  # (n, D)
    if count == 0 or dim == 0:
        raise InputError(f"{where}: features of shape {features.shape}, expected at least one region")
    if boxes is None:
        boxes = np.zeros((count, 4), np.float32)
    boxes = _floats(where, "boxes", boxes, dims=2)
    if boxes.shape != (count, 4):
        raise InputError(f"{where}: boxes of shape {boxes.shape}, expected {(count, 4)}")
    return Regions(
        boxes=boxes,
        features=features,
        width=_size(where, "width", width),
        height=_size(where, "height", height),
        classes=_ids(where, "classes", classes, count),
        class_scores=_scores(where, "class scores", class_scores, count),
        attributes=_ids(where, "attributes", attributes, count),
        attribute_scores=_scores(where, "attribute scores", attribute_scores, count),
    )


def real_count(features: npt.NDArray[Any], declared: int) -> int:
    """Rows of a feature array that are regions: all, but for zeros behind the declared number of them.

    Some extractors write more regions than they declare (they count only the confident ones), others pad.
    """
    if 0 < declared < len(features) and not features[declared:].any():
        return declared
    return len(features)


def trailing_zeros(features: npt.NDArray[Any]) -> int:
    """How many regions at the end are nothing but zeros: padding, where a layout has no count."""
    return int(np.argmax(np.append(features[::-1].any(axis=1), True)))


def _floats(where: str, name: str, values: npt.ArrayLike, *, dims: int) -> npt.NDArray[np.float32]:
    try:
        array = np.ascontiguousarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {name} are not numbers ({error})") from None
    if array.ndim != dims:
        raise InputError(f"{where}: {name} of shape {array.shape}, expected {dims} dimensions")
    return array


def _scores(
    where: str, name: str, values: npt.ArrayLike | None, count: int
) -> npt.NDArray[np.float32] | None:
    if values is None:
        return None
    array = _floats(where, name, values, dims=1)
    if len(array) != count:
        raise InputError(f"{where}: {len(array)} {name}, expected {count}")
    return array


def _ids(where: str, name: str, values: npt.ArrayLike | None, count: int) -> npt.NDArray[np.int32] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise InputError(
            f"{where}: {name} of type {array.dtype} and shape {array.shape}, expected {count} whole numbers"
        )
    narrow = np.ascontiguousarray(array, np.int32)
    if not np.array_equal(narrow, array):
        raise InputError(f"{where}: {name} up to {array.max()}, expected ids below 2,147,483,648")
    return narrow


def _size(where: str, name: str, value: Any) -> int:
    """An image's side, from an int, a '640.0' or an array of one; None and 0 mean unknown."""
    try:
        number = 0.0 if value is None else float(np.asarray(value).reshape(()))
    except (TypeError, ValueError):
        raise InputError(f"{where}: image {name} {value!r}, expected a number of pixels") from None
    if not 0 <= number < 2**31 or number != int(number):
        raise InputError(f"{where}: image {name} {value!r}, expected a number of pixels")
    return int(number)
