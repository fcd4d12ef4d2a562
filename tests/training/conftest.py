"""A tiny world to train in: images whose features give away their captions' words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.evaluation.recall import evaluate
from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.models.build import build_model
from camp.models.matcher import Matcher
from camp.models.tiles import score_matrix
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.plan import plan_units, unit_images
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.tokens import tokenize_dataset
from camp.schema import Batch, CaptionRow, ImageRow, Regions
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vectors import given_vectors, save_vectors, vectors_file

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


NAMES = ("red", "green", "blue", "dog", "car", "tree", "small", "large", "house", "ball", "sky", "sea")


def _regions(words: tuple[str, ...], table: np.ndarray) -> Regions:
    boxes = np.array([[n, n, n + 20, n + 10] for n in range(len(words))], np.float32)
    features = np.stack([table[NAMES.index(word)] for word in words]).astype(np.float32)
    classes = np.array([NAMES.index(word) for word in words], np.int32)
    return Regions(boxes=boxes, features=features, width=64, height=48, classes=classes)


def _on_disk(root: Path) -> Dataset:
    """Images whose regions are their captions' words, which are their labels too."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(len(NAMES), 10))
    splits = ["train"] * 16 + ["val"] * 6 + ["test"] * 6
    shown = [tuple(str(name) for name in generator.choice(NAMES, 3, replace=False)) for _ in splits]
    images = [
        ImageRow(
            image_id=n,
            key=f"{n}.png",
            file=f"{n}.png",
            split=split,
            width=64,
            height=48,
            labels=tuple(sorted(NAMES.index(word) for word in shown[n])),
        )
        for n, split in enumerate(splits)
    ]
    captions = [
        CaptionRow(caption_id=2 * n + k, image_id=n, text=" ".join(words[k:] + words[:k]))
        for n, words in enumerate(shown)
        for k in range(2)
    ]
    dataset = write_generation(
        root / "dataset",
        manifest_from_rows(images, captions),
        name="tiny",
        source={"format": "test"},
        findings={},
        label_names=list(NAMES),
        image_roots=["images"],
    )
    spec = FeatureSpec(regions=3, dim=10, dtype="float32", store="arrow", columns=("classes",))
    folder, provenance = dataset.features_folder("made"), {"extractor": "made for tests"}
    units = plan_units(dataset, shard_size=16)
    for unit in units:
        with ShardWriter(
            folder,
            shard=unit.shard,
            spec=spec,
            fingerprint=unit.fingerprint("test"),
            capacity=unit.images,
            provenance=provenance,
        ) as writer:
            for row in unit_images(dataset, unit):
                writer.add(row.image_id, _regions(shown[row.image_id], table))
            writer.commit()
    finalize(folder, provenance=provenance, spec=spec, expected_shards=[unit.shard for unit in units])
    vocabulary = build_vocabulary(dataset, min_count=1, tokenizer=open_tokenizer("plain"))
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    matrix = generator.normal(size=(len(vocabulary), 5)).astype(np.float32)
    vectors = given_vectors(matrix, vocabulary=vocabulary, source={"file": "toy.txt"})
    save_vectors(vectors_file(dataset.vocab_file("default"), "toy"), vectors, vocabulary=vocabulary)
    return dataset


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set on disk that can be trained on; nobody may change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the tests
        return _on_disk(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def tiny_config(tmp_path: Path) -> Path:
    """A config that trains on it in a moment."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        "[model]\nname = 'base'\n[model.options]\ndim = 12\nword_dim = 6\n[loss]\nname = 'ranking_all'\n"
        "[data]\nbatch_size = 8\n[optimizer]\nlr = 0.01\n[schedule]\nepochs = 4\n"
    )
    return path
