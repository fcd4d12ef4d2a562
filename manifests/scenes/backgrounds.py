"""A background's name -> a painted canvas without a single thing on it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from PIL import Image, ImageDraw

from .brush import Rgb, mix

_Painter = Callable[[Image.Image, random.Random], None]


def paint_background(name: str, *, width: int, height: int, backdrop: int) -> Image.Image:
    """A name, a size and a number for the details -> the canvas."""
    canvas = Image.new("RGB", (width, height))
    BACKGROUND_PAINTERS[name](canvas, random.Random(backdrop))
    return canvas


def _sky(canvas: Image.Image, top: Rgb, bottom: Rgb, *, until: float = 1.0) -> None:
    """A gradient from the upper edge down to a share of the height."""
    depth, tones = round(canvas.height * until), 32
    strip = Image.new("RGB", (1, tones))
    strip.putdata([mix(top, bottom, row / (tones - 1)) for row in range(tones)])
    column = strip.resize((1, depth), Image.Resampling.BILINEAR)
    canvas.paste(column.resize((canvas.width, depth), Image.Resampling.NEAREST), (0, 0))


def _hills(canvas: Image.Image, rng: random.Random, colour: Rgb, *, top: float, swing: float) -> None:
    """A wavy ground from about `top` of the height to the lower edge."""
    width, height = canvas.size
    waves, shift = rng.uniform(0.6, 1.6), rng.uniform(0, 6.28)
    ridge = [
        (x, height * (top + swing * math.sin(shift + waves * 6.28 * x / width)))
        for x in range(0, width + 16, 16)
    ]
    ImageDraw.Draw(canvas).polygon([(0, height), *ridge, (width, height)], fill=colour)


def _meadow(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (150, 206, 246), (222, 240, 252), until=0.6)
    _hills(canvas, rng, (146, 204, 110), top=rng.uniform(0.4, 0.5), swing=0.04)
    _hills(canvas, rng, (120, 188, 88), top=rng.uniform(0.58, 0.68), swing=0.04)
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    for _ in range(26):
        x, y = rng.uniform(0, width), rng.uniform(0.74, 0.99) * height
        draw.line([(x - 5, y - 9), (x, y), (x + 4, y - 11)], fill=(92, 160, 66), width=2)


def _beach(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (140, 208, 248), (214, 240, 252), until=0.4)
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    sea, sand = rng.uniform(0.24, 0.32), rng.uniform(0.46, 0.56)
    draw.rectangle((0, sea * height, width, sand * height), fill=(72, 160, 206))
    for _ in range(7):
        x, y = rng.uniform(0, width), rng.uniform(sea + 0.03, sand - 0.03) * height
        draw.line([(x, y), (x + 40, y)], fill=(160, 214, 236), width=3)
    _hills(canvas, rng, (244, 250, 252), top=sand - 0.012, swing=0.015)
    _hills(canvas, rng, (240, 218, 164), top=sand + 0.015, swing=0.015)
    for _ in range(60):
        x, y = rng.uniform(0, width), rng.uniform(sand + 0.06, 1) * height
        draw.point((x, y), fill=(206, 178, 120))


def _night(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (22, 26, 66), (66, 70, 124))
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    size, x = 0.13 * min(width, height), rng.uniform(0.08, 0.78) * width
    draw.ellipse((x, 0.05 * height, x + size, 0.05 * height + size), fill=(246, 240, 206))
    draw.ellipse(
        (x + 0.3 * size, 0.03 * height, x + 1.2 * size, 0.03 * height + 0.9 * size), fill=(27, 31, 72)
    )
    _hills(canvas, rng, (42, 52, 92), top=rng.uniform(0.62, 0.7), swing=0.05)
    _hills(canvas, rng, (32, 42, 72), top=rng.uniform(0.78, 0.86), swing=0.04)


def _room(canvas: Image.Image, rng: random.Random) -> None:
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    wall = rng.choice([(236, 224, 202), (226, 216, 222), (214, 226, 222)])
    floor = round(rng.uniform(0.62, 0.72) * height)
    draw.rectangle((0, 0, width, floor), fill=wall)
    for x in range(0, width, 28):
        draw.line([(x, 0), (x, floor)], fill=mix(wall, (0, 0, 0), 0.05), width=2)
    draw.rectangle((0, floor, width, height), fill=(196, 154, 110))
    for number, y in enumerate(range(floor, height, 26)):
        draw.line([(0, y), (width, y)], fill=(168, 126, 84), width=2)
        for x in range(60 * (number % 2), width, 150):
            draw.line([(x, y), (x, y + 26)], fill=(168, 126, 84), width=2)
    draw.rectangle((0, floor - 10, width, floor), fill=(250, 246, 238))


def _snow(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (164, 184, 206), (212, 222, 234), until=0.7)
    _hills(canvas, rng, (222, 232, 242), top=rng.uniform(0.42, 0.5), swing=0.06)
    _hills(canvas, rng, (238, 244, 250), top=rng.uniform(0.6, 0.7), swing=0.04)
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    for _ in range(50):
        x, y, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(1.5, 3.5)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 255, 255))


def _street(canvas: Image.Image, rng: random.Random) -> None:
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    kerb, road = round(rng.uniform(0.4, 0.48) * height), round(rng.uniform(0.56, 0.62) * height)
    draw.rectangle((0, 0, width, kerb), fill=(196, 150, 134))
    for number, y in enumerate(range(0, kerb, 18)):
        draw.line([(0, y), (width, y)], fill=(214, 180, 166), width=2)
        for x in range(20 * (number % 2), width, 40):
            draw.line([(x, y), (x, min(y + 18, kerb))], fill=(214, 180, 166), width=2)
    draw.rectangle((0, kerb, width, road), fill=(204, 204, 204))
    draw.rectangle((0, road, width, height), fill=(122, 124, 130))
    draw.rectangle((0, road, width, road + 5), fill=(168, 170, 174))
    lane = (road + height) // 2
    for x in range(rng.randrange(40), width, 90):
        draw.rectangle((x, lane, x + 46, lane + 7), fill=(236, 236, 228))


def _desert(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (250, 206, 150), (254, 236, 200), until=0.7)
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    size, x = 0.16 * min(width, height), rng.uniform(0.1, 0.75) * width
    draw.ellipse((x, 0.06 * height, x + size, 0.06 * height + size), fill=(255, 250, 226))
    _hills(canvas, rng, (232, 184, 120), top=rng.uniform(0.44, 0.52), swing=0.06)
    _hills(canvas, rng, (220, 166, 98), top=rng.uniform(0.62, 0.7), swing=0.05)
    _hills(canvas, rng, (208, 150, 84), top=rng.uniform(0.82, 0.9), swing=0.04)


def _water(canvas: Image.Image, rng: random.Random) -> None:
    _sky(canvas, (118, 206, 224), (24, 112, 156))
    draw, (width, height) = ImageDraw.Draw(canvas), canvas.size
    for _ in range(24):
        x, y, r = rng.uniform(0, width), rng.uniform(0, height * 0.9), rng.uniform(3, 8)
        draw.ellipse((x - r, y - r, x + r, y + r), outline=(190, 234, 242), width=2)
    _hills(canvas, rng, (198, 190, 142), top=rng.uniform(0.88, 0.92), swing=0.02)


BACKGROUND_PAINTERS: dict[str, _Painter] = {
    "meadow": _meadow,
    "beach": _beach,
    "night": _night,
    "room": _room,
    "snow": _snow,
    "street": _street,
    "desert": _desert,
    "water": _water,
}
