"""A run's score matrix -> queries worth seeing, their first answers, and an explanation of every pair."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ..errors import CampError
from ..extractors.photograph import read_photograph
from ..manifests.manifest import image_rows
from ..pipeline.extract_state import read_names
from ..pipeline.extract_worker import read_bytes
from ..pipeline.region_picture import region_labels
from ..schema import ImageRow
from .explanation import Explanation, explain
from .explanation_picture import placeholder
from .query import QueryEncoder
from .ranks import Ranks, Scores
from .split_scores import SplitRows

THUMBNAIL = 360  # pixels of the longer side
SHOWN = 5  # answers of a query

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Answered:
    """One query and its first answers; rows and columns are those of the score matrix."""

    query: int
    answers: tuple[int, ...]
    right: tuple[bool, ...]
    rank: int  # of the best right answer
    best_right: int  # that answer


def answer_texts(scores: Scores, owner: Ints, ranks: Ranks, captions: Sequence[int]) -> list[Answered]:
    """Captions as queries -> their first images."""
    found = []
    for caption in captions:
        best = np.argsort(-scores[:, caption], kind="stable")[:SHOWN]
        right = tuple(bool(image == owner[caption]) for image in best)
        found.append(
            Answered(caption, tuple(map(int, best)), right, int(ranks.images[caption]), int(owner[caption]))
        )
    return found


def answer_images(scores: Scores, owner: Ints, ranks: Ranks, images: Sequence[int]) -> list[Answered]:
    """Images as queries -> their first captions."""
    found = []
    for image in images:
        best = np.argsort(-scores[image], kind="stable")[:SHOWN]
        own = np.flatnonzero(owner == image)
        best_own = int(own[np.argmax(scores[image, own])])
        right = tuple(bool(owner[caption] == image) for caption in best)
        found.append(Answered(image, tuple(map(int, best)), right, int(ranks.captions[image]), best_own))
    return found


def choose_queries(ranks: Ints, groups: Ints, *, count: int) -> list[int]:
    """Queries found at once, found among the first ten, and not found: evenly over the split.

    `groups` keeps two captions of one image apart.
    """
    bands = [(1, 1, count - count // 2), (2, 10, count // 4), (11, int(ranks.max(initial=11)), count // 4)]
    chosen: list[int] = []
    for low, high, wanted in bands:
        inside = np.flatnonzero((ranks >= low) & (ranks <= high))
        chosen += _spread_out(inside, groups, wanted, taken=chosen)
    everything = np.flatnonzero(ranks > 0)
    return chosen + _spread_out(everything, groups, count - len(chosen), taken=chosen)


def worst_queries(ranks: Ints, groups: Ints, *, count: int) -> list[int]:
    """The queries whose right answer came last, one per image."""
    chosen: list[int] = []
    for query in np.argsort(-ranks, kind="stable").tolist():
        if len(chosen) == count or ranks[query] <= 1:
            break
        if groups[query] not in groups[chosen]:
            chosen.append(query)
    return chosen


def _spread_out(queries: Ints, groups: Ints, count: int, *, taken: Sequence[int]) -> list[int]:
    free = queries[~np.isin(groups[queries], groups[list(taken)])] if len(taken) else queries
    _, first = np.unique(groups[free], return_index=True)
    free = free[np.sort(first)]
    if not len(free) or count < 1:
        return []
    places = np.unique(np.linspace(0, len(free) - 1, min(count, len(free))).round().astype(np.int64))
    return [int(query) for query in free[places]]


@dataclass
class Gallery:
    """What the page's galleries show: photographs, texts, and the explanations that a click opens."""

    encoder: QueryEncoder
    rows: SplitRows
    pairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _thumbnails: dict[int, str] = field(default_factory=dict)

    @cached_property
    def _image_rows(self) -> dict[int, ImageRow]:
        return {row.image_id: row for row in image_rows(self.encoder.dataset.images)}

    @cached_property
    def _texts(self) -> dict[int, str]:
        captions = self.encoder.dataset.captions
        return dict(zip(captions["caption_id"].to_pylist(), captions["text"].to_pylist(), strict=True))

    @cached_property
    def _names(self) -> tuple[list[str] | None, list[str] | None]:
        folder = self.encoder.features.index.folder
        return read_names(folder, "class_names"), read_names(folder, "attribute_names")

    def key(self, image: int) -> str:
        return self._image_rows[int(self.rows.image_ids[image])].key

    def text(self, caption: int) -> str:
        return self._texts[int(self.rows.caption_ids[caption])]

    def thumbnail(self, image: int) -> str:
        """An image of the split -> a data URI; a grey field stands for one that cannot be read."""
        if image not in self._thumbnails:
            row = self._image_rows[int(self.rows.image_ids[image])]
            self._thumbnails[image] = data_uri(self._photograph(row))
        return self._thumbnails[image]

    def _photograph(self, row: ImageRow) -> Image.Image:
        decoding = self.encoder.features.index.provenance.get("decoding", {})
        try:
            data = read_bytes(self.encoder.dataset.image_path(row))
            return Image.fromarray(read_photograph(data, exif=decoding.get("exif", True)).pixels)
        except (CampError, OSError) as error:
            self.notes.append(f"{row.key}: photograph not shown ({error})")
            regions = self.encoder.features.by_id(row.image_id)
            return Image.fromarray(placeholder(regions.width, regions.height))

    def pair(self, image: int, caption: int) -> str:
        """An image and a caption -> the name under which the page finds their explanation."""
        name = f"{image}-{caption}"
        if name not in self.pairs:
            regions = self.encoder.features.by_id(int(self.rows.image_ids[image]))
            explanation = explain(
                self.encoder.model,
                regions,
                self.text(caption),
                vocabulary=self.encoder.vocabulary,
                max_words=self.encoder.run.max_words,
                device=self.encoder.device,
            )
            labels = region_labels(regions, classes=self._names[0], attributes=self._names[1])
            self.pairs[name] = {
                "image": image,
                "key": self.key(image),
                "right": bool(self.rows.caption_image[caption] == image),
                **explanation_facts(explanation, labels),
            }
        return name


