"""A model with gates and a split -> the mean gate on matching pairs and on others.

The paper reports 0.971 on positives and 2.7e-9 on negatives: the gate is what keeps wrong pairs apart.
"""

from __future__ import annotations

import torch

from ..models.encoded import Encoded
from ..models.matcher import Matcher
from .split_scores import SplitRows, encode_images

PAIRS = 64


@torch.no_grad()
def gate_means(model: Matcher, rows: SplitRows, *, device: torch.device) -> dict[str, float]:
    """Mean over regions, words and channels of the first pairs; {} for a model without gates."""
    count = min(PAIRS, len(rows.image_ids))
    images = encode_images(model, rows, slice(0, count), device=device)
    first_caption = [int((rows.caption_image == image).argmax()) for image in range(count)]
    texts = [model.encode_text(*rows.words(slice(row, row + 1), device)) for row in first_caption]
    swapped = [*texts[1:], texts[0]]  # the next image's caption
    means = {
        "positive": _mean_gate(model, images, texts),
        "negative": _mean_gate(model, images, swapped) if count > 1 else None,
    }
    return {name: value for name, value in means.items() if value is not None}


def _mean_gate(model: Matcher, images: Encoded, texts: list[Encoded]) -> float | None:
    total = weight = 0.0
    for row, text in enumerate(texts):
        image = images.index(slice(row, row + 1))
        details = model.explain(image, text)
        for gate, mask in (("region_gate", image.mask), ("word_gate", text.mask)):
            if gate in details:
                real = details[gate][mask]  # (real rows, d or 1)
                total += float(real.double().sum())
                weight += real.numel()
    return total / weight if weight else None
