"""What a caption claims -> true or false of any scene, read off the scene's geometry.

Claims are closed: 'a red ball' says that there is exactly one red ball, so captions are true of few scenes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .geometry import Box, between, holds, in_zone, union
from .scene import Scene, Thing


@dataclass(frozen=True, slots=True)
class Description:
    """A kind and the properties that were mentioned of it."""

    kind: str
    colour: str | None = None
    texture: str | None = None
    size: str | None = None

    def fits(self, thing: Thing) -> bool:
        """Whether the words are true of this thing."""
        return (
            thing.kind == self.kind
            and self.colour in (None, thing.colour)
            and self.texture in (None, thing.texture)
            and self.size in (None, thing.size)
        )

    def record(self) -> dict[str, str]:
        """The properties that were mentioned, for JSON."""
        pairs = {"kind": self.kind, "colour": self.colour, "texture": self.texture, "size": self.size}
        return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Count:
    """There are exactly so many things of this description."""

    about: Description
    number: int

    def holds(self, scene: Scene) -> bool:
        return sum(self.about.fits(thing) for thing in scene.things) == self.number

    def record(self) -> list[Any]:
        return ["count", self.about.record(), self.number]


@dataclass(frozen=True, slots=True)
class Relation:
    """The things of one description, together, stand so to those of another."""

    about: Description
    relation: str  # one of geometry.RELATIONS
    other: Description

    def holds(self, scene: Scene) -> bool:
        a, b = _place(scene, self.about), _place(scene, self.other)
        return a is not None and b is not None and holds(self.relation, a, b)

    def record(self) -> list[Any]:
        return ["relation", self.about.record(), self.relation, self.other.record()]


@dataclass(frozen=True, slots=True)
class Between:
    """The things of one description stand between those of two others."""

    about: Description
    one: Description
    two: Description

    def holds(self, scene: Scene) -> bool:
        a, b, c = (_place(scene, which) for which in (self.about, self.one, self.two))
        return a is not None and b is not None and c is not None and between(a, b, c)

    def record(self) -> list[Any]:
        return ["between", self.about.record(), self.one.record(), self.two.record()]


@dataclass(frozen=True, slots=True)
class Zone:
    """The things of a description are in this part of the picture."""

    about: Description
    zone: str  # one of geometry.ZONES

    def holds(self, scene: Scene) -> bool:
        place = _place(scene, self.about)
        return place is not None and in_zone(self.zone, place, width=scene.width, height=scene.height)

    def record(self) -> list[Any]:
        return ["zone", self.about.record(), self.zone]


@dataclass(frozen=True, slots=True)
class Background:
    """Where it all is."""

    name: str

    def holds(self, scene: Scene) -> bool:
        return scene.background == self.name

    def record(self) -> list[Any]:
        return ["background", self.name]


Fact = Count | Relation | Between | Zone | Background


def _place(scene: Scene, about: Description) -> Box | None:
    """The box around all things of a description."""
    boxes = [thing.box for thing in scene.things if about.fits(thing)]
    return union(boxes) if boxes else None


def kinds_of(fact: Fact) -> frozenset[str]:
    """The kinds of things that a fact speaks of."""
    if isinstance(fact, Background):
        return frozenset()
    if isinstance(fact, Relation):
        return frozenset((fact.about.kind, fact.other.kind))
    if isinstance(fact, Between):
        return frozenset((fact.about.kind, fact.one.kind, fact.two.kind))
    return frozenset((fact.about.kind,))
