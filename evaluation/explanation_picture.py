"""An explanation and its photograph -> a picture: what each word looked at, and how far the gates opened."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from .explanation import Array, Explanation

_COLUMNS = 5
_BOXES_DRAWN = 3  # the best regions of a word get a frame
_TITLE_WIDTH = 125  # characters
_DARK = 0.25  # brightness of what nobody looked at

Pixels = npt.NDArray[np.uint8]


def placeholder(width: int, height: int) -> Pixels:
    """What stands for a photograph that cannot be found: grey, with the regions still drawn on it."""
    return np.asarray(Image.new("RGB", (max(width, 1), max(height, 1)), (150, 150, 150)))


def draw_explanations(
    explanations: list[Explanation], photographs: list[Pixels], *, titles: list[str], out: Path
) -> None:
    """One block of panels per explanation, one above the other."""
    rows = [1 + -(-len(_shown_words(explanation)) // _COLUMNS) for explanation in explanations]
    figure = Figure(figsize=(3 * _COLUMNS, 2.6 * sum(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    blocks = figure.subfigures(len(explanations), 1, height_ratios=rows, squeeze=False)[:, 0]
    for block, explanation, photograph, title, height in zip(
        blocks, explanations, photographs, titles, rows, strict=True
    ):
        line = f"{title}: “{explanation.text}”  score {explanation.score:.3g}"
        block.suptitle(textwrap.fill(line, _TITLE_WIDTH), fontsize=13)
        axes = block.subplots(height, _COLUMNS, squeeze=False)
        for axis in axes.flat:
            axis.axis("off")
        _draw_image(axes[0, 0], explanation, photograph)
        _draw_gates(axes[0, 2:], explanation)
        for panel, number in zip(axes[1:].flat, _shown_words(explanation), strict=False):
            _draw_word(panel, explanation, photograph, number)
    figure.savefig(out, dpi=80)


def _shown_words(explanation: Explanation) -> list[int]:
    """Every word but the marks of start and end; none where the model has no attention on regions."""
    if explanation.region_attention is None:
        return []
    return [number for number, word in enumerate(explanation.words) if not word.startswith("<")]


def _draw_image(axis: Axes, explanation: Explanation, photograph: Pixels) -> None:
    """The photograph, lit by each region's share of the image vector, or by the fovea."""
    weights, title = explanation.region_weight, "share of each region"
    if weights is None:
        weights, title = explanation.region_fovea, "the fovea"
    if weights is None:
        axis.imshow(photograph)
        axis.set_title("the image", fontsize=10)
        return
    weights = weights[: len(explanation.regions.boxes)]
    axis.imshow(light(photograph, explanation, weights))
    axis.set_title(title, fontsize=10)
    if explanation.region_fovea is not None:
        _frame_best(axis, explanation, photograph, weights)


def _draw_word(axis: Axes, explanation: Explanation, photograph: Pixels, number: int) -> None:
    assert explanation.region_attention is not None
    weights = explanation.region_attention[number][: len(explanation.regions.boxes)]
    axis.imshow(light(photograph, explanation, weights))
    _frame_best(axis, explanation, photograph, weights)
    gate = "" if explanation.word_gate is None else f"  gate {explanation.word_gate[number]:.2f}"
    axis.set_title(f"{explanation.words[number]}{gate}", fontsize=11)


def _frame_best(axis: Axes, explanation: Explanation, photograph: Pixels, weights: Array) -> None:
    """Frames around the strongest regions, the best one thickest."""
    scale = photograph.shape[1] / max(explanation.regions.width, 1)
    for rank, region in enumerate(np.argsort(-weights)[:_BOXES_DRAWN]):
        left, top, right, bottom = explanation.regions.boxes[region] * scale
        frame = Rectangle(
            (left, top),
            right - left,
            bottom - top,
            fill=False,
            edgecolor="orange",
            linewidth=2.5 - 0.8 * rank,
        )
        axis.add_patch(frame)


def light(photograph: Pixels, explanation: Explanation, weights: npt.NDArray[np.float32]) -> Pixels:
    """Brightness by the weight of the regions that cover a pixel: the strongest region is fully lit."""
    height, width = photograph.shape[:2]
    scale = width / max(explanation.regions.width, 1)
    brightness = np.zeros((height, width), np.float32)
    for box, weight in zip(explanation.regions.boxes, weights, strict=True):
        left, top, right, bottom = (round(float(edge) * scale) for edge in box)
        inside = (slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0)))
        brightness[inside] = np.maximum(brightness[inside], weight)
    brightness = _DARK + (1 - _DARK) * brightness / max(float(brightness.max()), 1e-12)
    return (photograph * brightness[..., None]).astype(np.uint8)


def _draw_gates(axes: npt.NDArray[np.object_], explanation: Explanation) -> None:
    """Bars of gate values and word weights, where the model has them."""
    words = explanation.words
    series = [
        ("gate of each word", words, explanation.word_gate),
        ("share of each word", words, explanation.word_weight),
        ("fovea of each word", words, explanation.word_fovea),
        (
            "gate of each region",
            [str(n) for n in range(len(explanation.regions.boxes))],
            explanation.region_gate,
        ),
    ]
    for axis, (title, names, values) in zip(
        axes, [entry for entry in series if entry[2] is not None], strict=False
    ):
        assert values is not None
        axis.axis("on")
        axis.bar(range(len(names)), values[: len(names)], color="tab:green")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=7)
        if names is words:
            axis.set_xticks(range(len(names)), names, rotation=90)
