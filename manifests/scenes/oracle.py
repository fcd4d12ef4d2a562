"""Scenes and their captions -> how well retrieval can do that knows everything, or only the kinds of things.

An oracle prefers what contradicts its knowledge least, then what it confirms most. A true match is never
contradicted, so only fully true candidates can beat it: the ranks need one truth value per pair. Ties count
against the oracle: rank = 1 + the number of wrong candidates that score as well or better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from .facts import kinds_of
from .grammar import Caption
from .scene import Scene

Believes = Callable[[Caption, Scene], bool]


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
        everything=_recall(scenes, flat, believes=_is_true, weigh=lambda caption: len(caption.facts)),
        kinds_only=_recall(scenes, flat, believes=_kinds_present, weigh=lambda c: len(mentioned_kinds(c))),
    )


def mentioned_kinds(caption: Caption) -> frozenset[str]:
    """The kinds of things that a caption speaks of."""
    return frozenset(kind for fact in caption.facts for kind in kinds_of(fact))


def _is_true(caption: Caption, scene: Scene) -> bool:
    return all(fact.holds(scene) for fact in caption.facts)


def _kinds_present(caption: Caption, scene: Scene) -> bool:
    return mentioned_kinds(caption) <= {thing.kind for thing in scene.things}


def _recall(
    scenes: Sequence[Scene],
    captions: Sequence[tuple[Caption, int]],
    *,
    believes: Believes,
    weigh: Callable[[Caption], int],
) -> OracleRecall:
    best_own = [0] * len(scenes)  # the most that an own caption confirms
    best_other = [0] * len(scenes)  # and that a wrong one does
    captions_alone = 0
    for caption, image in captions:
        weight = weigh(caption)
        best_own[image] = max(best_own[image], weight)
        others = [n for n, scene in enumerate(scenes) if n != image and believes(caption, scene)]
        captions_alone += not others
        for other in others:
            best_other[other] = max(best_other[other], weight)
    images_first = sum(own > other for own, other in zip(best_own, best_other, strict=True))
    return OracleRecall(
        caption_retrieval=round(100 * images_first / max(1, len(scenes)), 1),
        image_retrieval=round(100 * captions_alone / max(1, len(captions)), 1),
    )
