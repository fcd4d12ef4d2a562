"""What the tests of the loader share: a small data set with features and tokens, whose content is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.loader import FeatureLoader
from camp.pipeline.plan import plan_units, unit_images
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.tokens import tokenize_dataset
from camp.schema import Batch, CaptionRow, ImageRow, Regions
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer

torch.set_num_threads(1)  # tensors this small only wait for each other on more threads

REGIONS, DIM = 3, 5


@pytest.fixture(autouse=True)
def no_background_threads() -> Iterator[None]:
    """The loader's threads are daemons; they too must be gone when a test ends."""
    before = set(threading.enumerate())
    yield
    own_for_life = ("fsspecIO", "asyncio_")  # fsspec's, for all storage
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(own_for_life)
    ]
    for thread in left:
        thread.join(timeout=5)
    assert not [thread.name for thread in left if thread.is_alive()]


def regions_of(image_id: int) -> Regions:
    """An image's regions in these tests: a function of its id, exact in half precision."""
    count = 1 + image_id % REGIONS
    base = np.arange(count * DIM, dtype=np.float32).reshape(count, DIM)
    corner = np.arange(count, dtype=np.float32)[:, None]
    boxes = np.concatenate([corner, corner, corner + image_id % 50 + 1, corner + 9], axis=1)
    return Regions(boxes=boxes, features=base + image_id, width=640, height=480)


@dataclass(frozen=True)
class World:
    """A data set on disk, and the truth about it."""

    dataset: Dataset

    def loader(self, split: str = "train", **options: object) -> FeatureLoader:
        settings = {"features": "made", "vocab": "default", "batch_size": 4, "threads": 1, **options}
        return FeatureLoader(self.dataset, split=split, **settings)  # type: ignore[arg-type]

    def check(self, batch: Batch) -> None:
        """Every number of a batch is what its ids say."""
        assert len(set(batch.image_ids.tolist())) == len(batch.image_ids)
        for row, image_id in enumerate(batch.image_ids.tolist()):
            wanted = regions_of(image_id)
            count = len(wanted.boxes)
            assert batch.region_mask[row].tolist() == [number < count for number in range(REGIONS)]
            assert torch.equal(batch.regions[row, :count].float(), torch.from_numpy(wanted.features))
            assert not batch.regions[row, count:].any()
            assert torch.equal(batch.boxes[row, :count], torch.from_numpy(wanted.boxes))
        owner = dict(
            zip(
                self.dataset.captions["caption_id"].to_pylist(),
                self.dataset.captions["image_id"].to_pylist(),
                strict=True,
            )
        )
        for row, caption_id in enumerate(batch.caption_ids.tolist()):
            assert owner[caption_id] == batch.image_ids[batch.caption_image[row]]
            length = int(batch.lengths[row])
            assert batch.tokens[row, 0] == 1
            assert batch.tokens[row, length - 1] == 2
            assert not batch.tokens[row, length:].any()


MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> MakeWorld:
    """(images per split, ...) -> a data set with features 'made' and a vocabulary 'default'.

    Made once for all tests that ask for the same; one that is going to be damaged wants `own=True`.
    """
    made: dict[str, World] = {}

    def make(*, own: bool = False, **options: object) -> World:
        name = repr(sorted(options.items()))
        if own or name not in made:
            root = tmp_path_factory.mktemp("world") / "dataset"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the tests
                world = World(_write_world(root, **options))  # type: ignore[arg-type]
            if own:
                return world
            made[name] = world
        return made[name]

    return make


def _write_world(
    root: Path,
    *,
    counts: dict[str, int] | None = None,
    captions_per_image: int = 5,
    labels: Sequence[str] = (),
    **features: object,
) -> Dataset:
    counts = counts or {"train": 11, "val": 4}
    splits = [split for split, count in counts.items() for _ in range(count)]
    images = [
        ImageRow(
            image_id=10 + number,
            key=f"{number}.jpg",
            file=f"{number}.jpg",
            split=split,
            width=640,
            height=480,
            labels=tuple(n for n in range(len(labels)) if number >> n & 1) if labels else None,
        )
        for number, split in enumerate(splits)
    ]
    captions = [
        CaptionRow(
            caption_id=100 + number,
            image_id=10 + number // captions_per_image,
            text=f"a {'very ' * (number % 7)}happy dog{number}",
        )
        for number in range(len(images) * captions_per_image)
    ]
    dataset = write_generation(
        root,
        manifest_from_rows(images, captions),
        name="tiny",
        source={"format": "test"},
        findings={},
        label_names=list(labels),
        image_roots=["images"],
    )
    write_features(dataset, **features)  # type: ignore[arg-type]
    vocabulary = build_vocabulary(dataset, min_count=1, tokenizer=open_tokenizer("plain"))
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    return dataset


def write_features(
    dataset: Dataset,
    *,
    name: str = "made",
    dtype: str = "float16",
    store: str = "arrow",
    shard_size: int = 4,
    failed: Sequence[int] = (),
) -> None:
    spec = FeatureSpec(regions=REGIONS, dim=DIM, dtype=dtype, store=store)
    folder = dataset.features_folder(name)
    units = plan_units(dataset, shard_size=shard_size)
    for unit in units:
        with ShardWriter(
            folder,
            shard=unit.shard,
            spec=spec,
            fingerprint=unit.fingerprint("test"),
            capacity=unit.images,
            provenance={"extractor": "test"},
        ) as writer:
            for row in unit_images(dataset, unit):
                if row.image_id in failed:
                    writer.fail(row.image_id, "cannot be decoded")
                else:
                    writer.add(row.image_id, regions_of(row.image_id))
            writer.commit()
    finalize(
        folder, provenance={"extractor": "test"}, spec=spec, expected_shards=[unit.shard for unit in units]
    )
