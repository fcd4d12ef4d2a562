"""Scenes: a pure function of seed and index, varied, and pairs that differ in one detail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.manifests.scenes.geometry import Box, between, holds, in_zone, union
from camp.manifests.scenes.scene import COLOURS, KINDS, MAX_THINGS, Scene, draw_scenes, sample_scene


def test_a_scene_depends_on_its_seed_and_index_alone() -> None:
    forwards = list(draw_scenes(7, 40))
    assert [sample_scene(7, index) for index in reversed(range(40))] == forwards[::-1]
    assert forwards != list(draw_scenes(8, 40))
    assert sample_scene(7, 33) == next(draw_scenes(7, 1, start=33))


def test_the_scenes_are_varied(default_scenes: list[Scene]) -> None:
    things = [thing for scene in default_scenes for thing in scene.things]
    assert {thing.kind for thing in things} == set(KINDS)
    assert len(KINDS) >= 12
    assert {thing.colour for thing in things} == set(COLOURS)
    assert len(COLOURS) >= 8
    assert {len(scene.things) for scene in default_scenes} == set(range(1, MAX_THINGS + 1)) - {1}
    assert {len(group) for scene in default_scenes for group in scene.groups} == {1, 2, 3, 4}
    assert len({(scene.width, scene.height) for scene in default_scenes}) > 300
    ratios = [scene.width / scene.height for scene in default_scenes]
    assert min(ratios) < 0.7
    assert max(ratios) > 1.5
    rarest = min(sum(thing.kind == kind for thing in things) for kind in KINDS)
    assert rarest > 0.4 * len(things) / len(KINDS)


def test_boxes_lie_inside_the_image_are_large_enough_and_apart(default_scenes: list[Scene]) -> None:
    for scene in default_scenes:
        boxes = [thing.box for thing in scene.things]
        for number, box in enumerate(boxes):
            assert box.x1 >= 0
            assert box.y1 >= 0
            assert box.x2 <= scene.width
            assert box.y2 <= scene.height
            assert min(box.width, box.height) >= 24
            assert not any(box.near(other, margin=0) for other in boxes[number + 1 :])


def test_most_scenes_have_a_partner(default_scenes: list[Scene]) -> None:
    paired = [scene for scene in default_scenes if scene.partner is not None]
    assert len(paired) == 0.8 * len(default_scenes)
    for scene in paired:
        assert scene.partner is not None
        assert default_scenes[scene.partner].partner == scene.index


def test_partners_differ_in_exactly_one_detail(default_scenes: list[Scene]) -> None:
    details = set()
    for scene in default_scenes:
        if scene.partner is None:
            assert scene.difference is None
            continue
        partner, difference = default_scenes[scene.partner], scene.difference
        assert difference is not None
        assert difference == partner.difference
        details.add(difference.detail)
        same = (scene.width, scene.height, scene.background, scene.backdrop)
        assert same == (partner.width, partner.height, partner.background, partner.backdrop)
        mine = [thing for thing in scene.things if thing.group == difference.group]
        theirs = [thing for thing in partner.things if thing.group == difference.group]
        rest = [thing for thing in scene.things if thing not in mine]
        other_rest = [thing for thing in partner.things if thing not in theirs]
        if difference.detail == "relation":
            looks = [replace(thing, box=Box(0, 0, 0, 0)) for thing in scene.things]
            assert looks == [replace(thing, box=Box(0, 0, 0, 0)) for thing in partner.things]
            moved = {a.group for a, b in zip(scene.things, partner.things, strict=True) if a != b}
            assert difference.group in moved
            assert moved <= {difference.group, difference.other}
            continue
        assert rest == other_rest
        if difference.detail == "count":
            fewer, more = sorted((mine, theirs), key=len)
            assert len(more) == len(fewer) + 1
            assert more[:-1] == fewer
        elif difference.detail == "colour":
            assert mine[0].colour != theirs[0].colour
            assert [replace(thing, colour=mine[0].colour) for thing in theirs] == mine
        else:
            assert mine[0].texture != theirs[0].texture
            assert [replace(thing, texture=mine[0].texture) for thing in theirs] == mine
    assert details == {"colour", "texture", "count", "relation"}


def test_the_words_of_a_size_are_never_in_doubt(default_scenes: list[Scene]) -> None:
    shares: dict[str, list[float]] = {"small": [], "medium": [], "large": []}
    for scene in default_scenes:
        for thing in scene.things:
            area = thing.box.width * thing.box.height
            shares[thing.size].append(area**0.5 / min(scene.width, scene.height))
    assert 1.3 * max(shares["small"]) < min(shares["medium"])
    assert 1.3 * max(shares["medium"]) < min(shares["large"])


def test_relations_in_pixels() -> None:
    table, cup, ball = Box(50, 60, 110, 100), Box(60, 30, 80, 60), Box(130, 70, 150, 90)
    assert holds("on", cup, table)
    assert holds("above", cup, table)
    assert holds("below", table, cup)
    assert not holds("on", table, cup)
    assert holds("left of", table, ball)
    assert holds("right of", ball, table)
    assert holds("next to", ball, table)
    assert holds("next to", table, ball)
    assert not holds("next to", ball.shifted(200, 0), table)
    assert not holds("left of", cup, cup.shifted(30, 90))  # far more below than beside
    assert between(table, ball, Box(0, 70, 20, 90))
    assert not between(ball, table, cup)
    assert in_zone("left", cup, width=300, height=90)
    assert in_zone("middle", cup, width=150, height=100)
    assert not in_zone("top", cup, width=150, height=100)


_boxes = st.builds(
    lambda x, y, w, h: Box(x, y, x + w, y + h),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(1, 80),
    st.integers(1, 80),
)


@settings(max_examples=200)
@given(_boxes, _boxes)
def test_relations_and_their_opposites_agree(a: Box, b: Box) -> None:
    assert holds("left of", a, b) == holds("right of", b, a)
    assert holds("above", a, b) == holds("below", b, a)
    assert holds("next to", a, b) == holds("next to", b, a)
    assert not (holds("left of", a, b) and holds("right of", a, b))
    assert not (holds("above", a, b) and holds("below", a, b))
    around = union([a, b])
    assert around == union([b, a])
    assert (around.x1, around.y2) == (min(a.x1, b.x1), max(a.y2, b.y2))


@pytest.mark.parametrize("index", [0, 3, 4])
def test_groups_hold_things_that_look_alike(index: int) -> None:
    for group in sample_scene(3, index).groups:
        assert len({(t.kind, t.colour, t.texture, t.size) for t in group}) == 1
