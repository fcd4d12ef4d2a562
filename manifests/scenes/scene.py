"""A seed and an index -> a scene: what stands where, and the near-duplicate it belongs to.

Scenes come in blocks of five: two pairs that differ in one detail, and one scene on its own. A scene is a
pure function of its seed and index, so any number of processes can draw any part of a sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from .geometry import Box, holds, union
from .layout import Plot, arrange

KINDS = (
    "ball", "bird", "boat", "box", "car", "cat", "cup", "fish",
    "flower", "house", "kite", "mushroom", "star", "table", "tree", "umbrella",
)  # fmt: skip
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEXTURES = ("plain", "striped", "dotted", "checked")
SIZES = ("small", "medium", "large")
DIFFERENCES = ("colour", "texture", "count", "relation")

# What comes together, and where. Few casts for many scenes: who knows only the kinds of things cannot tell
# which of several scenes with the same cast is meant.
CASTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "meadow": (
        ("tree", "bird"),
        ("flower", "mushroom", "cat"),
        ("kite", "tree", "cat"),
        ("bird", "flower", "mushroom", "kite"),
    ),
    "beach": (
        ("ball", "umbrella"),
        ("boat", "fish", "bird"),
        ("umbrella", "kite", "star"),
        ("ball", "boat", "cup", "bird"),
    ),
    "night": (
        ("house", "star"),
        ("tree", "cat", "house"),
        ("car", "mushroom", "cat"),
        ("house", "tree", "car", "mushroom"),
    ),
    "room": (
        ("table", "cup"),
        ("cat", "ball", "box"),
        ("table", "flower", "umbrella"),
        ("cup", "cat", "flower", "box"),
    ),
    "snow": (
        ("house", "tree"),
        ("bird", "cup", "box"),
        ("tree", "umbrella", "star"),
        ("house", "bird", "box", "kite"),
    ),
    "street": (
        ("car", "umbrella"),
        ("house", "ball", "box"),
        ("car", "table", "cup"),
        ("umbrella", "box", "car", "table"),
    ),
    "desert": (
        ("kite", "table"),
        ("car", "star", "mushroom"),
        ("cup", "boat", "table"),
        ("kite", "box", "star", "ball"),
    ),
    "water": (
        ("fish", "boat"),
        ("fish", "star", "mushroom"),
        ("ball", "fish", "flower"),
        ("boat", "star", "fish", "ball"),
    ),
}
BACKGROUNDS = tuple(CASTS)
SUPPORTS = ("box", "table")  # flat on top: another thing can stand there

# A thing of the background's own colour could not be seen.
_CAMOUFLAGE = {"meadow": "green", "night": "black", "snow": "white", "desert": "orange", "water": "blue"}

# Width over height of each figure; the drawing fills this box to its four sides.
ASPECTS = {
    "ball": 1.0, "bird": 1.25, "boat": 1.15, "box": 1.1, "car": 1.6, "cat": 0.85, "cup": 1.1, "fish": 1.5,
    "flower": 0.65, "house": 1.0, "kite": 0.7, "mushroom": 1.0, "star": 1.05, "table": 1.5, "tree": 0.75,
    "umbrella": 1.05,
}  # fmt: skip

# The root of a thing's area, in short sides of the image: three ranges that nobody confuses.
_SIZE_RANGES = {"small": (0.17, 0.195), "medium": (0.28, 0.32), "large": (0.43, 0.49)}
_SHAPES = (1.0, 5 / 4, 4 / 3, 3 / 2, 8 / 5)  # long over short side of the image
_LONG_SIDES = (272, 340)  # pixels
_SHORT_SIDE = 208

BLOCK = 5  # scenes: (0, 1) and (2, 3) are pairs, 4 is alone
MAX_THINGS = 6


@dataclass(frozen=True, slots=True)
class Thing:
    """One drawn figure. Its box is xyxy in pixels, tight around the figure."""

    kind: str
    colour: str
    texture: str
    size: str
    box: Box
    group: int  # things of one group look alike and stand together
    mirrored: bool = False

    @property
    def label(self) -> int:
        """The class index: the position in KINDS."""
        return KINDS.index(self.kind)


@dataclass(frozen=True, slots=True)
class Difference:
    """The one detail in which a scene differs from its partner, and the groups it concerns."""

    detail: str  # one of DIFFERENCES
    group: int
    other: int | None = None  # of a relation


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything there is to know about one picture."""

    seed: int
    index: int
    width: int
    height: int
    background: str
    things: tuple[Thing, ...]
    backdrop: int  # what the background's hills and waves are drawn from; partners share it
    partner: int | None = None  # the index of the near-duplicate
    difference: Difference | None = None

    @property
    def groups(self) -> tuple[tuple[Thing, ...], ...]:
        """Things that look alike and stand together, in order."""
        numbers = sorted({thing.group for thing in self.things})
        return tuple(tuple(t for t in self.things if t.group == number) for number in numbers)


