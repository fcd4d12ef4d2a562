"""Numbers -> small SVG charts that take their colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 40


@dataclass(frozen=True)
class Series:
    """One line; `style` is a number of the palette, from 1."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int
    dashed: bool = False
    labels: Sequence[str] = ()  # one per point, drawn beside it


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, log_x: bool = False
) -> str:
    """Lines over a common x; '' where no series has a point."""
    points = [point for line in series for point in line.points]
    if not points:
        return ""

    def along(value: float) -> float:
        return math.log10(value) if log_x else value

    x_low, x_high = _spread([along(x) for x, _ in points])
    ticks = nice_ticks(min(y for _, y in points), max(y for _, y in points))
    y_low, y_high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (along(x) - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)
        down = HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
        return across, down

    parts = [_y_axis(ticks, lambda y: place(points[0][0], y)[1], y_label), _x_label(x_label)]
    for tick in _x_ticks(x_low, x_high, log_x=log_x):
        x = place(tick, y_low)[0]
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle">{tick:g}</text>')
    for line in series:
        placed = [place(*point) for point in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        style = f"c{line.style}" + (" dashed" if line.dashed else "")
        parts.append(f'<polyline class="line {style}" points="{path}"/>')
        if len(placed) <= 40:
            parts += [f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed]
        for (x, y), label in zip(placed, line.labels, strict=False):
            anchor = "end" if x > WIDTH - 80 else "start"
            shift = -7 if anchor == "end" else 7
            parts.append(
                f'<text class="tick" x="{x + shift:.1f}" y="{y - 7:.1f}" text-anchor="{anchor}">'
                f"{escape(label)}</text>"
            )
    return _figure(title, parts, {line.name: (line.style, line.dashed) for line in series})


def bar_chart(
    title: str, labels: Sequence[str], groups: Mapping[str, Sequence[float]], *, x_label: str, y_label: str
) -> str:
    """Bars side by side, one colour per group."""
    ticks = nice_ticks(0, max((value for values in groups.values() for value in values), default=1))
    top = ticks[-1]
    room = (WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    width = room * 0.76 / max(1, len(groups))

    def height(value: float) -> float:
        return value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [_y_axis(ticks, lambda y: HEIGHT - _BOTTOM - height(y), y_label), _x_label(x_label)]
    for number, label in enumerate(labels):
        left = _LEFT + number * room + room * 0.12
        for group, (name, values) in enumerate(groups.items()):
            tall = height(values[number])
            parts.append(
                f'<rect class="bar c{group + 1}" x="{left + group * width:.1f}" '
                f'y="{HEIGHT - _BOTTOM - tall:.1f}" width="{max(width - 1, 0.5):.1f}" height="{tall:.1f}">'
                f"<title>{escape(name)}, {escape(label)}: {values[number]:.3g}</title></rect>"
            )
        parts.append(
            f'<text class="tick" x="{_LEFT + (number + 0.5) * room:.1f}" y="{HEIGHT - 24}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
    return _figure(title, parts, {name: (number + 1, False) for number, name in enumerate(groups)})


def nice_ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """Round numbers from below the lowest value to above the highest."""
    low, high = _spread([low, high])
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x_ticks(low: float, high: float, *, log_x: bool) -> list[float]:
    if not log_x:
        return [tick for tick in nice_ticks(low, high, count=6) if low <= tick <= high]
    steps = [
        size * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for size in (1, 2, 5)
    ]
    inside = [step for step in steps if low <= math.log10(step) <= high]
    return inside if len(inside) < 8 else [step for step in inside if f"{step:e}".startswith("1")]


def _y_axis(ticks: Sequence[float], place: object, label: str) -> str:
    assert callable(place)
    parts = []
    for tick in ticks:
        y = place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
        )
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    turned = f'transform="rotate(-90 12 {middle:.0f})"'
    parts.append(
        f'<text class="axis" x="12" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(label)}</text>'
    )
    return "".join(parts)


def _x_label(label: str) -> str:
    middle = (WIDTH + _LEFT - _RIGHT) / 2
    return f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>'


def _figure(title: str, parts: Sequence[str], legend: Mapping[str, tuple[int, bool]]) -> str:
    keys = "".join(
        f'<span class="key"><i class="c{style}{" dashed" if dashed else ""}"></i>{escape(name)}</span>'
        for name, (style, dashed) in legend.items()
    )
    legend_html = f'<div class="legend">{keys}</div>' if len(legend) > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(parts)}</svg>{legend_html}</figure>"
    )
