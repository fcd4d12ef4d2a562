"""Tiny models of every kind and batches with everything that goes wrong in real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from camp.models.build import build_model
from camp.models.matcher import Matcher
from camp.schema import Batch

VOCAB_SIZE, REGION_DIM, WORD_DIM, DIM = 23, 10, 5, 8
LABELS, CLASSES = 6, 4
SIZES: dict[str, dict[str, object]] = {
    "camp": {"affinity_dim": 3},
    "vsrn": {"captioner_dim": 6},
    "labelwise": {
        "labels": LABELS,
        "region_classes": CLASSES,
        "layers": 2,
        "heads": 2,
        "feedforward": 12,
        "mask_weight": 0.5,
    },
    "dscmr": {"labels": LABELS, "hidden": 12},
}

MakeBatch = Callable[..., Batch]
MakeModel = Callable[..., Matcher]


@pytest.fixture(autouse=True)
def single_thread() -> None:
    """Tiny tensors: a second thread costs more than it brings."""
    torch.set_num_threads(1)


@pytest.fixture
def make_batch() -> MakeBatch:
    """Images with different numbers of regions, captions of different lengths, some images with several."""

    def make(images: int = 4, captions: int = 6, *, regions: int = 5, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        caption_image = torch.arange(captions) % images
        lengths = torch.randint(1, 7, (captions,), generator=generator)
        lengths[0] = 7
        counts = torch.randint(2, regions + 1, (images,), generator=generator)
        counts[0] = regions
        return Batch(
            regions=torch.randn(images, regions, REGION_DIM, generator=generator, dtype=torch.float64),
            region_mask=torch.arange(regions) < counts.unsqueeze(1),
            boxes=torch.rand(images, regions, 4, generator=generator, dtype=torch.float64),
            tokens=torch.randint(1, VOCAB_SIZE, (captions, 7), generator=generator),
            lengths=lengths,
            image_ids=torch.arange(images) + 100,
            caption_ids=torch.arange(captions),
            caption_image=caption_image,
            labels=torch.randint(0, 2, (images, LABELS), generator=generator).double(),
            region_classes=torch.randint(-1, CLASSES, (images, regions), generator=generator),
        )

    return make


@pytest.fixture
def make_model() -> MakeModel:
    """A tiny double-precision model, its parameters large enough that every part matters to the score."""

    def make(
        name: str = "camp", *, vocab_size: int = VOCAB_SIZE, seed: int = 0, **options: object
    ) -> Matcher:
        sizes: dict[str, object] = {"region_dim": REGION_DIM, "word_dim": WORD_DIM, "dim": DIM}
        sizes |= SIZES.get(name, {})
        torch.manual_seed(seed)
        model = build_model(name, vocab_size=vocab_size, options=sizes | options).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
        return model

    return make
