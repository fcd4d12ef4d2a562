"""Pixels of any size -> the size a detector works at, to the last bit as detectron2 does it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import InputError

SMALLEST_SIDE = 16  # one position of the feature map; only pictures longer than 62:1 come to it


def resized(
    width: int, height: int, *, min_size: int, max_size: int, upscale: bool = True
) -> tuple[int, int]:
    """An image's size -> (width, height) with the shorter side min_size, the longer at most max_size."""
    # Step by step as detectron2 does: int(x + 0.5) is sensitive to the last bit of x.
    scale = min_size / min(width, height)
    new_width, new_height = (scale * width, float(min_size)) if height < width else (min_size, scale * height)
    longer = max(new_width, new_height)
    if longer > max_size:
        new_width, new_height = new_width * (max_size / longer), new_height * (max_size / longer)
    if not upscale and max(new_width, new_height) > max(width, height):
        new_width, new_height = width, height
    return max(int(new_width + 0.5), SMALLEST_SIDE), max(int(new_height + 0.5), SMALLEST_SIDE)


def resize(
    pixels: npt.NDArray[np.uint8], *, min_size: int, max_size: int, upscale: bool = True
) -> npt.NDArray[np.uint8]:
    """(h, w, 3) -> (H, W, 3) by Pillow's bilinear filter, which averages when it shrinks."""
    height, width = pixels.shape[:2]
    size = resized(width, height, min_size=min_size, max_size=max_size, upscale=upscale)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))


def check_sizes(min_size: int, max_size: int) -> None:
    """Refuse sizes that make no image."""
    if not SMALLEST_SIDE <= min_size <= max_size:
        raise InputError(
            f"min-size {min_size} and max-size {max_size}: expected {SMALLEST_SIDE} <= min-size <= max-size"
        )
