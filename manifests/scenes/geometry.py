"""Boxes -> the relations between them: what 'left of', 'on' or 'between' means in pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RELATIONS = ("left of", "right of", "above", "below", "next to", "on")
ZONES = ("left", "right", "top", "bottom", "middle")

_TOUCH = 3  # pixels between a thing and what it stands on
_NEAR = 0.6  # of the mean width: a gap that still counts as next to


class Box(NamedTuple):
    """Pixels, xyxy; x2 and y2 are exclusive."""

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def width(self) -> int:
        return self.x2 - self.x1

    @property
    def height(self) -> int:
        return self.y2 - self.y1

    @property
    def centre(self) -> tuple[float, float]:
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2

    def shifted(self, dx: int, dy: int) -> Box:
        return Box(self.x1 + dx, self.y1 + dy, self.x2 + dx, self.y2 + dy)

    def centred_on(self, other: Box) -> Box:
        """This box, moved to where the other's centre is."""
        dx = (other.x1 + other.x2 - self.x1 - self.x2) // 2
        dy = (other.y1 + other.y2 - self.y1 - self.y2) // 2
        return self.shifted(dx, dy)

    def near(self, other: Box, *, margin: int) -> bool:
        """Whether fewer than `margin` pixels lie between the two."""
        apart_x = self.x2 + margin <= other.x1 or other.x2 + margin <= self.x1
        apart_y = self.y2 + margin <= other.y1 or other.y2 + margin <= self.y1
        return not (apart_x or apart_y)


def union(boxes: Iterable[Box]) -> Box:
    """Boxes -> the box around all of them."""
    boxes = list(boxes)
    return Box(
        min(b.x1 for b in boxes), min(b.y1 for b in boxes), max(b.x2 for b in boxes), max(b.y2 for b in boxes)
    )


def holds(relation: str, a: Box, b: Box) -> bool:
    """Whether box a stands in the relation to box b, clearly enough to be said."""
    (ax, ay), (bx, by) = a.centre, b.centre
    if relation == "left of":
        return a.x2 <= b.x1 and abs(ay - by) <= bx - ax
    if relation == "right of":
        return holds("left of", b, a)
    if relation == "above":
        return a.y2 <= b.y1 and abs(ax - bx) <= by - ay
    if relation == "below":
        return holds("above", b, a)
    if relation == "next to":
        gap = max(a.x1 - b.x2, b.x1 - a.x2)
        level = min(a.y2, b.y2) - max(a.y1, b.y1)  # of rows that the two share
        return 0 <= gap <= _NEAR * (a.width + b.width) / 2 and 2 * level >= min(a.height, b.height)
    if relation == "on":
        return abs(a.y2 - b.y1) <= _TOUCH and b.x1 <= ax <= b.x2
    raise AssertionError(relation)


def between(a: Box, b: Box, c: Box) -> bool:
    """Whether box a stands between boxes b and c, side by side or one above the other."""
    return any(holds(r, b, a) and holds(r, a, c) for r in ("left of", "right of", "above", "below"))


def in_zone(zone: str, box: Box, *, width: int, height: int) -> bool:
    """Whether the box lies in that third of a picture of this size."""
    x, y = box.centre
    if zone == "left":
        return 3 * x < width
    if zone == "right":
        return 3 * x > 2 * width
    if zone == "top":
        return 3 * y < height
    if zone == "bottom":
        return 3 * y > 2 * height
    if zone == "middle":
        return width < 3 * x < 2 * width and height < 3 * y < 2 * height
    raise AssertionError(zone)
