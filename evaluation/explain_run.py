"""A run, an image and a caption -> the picture of what the model saw, with a swapped pair beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from ..errors import CampError, InputError
from ..extractors.photograph import read_photograph
from ..manifests.dataset import Dataset
from ..pipeline.extract_worker import read_bytes
from ..pipeline.region_picture import find_image
from ..pipeline.shard_reader import ShardReader
from ..schema import ImageRow
from .explanation import Explanation, explain
from .explanation_picture import Pixels, draw_explanations, placeholder
from .run_folder import Run


@dataclass(frozen=True)
class ExplainedPair:
    """The right pair and, beside it, the same image with a caption of another one."""

    positive: Explanation
    negative: Explanation
    picture: Path
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "picture": str(self.picture),
            "notes": self.notes,
            "positive": _facts(self.positive),
            "negative": _facts(self.negative),
        }


def explain_run(
    run: Run,
    *,
    image: str,
    caption_id: int | None = None,
    text: str | None = None,
    out: Path,
    dataset: Path | None = None,
    checkpoint: str = "best",
    device: torch.device,
) -> ExplainedPair:
    """Explain the image with a caption of the data set, or with any text."""
    opened = run.dataset(dataset)
    features = run.features(opened)
    row = find_image(opened, image)
    notes: list[str] = []
    positive_text = text if text is not None else _caption(opened, caption_id)
    other_text, other_key = _other_caption(opened, row)
    model = run.load_model(checkpoint=checkpoint, device=device)
    vocabulary = run.vocabulary()
    if row.image_id not in features:
        raise InputError(f"{opened.root}: {row.key!r} has no features; see 'camp-data info'")
    pair = [
        explain(
            model,
            features.by_id(row.image_id),
            words,
            vocabulary=vocabulary,
            max_words=run.max_words,
            device=device,
        )
        for words in (positive_text, other_text)
    ]
    photograph = _photograph(opened, features, row, pair[0], notes)
    draw_explanations(
        pair,
        [photograph, photograph],
        titles=[row.key, f"{row.key} with a caption of {other_key}"],
        out=out,
    )
    return ExplainedPair(positive=pair[0], negative=pair[1], picture=out, notes=notes)


def _caption(dataset: Dataset, caption_id: int | None) -> str:
    found = dataset.captions.filter(pc.equal(dataset.captions["caption_id"], caption_id))
    if not found.num_rows:
        raise InputError(
            f"{dataset.root}: no caption {caption_id}, expected 0 to {dataset.captions.num_rows - 1}"
        )
    return str(found["text"][0].as_py())


def _other_caption(dataset: Dataset, row: ImageRow) -> tuple[str, str]:
    """The first caption of the next image of the same split: a negative that anybody can look up."""
    ids = dataset.select_images([row.split])["image_id"].to_numpy()
    with_captions = np.intersect1d(ids, dataset.captions["image_id"].to_numpy())
    others = with_captions[with_captions != row.image_id]
    if not len(others):
        raise InputError(f"{dataset.root}: split {row.split!r} has no other image with a caption")
    later = others[others > row.image_id]
    other = int(later[0] if len(later) else others[0])
    captions = dataset.captions.filter(pc.equal(dataset.captions["image_id"], other))
    key = dataset.images.filter(pc.equal(dataset.images["image_id"], other))["key"][0].as_py()
    return str(captions["text"][0].as_py()), str(key)


def _photograph(
    dataset: Dataset, features: ShardReader, row: ImageRow, explanation: Explanation, notes: list[str]
) -> Pixels:
    decoding = features.index.provenance.get("decoding", {})
    try:
        data = read_bytes(dataset.image_path(row))
        return read_photograph(data, exif=decoding.get("exif", True)).pixels
    except (CampError, OSError) as error:
        notes.append(f"{row.key}: photograph not shown ({error})")
        return placeholder(explanation.regions.width, explanation.regions.height)


def _facts(explanation: Explanation) -> dict[str, Any]:
    def rounded(values: np.ndarray | None) -> list[float] | None:
        return None if values is None else [round(float(value), 4) for value in values]

    return {
        "text": explanation.text,
        "score": explanation.score,
        "words": explanation.words,
        "word_gate": rounded(explanation.word_gate),
        "word_weight": rounded(explanation.word_weight),
        "region_gate": rounded(explanation.region_gate),
        "region_weight": rounded(explanation.region_weight),
        "word_fovea": rounded(explanation.word_fovea),
        "region_fovea": rounded(explanation.region_fovea),
    }
