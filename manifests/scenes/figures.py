"""A kind of thing -> its figure: a few shapes that fill the unit square to all four sides."""

from __future__ import annotations

import math
from collections.abc import Callable

from .brush import Brush, Rgb

_WOOD: Rgb = (134, 92, 54)
_LEAF: Rgb = (70, 140, 62)
_CREAM: Rgb = (246, 234, 208)
_GLASS: Rgb = (196, 228, 244)
_METAL: Rgb = (112, 116, 124)
_WHITE: Rgb = (252, 252, 250)


def _ball(brush: Brush) -> None:
    brush.ellipse(0, 0, 1, 1)
    brush.spot(0.3, 0.27, 0.07, _WHITE)


def _bird(brush: Brush) -> None:
    for x in (0.44, 0.56):
        brush.line([(x, 0.82), (x, 0.98)], _METAL, width=0.035)
    brush.rectangle(0.38, 0.965, 0.68, 1, _METAL)
    brush.polygon([(0, 0.34), (0.26, 0.5), (0.22, 0.72)], brush.dark)
    brush.polygon([(0.84, 0.16), (1, 0.25), (0.84, 0.33)], (250, 176, 40))
    brush.ellipse(0.14, 0.34, 0.8, 0.88)
    brush.ellipse(0.54, 0, 0.9, 0.45)
    brush.polygon([(0.24, 0.52), (0.58, 0.5), (0.42, 0.8)], brush.dark)
    brush.spot(0.76, 0.18, 0.05, _WHITE)
    brush.spot(0.77, 0.18, 0.028, (20, 20, 20))


def _boat(brush: Brush) -> None:
    brush.rectangle(0.47, 0, 0.52, 0.7, _WOOD)
    brush.polygon([(0.55, 0.04), (0.55, 0.6), (0.97, 0.6)])
    brush.polygon([(0.44, 0.16), (0.44, 0.6), (0.1, 0.6)], _WHITE)
    brush.polygon([(0, 0.67), (1, 0.67), (0.8, 1), (0.2, 1)])


def _box(brush: Brush) -> None:
    brush.polygon([(0.82, 0.16), (1, 0), (1, 0.86), (0.82, 1)], brush.dark)
    brush.polygon([(0, 0.16), (0.16, 0), (1, 0), (0.82, 0.16)], brush.light)
    brush.rectangle(0, 0.16, 0.82, 1)
    brush.line([(0.04, 0.3), (0.78, 0.3)], brush.dark, width=0.035)


def _car(brush: Brush) -> None:
    brush.polygon([(0.2, 0.45), (0.32, 0), (0.68, 0), (0.82, 0.45)])
    brush.polygon([(0.28, 0.42), (0.36, 0.1), (0.49, 0.1), (0.49, 0.42)], _GLASS)
    brush.polygon([(0.53, 0.42), (0.53, 0.1), (0.65, 0.1), (0.73, 0.42)], _GLASS)
    brush.polygon([(0, 0.5), (0.06, 0.4), (0.9, 0.4), (1, 0.52), (1, 0.8), (0, 0.8)])
    for x in (0.22, 0.78):
        brush.ellipse(x - 0.12, 0.6, x + 0.12, 1, (44, 44, 48))
        brush.ellipse(x - 0.05, 0.72, x + 0.05, 0.88, (206, 208, 212))
    brush.spot(0.95, 0.56, 0.05, (255, 244, 170))


def _cat(brush: Brush) -> None:
    brush.polygon([(0.72, 0.9), (0.9, 0.75), (0.86, 0.5), (1, 0.46), (1, 0.85), (0.8, 1)], brush.dark)
    brush.ellipse(0.14, 0.4, 0.82, 1)
    brush.polygon([(0.06, 0.28), (0.08, 0), (0.34, 0.12)], brush.dark)
    brush.polygon([(0.52, 0.12), (0.78, 0), (0.8, 0.28)], brush.dark)
    brush.ellipse(0, 0.08, 0.86, 0.56)
    for x in (0.28, 0.58):
        brush.spot(x, 0.28, 0.055, (250, 250, 200))
        brush.spot(x, 0.28, 0.03, (16, 16, 16))
    brush.polygon([(0.39, 0.37), (0.47, 0.37), (0.43, 0.42)], (250, 150, 160))
    for y in (0.39, 0.46):
        brush.line([(0.06, y), (0.28, 0.42)], brush.ink, width=0.012)
        brush.line([(0.58, 0.42), (0.8, y)], brush.ink, width=0.012)


def _cup(brush: Brush) -> None:
    brush.ellipse(0.58, 0.26, 1, 0.76, brush.dark)
    brush.ellipse(0.68, 0.38, 0.9, 0.64, _CREAM)
    brush.polygon([(0, 0.1), (0.76, 0.1), (0.7, 0.9), (0.6, 1), (0.16, 1), (0.06, 0.9)])
    brush.ellipse(0, 0, 0.76, 0.22, brush.light)
    brush.ellipse(0.1, 0.06, 0.66, 0.19, (88, 54, 34))


