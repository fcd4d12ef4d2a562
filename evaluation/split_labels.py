"""Images of a data set, and a model -> their labels, what it guesses of them, and the metrics of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..manifests.dataset import Dataset
from .label_metrics import best_threshold, label_metrics, micro_f1
from .ranks import Scores
from .run_scores import RunScores
from .split_scores import SplitRows, encode_captions, encode_images

Ints = npt.NDArray[np.int64]
Guesses = npt.NDArray[np.float32]

_ROWS = 512  # images or captions encoded at once


def split_labels(dataset: Dataset, image_ids: Ints) -> npt.NDArray[np.uint8] | None:
    """Images by id -> (I, L) multi-hot; None where the data set has no labels."""
    names = dataset.label_names
    if not names:
        return None
    lists = dataset.images["labels"].take(image_ids).to_pylist()  # an id is a position in the manifest
    labels = np.zeros((len(image_ids), len(names)), np.uint8)
    for row, found in enumerate(lists):
        labels[row, found or []] = 1
    return labels


@torch.no_grad()
def guess_labels(measured: RunScores) -> tuple[Guesses, Guesses] | None:
    """What the model takes every image and caption of a split for, (I, L) and (C, L); None if it does not."""
    model, rows, device = measured.model, measured.rows, measured.device
    images, captions = [], []
    for start in range(0, len(rows.image_ids), _ROWS):
        part = slice(start, min(start + _ROWS, len(rows.image_ids)))
        found = model.predict_labels(encode_images(model, rows, part, device=device))
        if found is None:
            return None
        images.append(found.float().cpu().numpy())
    for start in range(0, len(rows.caption_ids), _ROWS):
        part = slice(start, min(start + _ROWS, len(rows.caption_ids)))
        found = model.predict_labels(encode_captions(model, rows, part, device=device))
        assert found is not None
        captions.append(found.float().cpu().numpy())
    return np.concatenate(images), np.concatenate(captions)


def measure_labels(
    scores: Scores, rows: SplitRows, dataset: Dataset, *, run: RunScores, chosen_on: RunScores | None
) -> dict[str, Any] | None:
    """MAP and NDCG both ways; Micro-F1 of a model that names labels, at thresholds of another split."""
    labels = split_labels(dataset, rows.image_ids)
    if labels is None or not labels.any():
        return None
    metrics = label_metrics(scores, rows.caption_image, labels)
    guesses = guess_labels(run)
    if guesses is None:
        return metrics
    other, other_labels, other_rows = guesses, labels, rows
    if chosen_on is not None:
        found, there = guess_labels(chosen_on), split_labels(dataset, chosen_on.rows.image_ids)
        assert found is not None
        assert there is not None
        other, other_labels, other_rows = found, there, chosen_on.rows
    owners = (slice(None), rows.caption_image), (slice(None), other_rows.caption_image)
    metrics["micro_f1"] = {
        name: micro_f1(
            guesses[side],
            labels[owners[0][side]],
            threshold=best_threshold(other[side], other_labels[owners[1][side]]),
        )
        for side, name in enumerate(("image", "text"))
    }
    return metrics
