"""A tiny world to train in: images whose features give away their captions' words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from camp.evaluation.recall import evaluate
from camp.models.build import build_model
from camp.models.matcher import Matcher
from camp.models.tiles import score_matrix
from camp.schema import Batch

torch.set_num_threads(1)  # tensors this small only wait for each other on more threads

IMAGES, REGIONS, DIM, WORDS, VOCAB = 24, 4, 12, 5, 20


def world(images: int = IMAGES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, VOCAB, (images, WORDS), generator=generator)
    table = torch.randn(VOCAB, DIM, generator=generator)
    return table[tokens[:, :REGIONS]], tokens  # (I, R, D), (I, N)


class MemoryLoader:
    """The loader's interface over tensors in memory."""

    def __init__(self, *, batch_size: int = 8, bad_step: int | None = None, constant: bool = False) -> None:
        self.regions, self.tokens = world()
        self.batch_size, self.bad_step = batch_size, bad_step
        if constant:
            self.regions = torch.zeros_like(self.regions)
            self.tokens = torch.full_like(self.tokens, 5)
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return IMAGES // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(self.epoch))
        while self.position < len(self):
            rows = order[self.position * self.batch_size : (self.position + 1) * self.batch_size]
            self.position += 1
            batch = self.batch(rows)
            if self.bad_step == self.position:
                batch.regions[0] = torch.nan
            yield batch
        self.position = 0

    def batch(self, rows: torch.Tensor) -> Batch:
        count = len(rows)
        return Batch(
            regions=self.regions[rows],
            region_mask=torch.ones(count, REGIONS, dtype=torch.bool),
            boxes=torch.zeros(count, REGIONS, 4),
            tokens=self.tokens[rows],
            lengths=torch.full((count,), WORDS),
            image_ids=rows,
            caption_ids=rows + 1000,
            caption_image=torch.arange(count),
        )

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def validate(model: Matcher) -> dict[str, Any]:
    regions, tokens = world()
    with torch.no_grad():
        images = model.encode_image(regions)
        texts = model.encode_text(tokens, torch.full((len(tokens),), WORDS))
        scores = score_matrix(model, images, texts).numpy()
    return evaluate(scores, range(IMAGES), bootstrap=0)


def tiny_model(name: str = "camp", seed: int = 0) -> Matcher:
    torch.manual_seed(seed)
    options = {"dim": 16, "word_dim": 8, "region_dim": DIM}
    if name == "camp":
        options["affinity_dim"] = 8
    return build_model(name, vocab_size=VOCAB, options=options)


class Kit:
    """What tests of the trainer build from."""

    loader = MemoryLoader
    validate = staticmethod(validate)
    model = staticmethod(tiny_model)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"