def sample_scene(seed: int, index: int) -> Scene:
    """A seed and an index -> the scene; the same on every machine."""
    block, place = divmod(index, BLOCK)
    pair = _draw_pair(seed, 3 * block + place // 2)
    if place == BLOCK - 1:
        return replace(pair[0], index=index, difference=None)
    second = place % 2
    return replace(pair[second], index=index, partner=index - 1 if second else index + 1)


def draw_scenes(seed: int, count: int, *, start: int = 0) -> Iterator[Scene]:
    """A seed -> its scenes start, start + 1, …"""
    for index in range(start, start + count):
        yield sample_scene(seed, index)


@lru_cache(maxsize=64)  # partners, and a scene's captions, ask for the same pair again
def _draw_pair(seed: int, unit: int) -> tuple[Scene, Scene]:
    """A seed and a number -> a scene and the same scene with one detail changed, in either order."""
    rng = random.Random(f"camp-sample/{seed}/{unit}")
    while True:
        pair = _try_pair(rng, seed=seed)
        if pair is not None:
            return pair if rng.random() < 0.5 else (pair[1], pair[0])


def _try_pair(rng: random.Random, *, seed: int) -> tuple[Scene, Scene] | None:
    """One attempt; None where the things found no room."""
    width, height = _draw_image_size(rng)
    background = rng.choice(BACKGROUNDS)
    detail = rng.choices(DIFFERENCES, weights=(40, 20, 20, 20))[0]
    plots = _draw_plots(rng, background=background, short=min(width, height), more=detail == "count")
    if plots is None:
        return None
    stack = _draw_stack(rng, plots)
    places = arrange(plots, width=width, height=height, rng=rng, stack=stack)
    if places is None:
        return None
    things = tuple(
        Thing(
            kind=plot.kind,
            colour=plot.colour,
            texture=plot.texture,
            size=plot.size,
            box=box,
            group=number,
            mirrored=plot.mirrored,
        )
        for number, plot in enumerate(plots)
        for box in plot.boxes(places[number])
    )
    first = Scene(seed, 0, width, height, background, things, backdrop=rng.getrandbits(32))
    second = _change(first, detail, rng=rng, stack=stack)
    if second is None:
        return None
    return replace(first, difference=second.difference), second


def _draw_image_size(rng: random.Random) -> tuple[int, int]:
    long = rng.randint(*_LONG_SIDES)
    short = max(_SHORT_SIDE, round(long / rng.choice(_SHAPES)))
    return (long, short) if rng.random() < 0.65 else (short, long)


def _draw_plots(rng: random.Random, *, background: str, short: int, more: bool) -> list[Plot] | None:
    """What the scene holds, group 0 being its main subject; `more` leaves room for one thing to go away."""
    cast = rng.choice(CASTS[background])
    kinds = rng.sample(cast, len(cast))
    if len(kinds) < 4 and rng.random() < 0.3:
        kinds.append(kinds[0])  # two groups of one kind: only the colour tells them apart
    colours = [colour for colour in COLOURS if colour != _CAMOUFLAGE.get(background)]
    counts = [rng.choices((1, 2, 3, 4), weights=(62, 20, 12, 6))[0] for _ in kinds]
    if more:
        counts[0] = rng.choices((2, 3, 4), weights=(50, 30, 20))[0]
    if sum(counts) > MAX_THINGS:
        return None
    plots: list[Plot] = []
    for kind, count in zip(kinds, counts, strict=True):
        free = [c for c in colours if all(plot.colour != c for plot in plots if plot.kind == kind)]
        size = rng.choices(SIZES, weights=(25, 45, 30) if count == 1 else (40, 60, 0))[0]
        area_root = short * rng.uniform(*_SIZE_RANGES[size])
        plots.append(
            Plot(
                kind=kind,
                colour=rng.choice(free),
                texture=rng.choices(TEXTURES, weights=(46, 18, 18, 18))[0],
                size=size,
                count=count,
                thing_width=round(area_root * ASPECTS[kind] ** 0.5),
                thing_height=round(area_root / ASPECTS[kind] ** 0.5),
                formation=rng.choice(("row", "heap")),
                mirrored=rng.random() < 0.5,
            )
        )
    return plots


def _draw_stack(rng: random.Random, plots: list[Plot]) -> tuple[int, int] | None:
    """(rider, support) where the main subject may stand on something flat, and does."""
    rider = plots[0]
    for number, plot in enumerate(plots[1:], start=1):
        fits = plot.kind in SUPPORTS and plot.count == 1 and plot.size != "small"
        if fits and rider.count == 1 and rider.thing_width < plot.thing_width and rng.random() < 0.6:
            return 0, number
    return None


def _change(scene: Scene, detail: str, *, rng: random.Random, stack: tuple[int, int] | None) -> Scene | None:
    """The scene -> the same with one detail of one group changed; None where the change has no room."""
    main = scene.groups[0]
    if detail == "count":
        things = tuple(thing for thing in scene.things if thing is not main[-1])
        return replace(scene, things=things, difference=Difference("count", 0))
    if detail == "relation":
        return _change_relation(scene, rng=rng, stack=stack)
    if detail == "texture":
        texture = rng.choice([t for t in TEXTURES if t != main[0].texture])
        return _repaint(scene, colour=main[0].colour, texture=texture, detail=detail)
    taken = {thing.colour for thing in scene.things if thing.kind == main[0].kind}
    free = [c for c in COLOURS if c not in taken and c != _CAMOUFLAGE.get(scene.background)]
    # A colour that the scene already has elsewhere cannot be told from the words alone: it needs the region.
    seen = [c for c in free if any(thing.colour == c for thing in scene.things)]
    colour = rng.choice(seen if seen and rng.random() < 0.6 else free)
    return _repaint(scene, colour=colour, texture=main[0].texture, detail=detail)


def _repaint(scene: Scene, *, colour: str, texture: str, detail: str) -> Scene:
    things = tuple(replace(t, colour=colour, texture=texture) if t.group == 0 else t for t in scene.things)
    return replace(scene, things=things, difference=Difference(detail, 0))


def _change_relation(scene: Scene, *, rng: random.Random, stack: tuple[int, int] | None) -> Scene | None:
    """Two groups change places, or the rider steps down beside its support."""
    boxes = [union([thing.box for thing in group]) for group in scene.groups]
    others = list(range(1, len(boxes)))
    rng.shuffle(others)
    for other in [stack[1]] if stack else others:
        if stack:
            moved = _step_down(boxes, rider=0, support=other, rng=rng)
        else:
            if not any(holds(r, boxes[0], boxes[other]) for r in ("left of", "right of", "above", "below")):
                continue
            moved = list(boxes)
            moved[0], moved[other] = boxes[0].centred_on(boxes[other]), boxes[other].centred_on(boxes[0])
        if not _fits(moved, width=scene.width, height=scene.height):
            continue
        things = tuple(
            replace(
                thing, box=thing.box.shifted(moved[thing.group].x1 - old.x1, moved[thing.group].y1 - old.y1)
            )
            for thing in scene.things
            for old in [boxes[thing.group]]
        )
        return replace(scene, things=things, difference=Difference("relation", 0, other))
    return None


def _step_down(boxes: list[Box], *, rider: int, support: int, rng: random.Random) -> list[Box]:
    moved = list(boxes)
    old, ground = boxes[rider], boxes[support]
    gap = 6
    left = ground.x1 - gap - old.width
    x = left if rng.random() < 0.5 else ground.x2 + gap
    moved[rider] = old.shifted(x - old.x1, ground.y2 - old.y2)
    return moved


def _fits(boxes: list[Box], *, width: int, height: int) -> bool:
    inside = all(b.x1 >= 2 and b.y1 >= 2 and b.x2 <= width - 2 and b.y2 <= height - 2 for b in boxes)
    return inside and not any(
        a.near(b, margin=3) for number, a in enumerate(boxes) for b in boxes[number + 1 :]
    )
