"""What the tests of the shard store share: regions of an image by its id, and a feature set of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camp.manifests.dataset import Dataset
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.plan import plan_units, unit_images
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

WIDTH, HEIGHT = 640, 480

MakeRegions = Callable[..., Regions]
MakeFeatures = Callable[..., Path]


def regions_of(image_id: int, spec: FeatureSpec, *, count: int | None = None) -> Regions:
    """The regions an image always has in these tests: a function of its id."""
    generator = np.random.default_rng(image_id)
    n = count if count is not None else int(generator.integers(1, spec.regions + 1))
    low = generator.random((n, 2), np.float32) * 200
    boxes = np.concatenate([low, low + 100], axis=1).astype(np.float32)
    optional: dict[str, Any] = {
        "classes": generator.integers(0, 1600, n, dtype=np.int32),
        "class_scores": generator.random(n, np.float32),
        "attributes": generator.integers(0, 400, n, dtype=np.int32),
        "attribute_scores": generator.random(n, np.float32),
        "regressed_boxes": boxes + 1,
    }
    return Regions(
        boxes=boxes,
        features=generator.standard_normal((n, spec.dim)).astype(np.float32),
        width=WIDTH,
        height=HEIGHT,
        **{name: optional[name] for name in spec.columns},
    )


@pytest.fixture
def make_regions() -> MakeRegions:
    """(image id, spec, count) -> regions."""
    return regions_of


@pytest.fixture
def make_features() -> MakeFeatures:
    """A data set -> a finished feature set of it; `failed` are ids of images that could not be done."""

    def make(
        dataset: Dataset,
        name: str = "made",
        *,
        spec: FeatureSpec,
        shard_size: int = 4,
        failed: Sequence[int] = (),
        reverse: bool = False,
    ) -> Path:
        folder = dataset.features_folder(name)
        units = plan_units(dataset, shard_size=shard_size)
        for unit in reversed(units) if reverse else units:
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
                        writer.add(row.image_id, regions_of(row.image_id, spec))
                writer.commit()
        finalize(
            folder,
            provenance={"extractor": "test"},
            spec=spec,
            expected_shards=[unit.shard for unit in units],
        )
        return folder

    return make
