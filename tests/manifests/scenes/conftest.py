"""The default sample's scenes and captions, made once: no drawing is needed for most questions."""

from __future__ import annotations

import pytest

from camp.manifests.scenes.grammar import Caption, write_captions
from camp.manifests.scenes.scene import Scene, draw_scenes


@pytest.fixture(scope="session")
def default_scenes() -> list[Scene]:
    return list(draw_scenes(0, 1200))


@pytest.fixture(scope="session")
def default_captions(default_scenes: list[Scene]) -> list[tuple[Caption, ...]]:
    return [write_captions(scene) for scene in default_scenes]
