"""A run and a split -> its score matrix, with the time that encoding and scoring took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ..models.tiles import score_matrix
from ..progress import ProgressFactory, no_progress
from .run_scores import RunScores
from .split_scores import IMAGE_ROWS, encode_captions, encode_images

_SHORT_SECONDS = (
    0.5  # what takes less is timed again: the first pass over a small matrix is mostly warming up
)
_REPEATS = 3

Value = TypeVar("Value")


@dataclass(frozen=True)
class TimedScores:
    """Every image with every caption, and what it cost."""

    matrix: npt.NDArray[np.float32]  # (I, C)
    encode_seconds: float  # each image and caption once, features read from disk
    score_seconds: float  # the matrix from the encodings

    @property
    def microseconds_per_pair(self) -> float:
        return 1e6 * self.score_seconds / self.matrix.size


def timed_scores(scores: RunScores, *, progress: ProgressFactory = no_progress) -> TimedScores:
    """As score_split does it: all captions and a block of images in memory."""
    rows, device = scores.rows, scores.device
    captions, encoding = _timed(lambda: encode_captions(scores.model, rows, device=device), device)
    matrix = np.empty((len(rows.image_ids), len(rows.caption_ids)), np.float32)
    scoring = 0.0
    with progress("scoring", len(matrix), "images") as bar:
        for start in range(0, len(matrix), IMAGE_ROWS):
            part = slice(start, min(start + IMAGE_ROWS, len(matrix)))
            images, seconds = _timed(
                lambda part=part: encode_images(scores.model, rows, part, device=device),  # type: ignore[misc]
                device,
            )
            encoding += seconds
            score = lambda images=images: score_matrix(scores.model, images, captions)  # noqa: E731
            block, seconds = _timed(score, device)
            if seconds < _SHORT_SECONDS:
                seconds = min(_timed(score, device)[1] for _ in range(_REPEATS))
            scoring += seconds
            matrix[part] = block.float().cpu().numpy()
            bar.advance(len(block))
    return TimedScores(matrix, encoding, scoring)


def _timed(function: Callable[[], Value], device: torch.device) -> tuple[Value, float]:
    start = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - start
