"""A run, an image and a text -> what the model attended to and how far its gates opened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InputError
from ..models.matcher import Matcher
from ..schema import Regions
from ..vocab.vocabulary import Vocabulary

Array = npt.NDArray[np.float32]
KINDS = ("attention", "gate", "weight", "fovea")


@dataclass(frozen=True)
class Explanation:
    """One pair. Fields that a model does not have are None; attention and weights sum to 1."""

    text: str
    words: list[str]  # (N,) as the model reads them
    regions: Regions
    score: float  # a probability where the model gives one
    region_attention: Array | None  # (N, R) the regions each word reads
    word_attention: Array | None  # (R, N) the words each region reads
    region_gate: Array | None  # (R,) mean over channels
    word_gate: Array | None  # (N,)
    region_weight: Array | None  # (R,) each region's share of the image
    word_weight: Array | None  # (N,)
    region_fovea: Array | None  # (R,) 1 for the region that the caption brings out most
    word_fovea: Array | None  # (N,)


@torch.no_grad()
def explain(
    model: Matcher,
    regions: Regions,
    text: str,
    *,
    vocabulary: Vocabulary,
    max_words: int,
    device: torch.device,
) -> Explanation:
    """One image's regions and a text -> what happened between them."""
    ids = vocabulary.encode_text(text)
    around = (vocabulary.specials.start is not None) + (vocabulary.specials.end is not None)
    if len(ids) <= around:
        raise InputError(f"text {text!r}: no word found, expected at least one")
    if len(ids) > max_words + around:
        ids = [*ids[: max_words + around - 1], ids[-1]]
    images = model.encode_image(
        torch.from_numpy(np.array(regions.features, np.float32))[None].to(device),
        torch.ones(1, len(regions.features), dtype=torch.bool, device=device),
        torch.from_numpy(np.array(regions.boxes))[None].to(device),
    )
    texts = model.encode_text(torch.tensor([ids], device=device), torch.tensor([len(ids)], device=device))
    score = model.score_pairs(images, texts)
    score = score.sigmoid() if model.scores_are_logits else score
    details = model.explain(images, texts)

    def part(name: str) -> Array | None:
        if name not in details:
            return None
        value = details[name][0].float()
        return (value.mean(dim=-1) if name.endswith("_gate") else value).cpu().numpy()

    names = [f"{item}_{kind}" for kind in KINDS for item in ("region", "word")]
    return Explanation(
        text=text,
        words=[vocabulary.words[number] for number in ids],
        regions=regions,
        score=float(score),
        **{name: part(name) for name in names},
    )
