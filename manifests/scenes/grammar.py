"""A scene -> five captions, each with the facts it claims.

A caption picks some of the scene's groups, some of their properties and some of their relations, and puts
them into one of several sentence frames. Its facts are kept beside its words, so its truth can be computed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from . import words
from .facts import Background, Between, Count, Description, Fact, Relation, Zone
from .geometry import RELATIONS, ZONES, between, holds, in_zone, union
from .scene import Scene, sample_scene

CAPTIONS_PER_IMAGE = 5

_VAGUE = 0.5  # of the scenes with a partner have one caption that may be true of both
_Word = TypeVar("_Word")


@dataclass(frozen=True, slots=True)
class Caption:
    """A sentence and what it claims."""

    text: str
    facts: tuple[Fact, ...]

    @property
    def tokens(self) -> list[str]:
        """The words in lower case, without punctuation, as Karpathy's files list them."""
        return re.findall(r"[a-z]+(?:-[a-z]+)*", self.text.lower())


def write_captions(scene: Scene) -> tuple[Caption, ...]:
    """A scene -> its captions, all different; the same every time.

    Of a scene with a near-duplicate, all but at most one caption mention the detail that tells the two apart.
    """
    rng = random.Random(f"camp-sample/{scene.seed}/captions/{scene.index}")
    partner = None if scene.partner is None else sample_scene(scene.seed, scene.partner)
    vague = rng.randrange(CAPTIONS_PER_IMAGE) if rng.random() < _VAGUE else None
    captions: list[Caption] = []
    while len(captions) < CAPTIONS_PER_IMAGE:
        caption = _Writer(scene, rng).write()
        if any(caption.text == other.text for other in captions):
            continue
        if partner and len(captions) != vague and all(fact.holds(partner) for fact in caption.facts):
            continue
        captions.append(caption)
    return tuple(captions)