def _fish(brush: Brush) -> None:
    brush.polygon([(0.34, 0.16), (0.5, 0), (0.66, 0.18)], brush.dark)
    brush.polygon([(0.4, 0.84), (0.52, 1), (0.62, 0.84)], brush.dark)
    brush.polygon([(0, 0.14), (0.28, 0.5), (0, 0.86), (0.1, 0.5)], brush.dark)
    brush.ellipse(0.18, 0.1, 1, 0.9)
    brush.line([(0.7, 0.22), (0.64, 0.5), (0.7, 0.78)], brush.dark, width=0.035)
    brush.spot(0.84, 0.38, 0.085, _WHITE)
    brush.spot(0.85, 0.38, 0.045, (16, 16, 16))


def _flower(brush: Brush) -> None:
    brush.rectangle(0.46, 0.5, 0.54, 1, _LEAF)
    brush.polygon([(0.5, 0.92), (0.16, 0.84), (0.04, 0.68), (0.36, 0.74)], _LEAF)
    brush.polygon([(0.5, 0.86), (0.84, 0.78), (0.96, 0.62), (0.64, 0.68)], _LEAF)
    for turn in range(6):
        angle = math.pi * (turn / 3 + 1 / 6)
        x, y = 0.5 + 0.345 * math.cos(angle), 0.332 + 0.2 * math.sin(angle)
        brush.ellipse(x - 0.2, y - 0.13, x + 0.2, y + 0.13)
    brush.ellipse(0.34, 0.225, 0.66, 0.435, brush.contrast)


def _house(brush: Brush) -> None:
    brush.rectangle(0.72, 0.04, 0.84, 0.4, _METAL)
    brush.rectangle(0.1, 0.42, 0.9, 1)
    brush.polygon([(0, 0.46), (0.5, 0), (1, 0.46)], brush.dark)
    brush.rectangle(0.6, 0.64, 0.78, 1, _WOOD)
    brush.rectangle(0.2, 0.58, 0.4, 0.78, _GLASS)


def _kite(brush: Brush) -> None:
    tail = [(0.5, 0.68), (0.58, 0.76), (0.42, 0.85), (0.56, 0.93), (0.48, 0.985)]
    brush.line(tail, _METAL, width=0.018)
    for x, y in (tail[1], tail[2], tail[3]):
        brush.polygon(
            [(x - 0.1, y - 0.03), (x + 0.1, y + 0.03), (x + 0.1, y - 0.03), (x - 0.1, y + 0.03)], brush.light
        )
    brush.rectangle(0.42, 0.965, 0.54, 1, brush.dark)
    brush.polygon([(0.5, 0), (1, 0.28), (0.5, 0.7), (0, 0.28)])
    brush.line([(0.5, 0.02), (0.5, 0.68)], brush.dark, width=0.022)
    brush.line([(0.03, 0.28), (0.97, 0.28)], brush.dark, width=0.022)


def _mushroom(brush: Brush) -> None:
    brush.polygon([(0.36, 0.5), (0.64, 0.5), (0.7, 0.92), (0.62, 1), (0.38, 1), (0.3, 0.92)], _CREAM)
    brush.ellipse(0.1, 0.5, 0.9, 0.66, (222, 204, 170))
    brush.dome(0, 0, 1, 0.6)


def _star(brush: Brush) -> None:
    corners = []
    for turn in range(10):
        angle = math.pi * (turn / 5 - 0.5)
        radius = 1.0 if turn % 2 == 0 else 0.45
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    brush.polygon([((x - left) / (right - left), (y - top) / (bottom - top)) for x, y in corners])


def _table(brush: Brush) -> None:
    for x in (0.08, 0.84):
        brush.rectangle(x, 0.3, x + 0.08, 1, _WOOD)
    brush.rectangle(0.04, 0.08, 0.96, 0.56)
    brush.rectangle(0, 0, 1, 0.14, brush.dark)


def _tree(brush: Brush) -> None:
    brush.rectangle(0.41, 0.7, 0.59, 1, _WOOD)
    brush.polygon([(0.5, 0.36), (1, 0.82), (0, 0.82)])
    brush.polygon([(0.5, 0.18), (0.9, 0.58), (0.1, 0.58)])
    brush.polygon([(0.5, 0), (0.8, 0.34), (0.2, 0.34)])


def _umbrella(brush: Brush) -> None:
    brush.rectangle(0.475, 0, 0.525, 0.9, _METAL)
    brush.line([(0.5, 0.86), (0.5, 0.94), (0.56, 0.975), (0.63, 0.94)], _METAL, width=0.05)
    brush.dome(0, 0.05, 1, 0.56)
    for x in (0.0, 0.25, 0.5, 0.75):
        brush.dome(x, 0.47, x + 0.25, 0.56, brush.dark)
    for x in (0.25, 0.5, 0.75):
        brush.line([(0.5, 0.07), (x, 0.5)], brush.dark, width=0.012)


FIGURES: dict[str, Callable[[Brush], None]] = {
    "ball": _ball,
    "bird": _bird,
    "boat": _boat,
    "box": _box,
    "car": _car,
    "cat": _cat,
    "cup": _cup,
    "fish": _fish,
    "flower": _flower,
    "house": _house,
    "kite": _kite,
    "mushroom": _mushroom,
    "star": _star,
    "table": _table,
    "tree": _tree,
    "umbrella": _umbrella,
}
