"""Scenes and their captions -> how well retrieval can do that knows everything, or only the kinds of things.

An oracle prefers what contradicts its knowledge least, then what it confirms most. A true match is never
contradicted, so only fully true candidates can beat it: the ranks need one truth value per pair. Each oracle
is judged the strict way: ties count against the one that knows all, and are left to chance for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from .facts import kinds_of
from .grammar import Caption
from .scene import Scene


@dataclass(frozen=True, slots=True)
class OracleRecall:
    """R@1 in percent, in both directions."""

    caption_retrieval: float  # an image asks for one of its captions
    image_retrieval: float  # a caption asks for its image


@dataclass(frozen=True, slots=True)
class Fairness:
    """What can be reached on a split with all knowledge, and with the kinds of things alone."""

    everything: OracleRecall
    kinds_only: OracleRecall

    def record(self) -> dict[str, dict[str, float]]:
        return asdict(self)


def measure_fairness(scenes: Sequence[Scene], captions: Sequence[Sequence[Caption]]) -> Fairness:
    """The scenes of a split and the captions of each -> both oracles' recalls."""
    flat = [(caption, image) for image, written in enumerate(captions) for caption in written]
    return Fairness(
        everything=_recall(scenes, flat, believes=_is_true, weigh=_number_of_facts, chance=False),
        kinds_only=_recall(scenes, flat, believes=_kinds_present, weigh=_number_of_kinds, chance=True),
    )


def mentioned_kinds(caption: Caption) -> frozenset[str]:
    """The kinds of things that a caption speaks of."""
    return frozenset(kind for fact in caption.facts for kind in kinds_of(fact))


def _is_true(caption: Caption, scene: Scene) -> bool:
    return all(fact.holds(scene) for fact in caption.facts)


def _number_of_facts(caption: Caption) -> int:
    return len(caption.facts)


def _kinds_present(caption: Caption, scene: Scene) -> bool:
    return mentioned_kinds(caption) <= {thing.kind for thing in scene.things}


def _number_of_kinds(caption: Caption) -> int:
    return len(mentioned_kinds(caption))


def _recall(
    scenes: Sequence[Scene],
    captions: Sequence[tuple[Caption, int]],
    *,
    believes: Callable[[Caption, Scene], bool],
    weigh: Callable[[Caption], int],
    chance: bool,
) -> OracleRecall:
    """What it believes of which scene, and how much a caption confirms -> R@1; `chance` breaks ties."""
    right: list[list[int]] = [[] for _ in scenes]  # what each image's own captions confirm
    wrong: list[list[int]] = [[] for _ in scenes]  # and the believed ones of other images
    image_hits = 0.0
    for caption, image in captions:
        others = [n for n, scene in enumerate(scenes) if n != image and believes(caption, scene)]
        image_hits += _share(1, len(others), chance=chance)
        right[image].append(weigh(caption))
        for other in others:
            wrong[other].append(weigh(caption))
    caption_hits = 0.0
    for mine, theirs in zip(right, wrong, strict=True):
        best = max(mine)
        if best >= max(theirs, default=0):
            caption_hits += _share(mine.count(best), theirs.count(best), chance=chance)
    return OracleRecall(
        caption_retrieval=round(100 * caption_hits / max(1, len(scenes)), 1),
        image_retrieval=round(100 * image_hits / max(1, len(captions)), 1),
    )


def _share(right: int, wrong: int, *, chance: bool) -> float:
    """How often a right candidate comes first among equals."""
    return right / (right + wrong) if chance else float(wrong == 0)