class _Writer:
    """Writes one caption: the facts collect while the words are chosen."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self._scene, self._rng = scene, rng
        self._facts: list[Fact] = []
        self._groups = scene.groups
        self._boxes = [union(thing.box for thing in group) for group in self._groups]
        self._about = [self._describe(number) for number in range(len(self._groups))]

    def write(self) -> Caption:
        """One sentence about some of the scene."""
        rng = self._rng
        order = list(range(len(self._groups)))
        rng.shuffle(order)
        if rng.random() < 0.7:
            order.sort(key=lambda number: number != 0)  # the main subject comes first
        subjects, place, rest = self._predicate(order)
        tail = ""
        if rest and rng.random() < 0.4:
            tail = f", {self._pick(words.TAIL_WORDS)} {self._nouns(rest[: rng.randint(1, len(rest))])}"
        text = self._sentence(subjects, place) + tail
        return Caption(text[0].upper() + text[1:] + ".", tuple(dict.fromkeys(self._facts)))

    def _describe(self, number: int) -> Description:
        """The properties to mention of a group: some of them, and enough to mean no other group."""
        thing, rng = self._groups[number][0], self._rng
        twin = any(group[0].kind == thing.kind for group in self._groups if group[0] is not thing)
        textured, sized = thing.texture != "plain", thing.size != "medium"
        return Description(
            kind=thing.kind,
            colour=thing.colour if twin or rng.random() < 0.78 else None,
            texture=thing.texture if rng.random() < (0.6 if textured else 0.1) else None,
            size=thing.size if sized and rng.random() < 0.45 else None,
        )

    def _predicate(self, order: list[int]) -> tuple[list[int], str, list[int]]:
        """Groups, the important first -> who the sentence is about, where they are, who is left."""
        rng, first, boxes = self._rng, order[0], self._boxes
        choice = rng.choices(("relation", "list", "zone", "between"), weights=(50, 25, 13, 12))[0]
        if choice == "relation":
            true = [
                (r, other) for other in order[1:] for r in RELATIONS if holds(r, boxes[first], boxes[other])
            ]
            if true:
                # What stands on something is also above it; nobody would say so.
                strong = [pair for pair in true if pair[0] == "on"]
                relation, other = rng.choice(strong or true)
                self._facts.append(Relation(self._about[first], relation, self._about[other]))
                place = f"{self._pick(words.RELATION_WORDS[relation])} {self._nouns([other])}"
                return [first], place, [number for number in order[1:] if number != other]
        if choice == "between":
            for one in order[1:]:
                for two in order[1:]:
                    if one < two and between(boxes[first], boxes[one], boxes[two]):
                        self._facts.append(Between(*(self._about[number] for number in (first, one, two))))
                        place = f"{self._pick(words.BETWEEN_WORDS)} {self._nouns([one, two])}"
                        return [first], place, [number for number in order[1:] if number not in (one, two)]
        if choice == "zone":
            width, height = self._scene.width, self._scene.height
            zones = [zone for zone in ZONES if in_zone(zone, boxes[first], width=width, height=height)]
            if zones:
                zone = rng.choice(zones)
                self._facts.append(Zone(self._about[first], zone))
                return [first], self._pick(words.ZONE_WORDS[zone]), order[1:]
        number = rng.randint(2, len(order))
        return order[:number], "", order[number:]

    def _sentence(self, subjects: list[int], place: str) -> str:
        """The subjects and where they are -> a sentence in one of the frames, the background told or not."""
        rng = self._rng
        nouns = self._nouns(subjects)
        many = len(self._groups[subjects[0]]) > 1
        frame = rng.choices(
            ("bare", "verb", "participle", "there", "picture", "seen", "fronted", "backdrop"),
            weights=(20, 18, 12, 12, 8, 8, 11, 11),
        )[0]
        background = ""
        if frame in ("fronted", "backdrop") or rng.random() < 0.6:
            self._facts.append(Background(self._scene.background))
            choices = words.BACKGROUND_NOUNS if frame == "backdrop" else words.BACKGROUND_WORDS
            background = self._pick(choices[self._scene.background])
        if frame == "bare":
            return _spaced(nouns, place, background)
        if frame == "verb":
            return _spaced(
                nouns, self._verb(subjects, "finite", bare=not (place or background)), place, background
            )
        if frame == "participle":
            return _spaced(nouns, self._verb(subjects, "participle"), place, background)
        if frame == "there":
            return _spaced("there", "are" if many else "is", nouns, place, background)
        if frame == "picture":
            return _spaced(self._pick(words.PICTURE_WORDS), "of", nouns, place, background)
        if frame == "seen":
            return _spaced(self._pick(words.SEEN_WORDS), nouns, place, background)
        if frame == "fronted":
            return _spaced(f"{background},", nouns, self._verb(subjects, "finite", bare=not place), place)
        return _spaced(background, "with", nouns, place)

    def _verb(self, subjects: list[int], form: str, *, bare: bool = False) -> str:
        """What the subjects do; `bare` when no place follows that a plain 'is' could lean on."""
        rng, many = self._rng, len(subjects) > 1 or len(self._groups[subjects[0]]) > 1
        verbs = words.VERBS[self._groups[subjects[0]][0].kind]
        if len(subjects) > 1:
            verbs = words.SHARED_VERBS
        singular, plural, participle = self._pick(verbs)
        if form == "participle":
            return participle
        if rng.random() < 0.5:
            return plural if many else singular
        return "can be seen" if bare else ("are" if many else "is")

    def _nouns(self, numbers: Sequence[int]) -> str:
        """Groups -> 'two red balls, a cup and a tree', each claim put down as a fact."""
        phrases = [self._noun(number) for number in numbers]
        *heads, last = phrases
        return f"{', '.join(heads)} and {last}" if heads else last

    def _noun(self, number: int) -> str:
        about, count, rng = self._about[number], len(self._groups[number]), self._rng
        self._facts.append(Count(about, count))
        size = self._pick(words.SIZE_WORDS[about.size]) if about.size else ""
        colour = self._pick(words.COLOUR_WORDS[about.colour]) if about.colour else ""
        texture = tail = ""
        if about.texture and rng.random() < 0.35:
            tail = self._pick(words.TEXTURE_TAILS[about.texture])
        elif about.texture:
            texture = self._pick(words.TEXTURE_WORDS[about.texture])
        looks = [colour, texture] if rng.random() < 0.5 else [texture, colour]
        noun = self._pick(words.NOUNS[about.kind])[count > 1]
        phrase = _spaced(size, *looks, noun, tail)
        number_word = self._pick(words.NUMBER_WORDS[count])
        if number_word == "a" and phrase[0] in "aeiou":
            number_word = "an"
        return f"{number_word} {phrase}"

    def _pick(self, choices: Sequence[_Word]) -> _Word:
        """The commonest word half of the time, any other one otherwise."""
        if len(choices) == 1 or self._rng.random() < 0.5:
            return choices[0]
        return self._rng.choice(choices[1:])


def _spaced(*parts: str) -> str:
    return " ".join(part for part in parts if part)
