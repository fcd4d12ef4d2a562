"""What tests of the evaluator share: a data set with photographs and features, and untrained runs on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from camp.evaluation.checkpoint import save_checkpoint
from camp.evaluation.run_folder import Run, create_run
from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.models.build import build_model
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.plan import plan_units, unit_images
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.tokens import tokenize_dataset
from camp.schema import CaptionRow, ImageRow, Regions
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vocabulary import Vocabulary

torch.set_num_threads(1)  # tensors this small only wait for each other on more threads

REGIONS, DIM, PER_IMAGE = 4, 6, 3
WORDS = ("red", "green", "blue", "dog", "car", "tree", "small", "large", "house", "ball")
PROVENANCE = {"extractor": "made for tests"}
MISSING = 2  # the image whose photograph is not on disk


def caption(number: int) -> str:
    """Captions of several lengths; one holds what HTML would stumble over."""
    picked = [WORDS[(number * 7 + place * 3) % len(WORDS)] for place in range(2 + number % 4)]
    return "a " + " ".join(picked) + (" </script><b>&" if number == 0 else "")


def regions_of(image_id: int) -> Regions:
    generator = np.random.default_rng(image_id)
    count = 2 + image_id % (REGIONS - 1)
    corner = generator.uniform(0, 12, (count, 2))
    boxes = np.concatenate([corner, corner + generator.uniform(5, 18, (count, 2))], axis=1)
    features = generator.normal(size=(count, DIM))
    return Regions(boxes=boxes.astype(np.float32), features=features.astype(np.float32), width=40, height=30)


@dataclass(frozen=True)
class World:
    """A data set and how to make runs on it."""

    dataset: Dataset
    vocabulary: Vocabulary
    photographs: Path

    def run(self, name: str, model: str, *, seed: int = 0, folder: Path | None = None, **further: Any) -> Run:
        """An untrained model, saved as if it had been trained."""
        folder = folder or self.dataset.root.parent / name
        options: dict[str, Any] = {"dim": 8, "word_dim": 6, "region_dim": DIM, **further}
        if model == "camp":
            options["affinity_dim"] = 4
        header = {
            "dataset": {
                "root": os.path.relpath(self.dataset.root, folder),
                "name": self.dataset.name,
                "fingerprint": self.dataset.fingerprint,
            },
            "features": {"name": "made", "dim": DIM, "regions": REGIONS},
            "vocab": {
                "name": "default",
                "fingerprint": self.vocabulary.fingerprint,
                "size": len(self.vocabulary),
            },
            "model": {"name": model, "options": options},
            "max_words": 50,
        }
        run = create_run(folder, header, vocabulary=self.vocabulary)
        self.save(run, seed=seed)
        return run

    def save(self, run: Run, *, seed: int) -> None:
        torch.manual_seed(seed)
        model = build_model(
            run.header["model"]["name"],
            vocab_size=len(self.vocabulary),
            options=run.header["model"]["options"],
        )
        save_checkpoint(run.folder, "best", tensors=model.state_dict(), state={}, step=seed)


MakeWorld = Callable[[], World]


def _make(root: Path) -> World:
    splits = ["train"] * 3 + ["test"] * 8
    images = [
        ImageRow(image_id=n, key=f"{n}.png", file=f"{n}.png", split=split, width=40, height=30)
        for n, split in enumerate(splits)
    ]
    captions = [
        CaptionRow(caption_id=100 + n, image_id=n // PER_IMAGE, text=caption(n))
        for n in range(len(images) * PER_IMAGE)
    ]
    (root / "images").mkdir(parents=True)
    for image in images:
        pixels = np.full((30, 40, 3), 20 * image.image_id, np.uint8)
        pixels[5:15, 5:25] = (200, 80, 10 * image.image_id)
        if image.image_id != len(splits) - MISSING:
            Image.fromarray(pixels).save(root / "images" / f"{image.image_id}.png")
    dataset = write_generation(
        root / "dataset",
        manifest_from_rows(images, captions),
        name="tiny",
        source={"format": "test"},
        findings={},
        label_names=[],
        image_roots=["../images"],
    )
    spec = FeatureSpec(regions=REGIONS, dim=DIM, dtype="float32", store="arrow")
    folder = dataset.features_folder("made")
    units = plan_units(dataset, shard_size=4)
    for unit in units:
        with ShardWriter(
            folder,
            shard=unit.shard,
            spec=spec,
            fingerprint=unit.fingerprint("test"),
            capacity=unit.images,
            provenance=PROVENANCE,
        ) as writer:
            for row in unit_images(dataset, unit):
                writer.add(row.image_id, regions_of(row.image_id))
            writer.commit()
    finalize(folder, provenance=PROVENANCE, spec=spec, expected_shards=[unit.shard for unit in units])
    vocabulary = build_vocabulary(dataset, min_count=1, tokenizer=open_tokenizer("plain"))
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    return World(dataset, vocabulary, root / "images")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The data set; nobody may change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the tests
        return _make(tmp_path_factory.mktemp("evaluated"))


@pytest.fixture(scope="session")
def base_run(world: World) -> Run:
    return world.run("base", "base", seed=1)


@pytest.fixture(scope="session")
def camp_run(world: World) -> Run:
    return world.run("camp", "camp", seed=2)
