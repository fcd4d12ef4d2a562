"""Fairness: the default sample can be solved by who knows everything, not by who knows only the kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from camp.manifests.scenes.grammar import Caption, write_captions
from camp.manifests.scenes.oracle import OracleRecall, measure_fairness, mentioned_kinds
from camp.manifests.scenes.scene import Scene, draw_scenes

Captions = list[tuple[Caption, ...]]


def test_the_default_sample_is_fair(default_scenes: list[Scene], default_captions: Captions) -> None:
    fairness = measure_fairness(default_scenes[1100:], default_captions[1100:])
    assert fairness.everything.image_retrieval >= 80
    assert fairness.everything.caption_retrieval >= 80
    assert fairness.kinds_only.image_retrieval <= 30
    assert fairness.kinds_only.caption_retrieval <= 30


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_are_fair(seed: int) -> None:
    scenes = list(draw_scenes(seed, 100, start=1100))
    fairness = measure_fairness(scenes, [write_captions(scene) for scene in scenes])
    assert min(fairness.everything.image_retrieval, fairness.everything.caption_retrieval) >= 80
    assert max(fairness.kinds_only.image_retrieval, fairness.kinds_only.caption_retrieval) <= 30


def test_the_recalls_equal_a_ranking_of_all_scores(
    default_scenes: list[Scene], default_captions: Captions
) -> None:
    scenes, captions = default_scenes[1100:1140], default_captions[1100:1140]

    def everything(caption: Caption, scene: Scene) -> tuple[int, int]:
        true = sum(fact.holds(scene) for fact in caption.facts)
        return true - len(caption.facts), true  # fewest contradictions, then most confirmed

    def kinds_only(caption: Caption, scene: Scene) -> tuple[int, int]:
        mentioned = mentioned_kinds(caption)
        present = len(mentioned & {thing.kind for thing in scene.things})
        return present - len(mentioned), present

    fairness = measure_fairness(scenes, captions)
    assert fairness.everything == _ranked(scenes, captions, everything, chance=False)
    assert fairness.kinds_only == _ranked(scenes, captions, kinds_only, chance=True)


def _ranked(
    scenes: list[Scene],
    captions: Captions,
    score: Callable[[Caption, Scene], tuple[int, int]],
    *,
    chance: bool,
) -> OracleRecall:
    """Every score of every pair, then the place of each query's answer, tie by tie."""
    flat = [(caption, image) for image, written in enumerate(captions) for caption in written]
    by_image = [
        [(score(caption, scene), owner == n) for caption, owner in flat] for n, scene in enumerate(scenes)
    ]
    by_caption = [
        [(score(caption, scene), owner == n) for n, scene in enumerate(scenes)] for caption, owner in flat
    ]

    def hits(queries: list[list[tuple[tuple[int, int], bool]]]) -> float:
        total = 0.0
        for candidates in queries:
            top = [right for value, right in candidates if value == max(candidates)[0]]
            total += sum(top) / len(top) if chance else all(top)
        return round(100 * total / len(queries), 1)

    return OracleRecall(caption_retrieval=hits(by_image), image_retrieval=hits(by_caption))
