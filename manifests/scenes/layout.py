"""Groups of things and an image size -> a place for each, clear of the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .geometry import Box

_TRIES = 30  # per group, before the scene is drawn anew
_BORDER = 4  # pixels that stay free along the image's edge
_APART = 5  # pixels between two groups


@dataclass(frozen=True, slots=True)
class Plot:
    """A group before it has a place: how its things look, how many there are and how they stand."""

    kind: str
    colour: str
    texture: str
    size: str
    count: int
    thing_width: int
    thing_height: int
    formation: str  # 'row', or 'heap': two rows
    mirrored: bool

    @property
    def columns(self) -> int:
        return self.count if self.formation == "row" else (self.count + 1) // 2

    @property
    def width(self) -> int:
        return self.columns * self.thing_width + (self.columns - 1) * self._gap

    @property
    def height(self) -> int:
        rows = -(-self.count // self.columns)
        return rows * self.thing_height + (rows - 1) * self._gap

    @property
    def _gap(self) -> int:
        return max(3, self.thing_width // 8)

    def boxes(self, corner: tuple[int, int]) -> list[Box]:
        """The upper left corner of the group -> a box for each of its things."""
        boxes = []
        for number in range(self.count):
            row, column = divmod(number, self.columns)
            x = corner[0] + column * (self.thing_width + self._gap)
            y = corner[1] + row * (self.thing_height + self._gap)
            boxes.append(Box(x, y, x + self.thing_width, y + self.thing_height))
        return boxes


def arrange(
    plots: Sequence[Plot], *, width: int, height: int, rng: random.Random, stack: tuple[int, int] | None
) -> list[tuple[int, int]] | None:
    """Plots -> their upper left corners, or None where no place was found.

    `stack` names a rider and its support: the rider's feet touch the support's top.
    """
    corners: dict[int, tuple[int, int]] = {}
    taken: list[Box] = []
    order = sorted(range(len(plots)), key=lambda n: (stack is None or n not in stack, -plots[n].width))
    if stack:
        order.remove(stack[0])
    for number in order:
        plot = plots[number]
        rider = plots[stack[0]] if stack and stack[1] == number else None
        above = rider.height if rider else 0
        if plot.width > width - 2 * _BORDER or plot.height + above > height - 2 * _BORDER:
            return None
        for _ in range(_TRIES):
            x = rng.randint(_BORDER, width - _BORDER - plot.width)
            y = rng.randint(_BORDER + above, height - _BORDER - plot.height)
            if taken:
                x, y = _aligned(plot, x, y, with_box=rng.choice(taken), rng=rng)
            box = Box(x, y - above, x + plot.width, y + plot.height)
            inside = box.x1 >= _BORDER and box.y1 >= _BORDER
            inside = inside and box.x2 <= width - _BORDER and box.y2 <= height - _BORDER
            if inside and not any(box.near(other, margin=_APART) for other in taken):
                break
        else:
            return None
        taken.append(box)
        corners[number] = (x, y)
        if rider and stack:
            corners[stack[0]] = (x + rng.randint(0, plot.width - rider.width), y - rider.height)
    return [corners[number] for number in range(len(plots))]


def _aligned(plot: Plot, x: int, y: int, *, with_box: Box, rng: random.Random) -> tuple[int, int]:
    """Mostly in a row or a column with something already placed, so that most relations are plain to see."""
    luck = rng.random()
    if luck < 0.45:
        return x, with_box.y2 - plot.height + rng.randint(-4, 4)
    if luck < 0.75:
        return int(with_box.centre[0]) - plot.width // 2 + rng.randint(-6, 6), y
    return x, y
