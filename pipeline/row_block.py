"""Regions of single images -> blocks of rows as they are stored: checked, padded to R, cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..errors import InputError
from ..files import checksum_bytes
from ..schema import Regions
from .feature_spec import FeatureSpec

Array = npt.NDArray[Any]

_CAST_VALUES = 32768
BOX_TOLERANCE = 1.0  # pixels; boxes scaled back from a resized image end up to one pixel outside


class RowBlock:
    """Room for a batch of rows, filled one image at a time and written in one go."""

    def __init__(self, spec: FeatureSpec, *, rows: int) -> None:
        self.spec = spec
        self.capacity = rows
        self.count = 0
        self._arrays: dict[str, Array] = {
            column.name: np.zeros((rows, *column.shape), column.dtype) for column in spec.layout()
        }

    @property
    def full(self) -> bool:
        return self.count == self.capacity

    def columns(self) -> dict[str, Array]:
        """The filled rows of every column, in file order."""
        return {name: array[: self.count] for name, array in self._arrays.items()}

    def clear(self) -> None:
        self.count = 0

    def add(self, image_id: int, regions: Regions) -> None:
        """One image -> the next row; raises InputError when it cannot be stored as it is."""
        spec, row = self.spec, self.count
        assert row < self.capacity
        count = check_regions(regions, spec)
        arrays = self._arrays
        if spec.boxes:
            _pad(arrays["boxes"][row], regions.boxes, spec.short)
        for name in spec.columns:
            _pad(arrays[name][row], getattr(regions, name), spec.short)
        features = arrays["features"][row]  # (R, D)
        cast(regions.features, out=features[:count])
        _check_features(regions.features, features[:count])
        _fill(features, count, spec.short)
        arrays["image_id"][row] = image_id
        arrays["num_regions"][row] = count
        size = arrays["size"][row]
        size[0], size[1] = regions.width, regions.height
        self.count += 1

    def add_stored(self, rows: Mapping[str, Array], first: int, count: int) -> None:
        """Rows that are already padded and checked, from another shard."""
        target = slice(self.count, self.count + count)
        for name, array in self._arrays.items():
            cast(rows[name][first : first + count], out=array[target])
        if rows["features"].dtype != self.spec.dtype:  # what was a number may be infinite or 0 now
            for source, stored, image_id in zip(
                rows["features"][first : first + count],
                self._arrays["features"][target],
                self._arrays["image_id"][target].tolist(),
                strict=True,
            ):
                try:
                    _check_features(source, stored)
                except InputError as error:
                    raise InputError(f"image {image_id}: {error}") from None
        self.count += count


def check_regions(regions: Regions, spec: FeatureSpec) -> int:
    """The number of regions, if their shapes, sizes and boxes make sense."""
    R, D = spec.regions, spec.dim
    shape = regions.features.shape
    if len(shape) != 2 or shape[1] != D:
        raise InputError(f"features of shape {shape}, expected (regions, {D})")
    count = int(shape[0])
    if count == 0:
        raise InputError("no regions")
    if count > R:
        raise InputError(f"{count} regions, expected at most {R}")
    if count < R and spec.short == "error":
        raise InputError(f"{count} regions, expected {R}")
    for name in spec.columns:
        values = getattr(regions, name)
        expected = (count, 4) if name == "regressed_boxes" else (count,)
        if values is None or values.shape != expected:
            found = "absent" if values is None else f"of shape {values.shape}"
            raise InputError(f"{name} {found}, expected {expected}")
        if not np.isfinite(values).all():
            raise InputError(f"{name} not finite")
    if spec.boxes:
        if regions.boxes.shape != (count, 4):
            raise InputError(f"boxes of shape {regions.boxes.shape}, expected {(count, 4)}")
        if problem := box_problem(regions.boxes, width=regions.width, height=regions.height):
            raise InputError(problem)
    return count


def box_problem(boxes: Array, *, width: int, height: int) -> str | None:
    """Why boxes (n, 4) do not lie inside their image, or None."""
    if width < 1 or height < 1:
        return f"image size {width}×{height}"
    # For the few boxes of an image a plain loop is faster than arrays. NaN fails every comparison.
    low, right, bottom = -BOX_TOLERANCE, width + BOX_TOLERANCE, height + BOX_TOLERANCE
    for x1, y1, x2, y2 in boxes.tolist():
        if not (low <= x1 <= x2 <= right and low <= y1 <= y2 <= bottom):
            box = [round(edge, 2) for edge in (x1, y1, x2, y2)]
            return f"box {box} outside the image of {width}×{height}"
    return None


def boxes_inside(boxes: Array, size: Array) -> npt.NDArray[np.bool_]:
    """(..., 4) xyxy and (..., 2) width and height -> (...,) whether each lies in its image; false for NaN."""
    low, high = boxes[..., :2], boxes[..., 2:]
    fits = (low >= -BOX_TOLERANCE) & (high >= low) & (high <= size + BOX_TOLERANCE)
    return np.asarray(fits.all(axis=-1))


def cast(source: Array, *, out: Array) -> None:
    """Copy with conversion; float32 to float16 goes through torch, twelve times as fast as numpy's."""
    if source.dtype != np.float32 or out.dtype != np.float16:
        with np.errstate(over="ignore"):  # what does not fit is refused by the caller
            np.copyto(out, source, casting="same_kind")
        return
    import torch

    # torch takes no read-only array without a warning; the copy costs a quarter of numpy's conversion.
    source = np.ascontiguousarray(source) if source.flags.writeable else source.copy()
    values, halves = source.reshape(-1), out.view()
    halves.shape = (-1,)  # never a copy
    # In pieces that torch leaves to one thread: its pool must not be woken for every row, nor after a fork.
    # numpy cuts them in half the time of torch.split.
    for start in range(0, len(values), _CAST_VALUES):
        piece = slice(start, start + _CAST_VALUES)
        torch.from_numpy(halves[piece]).copy_(torch.from_numpy(values[piece]))