def explanation_facts(explanation: Explanation, labels: Sequence[str] | None) -> dict[str, Any]:
    """An explanation -> JSON for the page: boxes as shares of the image, weights in thousandths."""
    regions = explanation.regions
    size = np.array([regions.width, regions.height] * 2, np.float32)
    count = len(regions.boxes)

    def thousandths(values: npt.NDArray[np.float32] | None) -> list[Any] | None:
        return None if values is None else np.round(1000 * values).astype(int).tolist()

    def first(values: npt.NDArray[np.float32] | None, *, axis: int) -> npt.NDArray[np.float32] | None:
        """Without the padding behind the real regions."""
        return None if values is None else np.take(values, np.arange(count), axis=axis)

    return {
        "text": explanation.text,
        "words": explanation.words,
        "score": round(explanation.score, 4),
        "width": regions.width,
        "height": regions.height,
        "boxes": np.round(regions.boxes / np.maximum(size, 1), 3).clip(0, 1).tolist(),
        "labels": None if labels is None else list(labels),
        "regionAttention": thousandths(first(explanation.region_attention, axis=1)),
        "wordAttention": thousandths(first(explanation.word_attention, axis=0)),
        "regionGate": thousandths(first(explanation.region_gate, axis=0)),
        "wordGate": thousandths(explanation.word_gate),
        "regionWeight": thousandths(first(explanation.region_weight, axis=0)),
        "wordWeight": thousandths(explanation.word_weight),
    }


def data_uri(picture: Image.Image) -> str:
    """A picture -> a small JPEG inside a URI."""
    picture = picture.convert("RGB")
    picture.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def parameter_count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
