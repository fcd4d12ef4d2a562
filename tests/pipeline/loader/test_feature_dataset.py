"""feature_dataset.py gives DataLoader what the loader gives; the examples of docs/loader.md run."""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from camp.errors import InputError
from camp.pipeline.feature_dataset import FeatureDataset
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Batch, Regions

MakeWorld = Callable[..., Any]
DOCS = Path(__file__).resolve().parents[3] / "docs" / "loader.md"


def equal(left: Batch, right: Batch) -> bool:
    pairs = [(getattr(left, name), getattr(right, name)) for name in Batch.__dataclass_fields__]
    return all(one is other if one is None else torch.equal(one, other) for one, other in pairs)


@pytest.fixture
def world(make_world: MakeWorld) -> Any:
    return make_world(labels=("dog", "cat"), failed=(13,))


def open_captions(world: Any, **options: Any) -> FeatureDataset:
    return FeatureDataset(world.dataset.root, split="train", features="made", **options)


def test_a_batch_of_samples_is_the_loaders_batch(world: Any) -> None:
    said: list[str] = []
    captions = open_captions(world, say=said.append)
    assert said == ["tiny train: 1 images with captions have no features and are left out; 10 are used"]
    loader = world.loader(
        epoch_unit="caption", shuffle=None, batch_size=7, drop_last=False, say=lambda text: None
    )
    theirs = list(DataLoader(captions, batch_size=7, collate_fn=captions.collate))
    assert len(captions) == 50
    assert len(loader) == len(theirs) == 8
    for left, right in zip(loader, theirs, strict=True):
        assert equal(left, right)
        world.check(right)
    with pytest.raises(IndexError):
        captions[50]
    assert captions[-1]["caption_id"] == captions[49]["caption_id"]


def test_workers_share_it_forked_or_pickled(world: Any) -> None:
    captions = open_captions(world, dtype=None, say=lambda text: None)
    again = pickle.loads(pickle.dumps(captions))  # what a spawned worker gets
    assert again[3]["regions"].dtype == torch.float16
    assert all(torch.equal(again[3][name], captions[3][name]) for name in captions[3])
    batches = DataLoader(captions, batch_size=9, num_workers=1, collate_fn=captions.collate)
    seen = []
    for batch in batches:
        world.check(batch)
        seen += batch.caption_ids.tolist()
    assert len(set(seen)) == 50


def test_a_url_is_for_the_loader(world: Any) -> None:
    with pytest.raises(InputError, match="memory://x: .* use FeatureLoader"):
        FeatureDataset(world.dataset, split="train", features="memory://x")


def test_a_batch_moves_as_a_whole(world: Any) -> None:
    batch = next(iter(world.loader(say=lambda text: None))).to("meta")
    assert {tensor.device.type for tensor in (batch.regions, batch.tokens, batch.labels)} == {"meta"}
    assert batch.negative_image is None


@pytest.fixture
def example_folder(make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set 'f30k' that has features 'vg' of the published size."""
    world = make_world(own=True, counts={"train": 8}, captions_per_image=2)
    spec = FeatureSpec(regions=36, dim=2048)
    folder = world.dataset.features_folder("vg")
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (36, 1))
    with ShardWriter(folder, shard="train-00000", spec=spec, fingerprint="test", capacity=8) as writer:
        for image_id in world.dataset.images["image_id"].to_pylist():
            features = np.full((36, 2048), image_id / 64, np.float32)
            writer.add(image_id, Regions(boxes=boxes, features=features, width=10, height=10))
        writer.commit()
    finalize(folder, provenance={}, spec=spec, expected_shards=["train-00000"])
    (tmp_path / "f30k").symlink_to(world.dataset.root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore")  # Lightning's and Accelerate's own
def test_the_examples_run(example_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        # Small batches and a small model: the data set has 16 captions.
        block = block.replace("128", "4").replace('{"region_dim": 2048}', '{"region_dim": 2048, "dim": 16}')
        code = compile(block, str(DOCS), "exec")
        package = re.match(r"(?:import|from) (lightning|accelerate)\b", block)
        if package is None or importlib.util.find_spec(package[1]) is not None:
            exec(code, names)
    assert names["first"].image_ids.shape == (4,)
    assert len(names["captions"]) == 16
