"""A photograph and its regions -> a picture with the boxes and their names on it."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from ..schema import Regions

MIN_SIDE = 640  # smaller photographs are enlarged, so that names stay readable
_MARGIN = 3


def draw_regions(
    pixels: npt.NDArray[np.uint8],  # (height, width, 3)
    regions: Regions,
    *,
    labels: Sequence[str] | None = None,  # one per region
    top: int | None = None,
) -> Image.Image:
    """Boxes best last, so that they lie on top; a name is left out where a better one already stands."""
    height, width = pixels.shape[:2]
    scale = max(1.0, MIN_SIDE / min(width, height))
    size = (round(width * scale), round(height * scale))
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture, "RGBA")
    line = max(2, min(size) // 250)
    count = len(regions.boxes) if top is None else min(top, len(regions.boxes))
    boxes = _inside(regions.boxes[:count] * scale, size)
    # The same class has the same colour; without classes each region its own.
    numbers = range(count) if regions.classes is None else regions.classes[:count].tolist()
    colours = [_colour(number) for number in numbers]
    for rank in reversed(range(count)):
        # The best boxes are opaque, the others recede.
        draw.rectangle(boxes[rank], outline=(*colours[rank], 255 - 150 * rank // max(count, 1)), width=line)
    if labels is not None:
        _write_labels(draw, boxes, labels, colours, size)
    return picture


def _write_labels(
    draw: ImageDraw.ImageDraw,
    boxes: Sequence[tuple[float, float, float, float]],
    labels: Sequence[str],
    colours: Sequence[tuple[int, int, int]],
    size: tuple[int, int],
) -> None:
    font = ImageFont.load_default(max(12, min(size) // 45))
    taken: list[tuple[float, float, float, float]] = []
    for rank, (left, top, _, _) in enumerate(boxes):
        _, _, text_width, text_height = draw.textbbox((0, 0), labels[rank], font=font)
        x = min(left, size[0] - text_width - 2 * _MARGIN)
        y = max(top - text_height - 2 * _MARGIN, 0)
        plate = (x, y, x + text_width + 2 * _MARGIN, y + text_height + 2 * _MARGIN)
        if any(_overlap(plate, other) for other in taken):
            continue
        taken.append(plate)
        draw.rectangle(plate, fill=(*colours[rank], 220))
        draw.text((x + _MARGIN, y + _MARGIN), labels[rank], fill=(0, 0, 0, 255), font=font)


def _inside(boxes: npt.NDArray[np.float32], size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """Boxes of scaled regions may end up to a pixel outside; Pillow wants them ordered and drawable."""
    limit = np.array([size[0] - 1, size[1] - 1] * 2)
    return [tuple(box) for box in np.clip(boxes, 0, limit).tolist()]


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _colour(number: int) -> tuple[int, int, int]:
    """Numbers that differ by one get colours far apart."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618034 % 1.0, 0.65, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)
