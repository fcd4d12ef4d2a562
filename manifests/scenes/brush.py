"""Shapes in a thing's own unit square -> pixels: fills with textures, outlines, mirrored or not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw

from .geometry import Box

Rgb = tuple[int, int, int]
Point = tuple[float, float]

PALETTE: dict[str, Rgb] = {
    "red": (214, 38, 42),
    "orange": (245, 134, 28),
    "yellow": (251, 216, 48),
    "green": (46, 156, 66),
    "blue": (40, 98, 214),
    "purple": (126, 56, 172),
    "pink": (248, 142, 190),
    "brown": (126, 78, 44),
    "black": (40, 40, 46),
    "white": (246, 246, 242),
}
_INK: Rgb = (34, 30, 36)
_PATTERN_UNITS = 4  # stripes, dots or squares along the shorter side of a thing


def mix(a: Rgb, b: Rgb, share: float) -> Rgb:
    """Two colours -> the one that lies `share` of the way from a to b."""
    return (
        round(a[0] + (b[0] - a[0]) * share),
        round(a[1] + (b[1] - a[1]) * share),
        round(a[2] + (b[2] - a[2]) * share),
    )


def second_tone(colour: str) -> Rgb:
    """A colour -> the other colour of its patterns: pale, or grey where the colour is pale itself."""
    if colour == "white":
        return (148, 156, 170)
    return mix(PALETTE[colour], (255, 255, 255), 0.78)


@lru_cache(maxsize=256)
def pattern(colour: str, texture: str, width: int, height: int) -> Image.Image:
    """A colour and a texture -> a filled tile of that size."""
    tile = Image.new("RGB", (width, height), PALETTE[colour])
    draw, pale = ImageDraw.Draw(tile), second_tone(colour)
    step = max(6, min(width, height) // _PATTERN_UNITS)
    if texture == "striped":
        for start in range(-height, width, step):
            draw.line([(start, height), (start + height, 0)], fill=pale, width=step * 2 // 5)
    elif texture == "dotted":
        radius = step * 0.29
        for row, y in enumerate(range(step // 2, height + step, step)):
            for x in range(step // 2 if row % 2 else 0, width + step, step):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=pale)
    elif texture == "checked":
        half = step // 2 + 1
        for row, y in enumerate(range(0, height, half)):
            for x in range(half if row % 2 else 0, width, 2 * half):
                draw.rectangle((x, y, x + half - 1, y + half - 1), fill=pale)
    return tile


class Brush:
    """Draws one thing: coordinates run from (0, 0) to (1, 1) in its box, paints are 'fill', tones or RGB."""

    def __init__(
        self, canvas: Image.Image, box: Box, *, colour: str, texture: str, mirrored: bool, line: int
    ) -> None:
        self._canvas, self._box, self._mirrored, self._line = canvas, box, mirrored, line
        self._colour, self._texture = colour, texture
        self._draw = ImageDraw.Draw(canvas)
        base = PALETTE[colour]
        self.ink = (120, 120, 128) if colour == "black" else _INK
        self.dark = mix(base, (0, 0, 0), 0.35) if colour != "black" else (84, 84, 92)
        self.light = mix(base, (255, 255, 255), 0.45)
        self.contrast: Rgb = (90, 60, 40) if colour == "yellow" else (255, 206, 40)

    def ellipse(self, x1: float, y1: float, x2: float, y2: float, paint: Rgb | str = "fill") -> None:
        self._shape("ellipse", [(x1, y1), (x2, y2)], paint)

    def rectangle(self, x1: float, y1: float, x2: float, y2: float, paint: Rgb | str = "fill") -> None:
        self._shape("polygon", [(x1, y1), (x2, y1), (x2, y2), (x1, y2)], paint)

    def polygon(self, points: Sequence[Point], paint: Rgb | str = "fill") -> None:
        self._shape("polygon", points, paint)

    def dome(self, x1: float, y1: float, x2: float, y2: float, paint: Rgb | str = "fill") -> None:
        """The upper half of an ellipse whose whole would reach twice as deep."""
        self._shape("dome", [(x1, y1), (x2, 2 * y2 - y1)], paint)

    def line(self, points: Sequence[Point], paint: Rgb, *, width: float) -> None:
        """A line whose width is a share of the thing's height."""
        pixels = max(self._line, round(width * self._box.height))
        self._draw.line([self._at(p) for p in points], fill=paint, width=pixels, joint="curve")

    def spot(self, x: float, y: float, radius: float, paint: Rgb) -> None:
        """A small dot without an outline; the radius is a share of the thing's height."""
        (cx, cy), r = self._at((x, y)), max(1.0, radius * self._box.height)
        self._draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=paint)

    def _shape(self, form: str, points: Sequence[Point], paint: Rgb | str) -> None:
        at = [self._at(p) for p in points]
        if paint != "fill" or self._texture == "plain":
            colour = PALETTE[self._colour] if isinstance(paint, str) else paint
            _draw_form(self._draw, form, at, fill=colour, outline=self.ink, width=self._line)
            return
        box = self._box
        mask = Image.new("L", (box.width, box.height), 0)
        inner = [(x - box.x1, y - box.y1) for x, y in at]
        _draw_form(ImageDraw.Draw(mask), form, inner, fill=255, outline=255, width=self._line)
        tile = pattern(self._colour, self._texture, box.width, box.height)
        self._canvas.paste(tile, (box.x1, box.y1), mask)
        _draw_form(self._draw, form, at, fill=None, outline=self.ink, width=self._line)

    def _at(self, point: Point) -> Point:
        x = 1 - point[0] if self._mirrored else point[0]
        box = self._box
        # x2 and y2 are exclusive, Pillow's coordinates are not.
        return box.x1 + x * (box.width - 1), box.y1 + point[1] * (box.height - 1)


def _draw_form(
    draw: ImageDraw.ImageDraw,
    form: str,
    points: Sequence[Point],
    *,
    fill: Rgb | int | None,
    outline: Rgb | int,
    width: int,
) -> None:
    if form == "polygon":
        draw.polygon(list(points), fill=fill, outline=outline, width=width)
        return
    (xa, ya), (xb, yb) = points
    bounds = (min(xa, xb), ya, max(xa, xb), yb)
    if form == "ellipse":
        draw.ellipse(bounds, fill=fill, outline=outline, width=width)
    else:
        draw.chord(bounds, 180, 360, fill=fill, outline=outline, width=width)