def largest_bits(features: Array) -> Array:
    """Rows (n, ...) -> (n,) the largest number in each, by magnitude, as its bits without the sign.

    The order of those bits is the order of the numbers, with infinity and then NaN above all: integer
    arithmetic alone tells rows that are all zero (0) and rows that are not finite (from INFINITY_BITS on).
    """
    size = features.dtype.itemsize
    flat = features.reshape(len(features), -1)
    signed, unsigned = flat.view(f"i{size}"), flat.view(f"u{size}")
    # As signed integers the positive numbers are on top, as unsigned ones the negative numbers.
    positive = np.maximum(signed.max(axis=1), 0).view(unsigned.dtype)
    negative = unsigned.max(axis=1) & np.iinfo(signed.dtype).max
    return np.maximum(positive, negative)


_UNSIGNED = {2: np.uint16, 4: np.uint32}
INFINITY_BITS = {2: 0x7C00, 4: 0x7F800000}  # by the size of a number


def _check_features(source: Array, stored: Array) -> None:
    """Refuse what verify would refuse: NaN, infinity, nothing but zeros."""
    infinity = INFINITY_BITS[stored.dtype.itemsize]
    # Features behind a ReLU are never negative, and one look is enough.
    if 0 < stored.view(_UNSIGNED[stored.dtype.itemsize]).max() < infinity:
        return
    largest = int(largest_bits(stored[None])[0])
    if 0 < largest < infinity:
        return
    if largest == 0:
        raise InputError("features all zero")
    if not np.isfinite(source).all():
        raise InputError("features not finite (NaN or infinity)")
    raise InputError(
        f"features up to {float(np.abs(source).max()):g} do not fit {stored.dtype.name}; use --dtype float32"
    )


def _pad(target: Array, values: Array, short: str) -> None:
    count = len(values)
    target[:count] = values
    _fill(target, count, short)


def _fill(target: Array, count: int, short: str) -> None:
    """Rows behind the real regions: zeros, or the real ones again, best first."""
    if count == len(target):
        return
    if short == "pad-repeat":
        target[count:] = target[np.arange(len(target) - count) % count]
    else:
        target[count:] = 0


def block_digest(columns: Mapping[str, Array]) -> str:
    """Rows -> 32 hex digits over all their bytes; the same in both file formats."""
    digest = xxhash.xxh3_128()
    for array in columns.values():
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def content_checksum(digests: Sequence[str]) -> str:
    """The digests of a shard's batches -> one for all its rows, whatever the file format."""
    return checksum_bytes("".join(digests).encode())
