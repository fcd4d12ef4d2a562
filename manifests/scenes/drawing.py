"""A scene -> its picture, drawn with Pillow."""

from __future__ import annotations

from PIL import Image

from .backgrounds import paint_background
from .brush import Brush
from .figures import FIGURES
from .geometry import Box
from .scene import Scene

_SUPERSAMPLE = 2  # drawn this many times larger, then averaged: smooth edges


def render(scene: Scene) -> Image.Image:
    """A scene -> an RGB image of the scene's size; the same pixels every time."""
    factor = _SUPERSAMPLE
    canvas = paint_background(
        scene.background, width=scene.width * factor, height=scene.height * factor, backdrop=scene.backdrop
    )
    for thing in scene.things:
        brush = Brush(
            canvas,
            Box(*(factor * side for side in thing.box)),
            colour=thing.colour,
            texture=thing.texture,
            mirrored=thing.mirrored,
            line=factor,
        )
        FIGURES[thing.kind](brush)
    return canvas.reduce(factor)
