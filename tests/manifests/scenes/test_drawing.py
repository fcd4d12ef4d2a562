"""Pictures: the same pixels every time, and figures that fill their boxes and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import ImageChops

from camp.manifests.scenes.drawing import render
from camp.manifests.scenes.geometry import Box
from camp.manifests.scenes.scene import (
    ASPECTS,
    BACKGROUNDS,
    COLOURS,
    KINDS,
    TEXTURES,
    Scene,
    Thing,
    draw_scenes,
    sample_scene,
)


def _drawn_box(scene: Scene, number: int) -> Box:
    """Where the picture changes when one thing is taken away."""
    without = replace(scene, things=scene.things[:number] + scene.things[number + 1 :])
    changed = ImageChops.difference(render(scene), render(without)).getbbox()
    assert changed is not None
    return Box(*changed)


def _assert_tight(drawn: Box, box: Box) -> None:
    assert drawn.x1 >= box.x1
    assert drawn.y1 >= box.y1
    assert drawn.x2 <= box.x2
    assert drawn.y2 <= box.y2
    assert max(abs(a - b) for a, b in zip(drawn, box, strict=True)) <= 2


@pytest.mark.parametrize("size", [34, 90])
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_fills_its_box(kind: str, size: int) -> None:
    width, height = round(size * ASPECTS[kind] ** 0.5), round(size / ASPECTS[kind] ** 0.5)
    for mirrored in (False, True):
        for colour, texture in zip(("red", "white", "black", "yellow"), TEXTURES, strict=True):
            box = Box(20, 15, 20 + width, 15 + height)
            thing = Thing(kind, colour, texture, "medium", box, 0, mirrored)
            _assert_tight(_drawn_box(Scene(0, 0, 200, 160, "room", (thing,), backdrop=1), 0), box)


def test_boxes_of_drawn_scenes_are_tight() -> None:
    for scene in draw_scenes(5, 12):
        for number, thing in enumerate(scene.things):
            _assert_tight(_drawn_box(scene, number), thing.box)


def test_a_scene_is_drawn_the_same_every_time() -> None:
    scene = sample_scene(1, 2)
    assert render(scene).tobytes() == render(scene).tobytes()
    assert render(scene).size == (scene.width, scene.height)
    assert render(scene).mode == "RGB"


def test_partners_look_the_same_outside_the_detail() -> None:
    for index in range(0, 40, 5):
        scene, partner = sample_scene(0, index), sample_scene(0, index + 1)
        assert scene.difference is not None
        concerned = {scene.difference.group, scene.difference.other}
        boxes = [t.box for t in (*scene.things, *partner.things) if t.group in concerned]
        changed = ImageChops.difference(render(scene), render(partner))
        assert changed.getbbox() is not None
        for box in boxes:
            changed.paste((0, 0, 0), (box.x1, box.y1, box.x2, box.y2))
        assert changed.getbbox() is None


def test_colours_textures_and_backgrounds_can_be_told_apart() -> None:
    box = Box(30, 30, 90, 90)
    pictures = {
        render(
            Scene(0, 0, 120, 120, background, (Thing("ball", c, t, "large", box, 0),), backdrop=3)
        ).tobytes()
        for background in BACKGROUNDS
        for c in COLOURS
        for t in TEXTURES
    }
    assert len(pictures) == len(BACKGROUNDS) * len(COLOURS) * len(TEXTURES)
