"""plan.py: every image in exactly one unit, always the same ones, and old units untouched by an append."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline import plan
from camp.pipeline.plan import Unit, plan_units, unit_images
from camp.schema import ImageRow


def _dataset(root: Path, generations: list[list[str]]) -> Dataset:
    """One list of splits per generation, image after image."""
    dataset = None
    image_id = 0
    for splits in generations:
        rows = []
        for split in splits:
            rows.append(
                ImageRow(image_id=image_id, key=f"k{image_id}é", file=f"d/{image_id}.jpg", split=split)
            )
            image_id += 1
        dataset = write_generation(
            root,
            manifest_from_rows(rows, []),
            name="tiny",
            source={},
            findings={},
            label_names=[],
            image_roots=["images"],
            previous=dataset,
        )
    assert dataset is not None
    return dataset


def _naive(generations: list[list[str]], shard_size: int) -> dict[str, list[int]]:
    """The oracle: shard -> image ids, by walking one image at a time."""
    shards: dict[str, list[int]] = {}
    next_number: dict[str, int] = {}
    image_id = 0
    for splits in generations:
        current: dict[str, str] = {}
        for split in splits:
            if split not in current or len(shards[current[split]]) == shard_size:
                number = next_number.get(split, 0)
                next_number[split] = number + 1
                current[split] = f"{split}-{number:05d}"
                shards[current[split]] = []
            shards[current[split]].append(image_id)
            image_id += 1
    return shards


_GENERATIONS = st.lists(
    st.lists(st.sampled_from(["train", "val", "test"]), min_size=1, max_size=30), min_size=1, max_size=3
)


@settings(max_examples=25)
@given(generations=_GENERATIONS, shard_size=st.integers(1, 12), batch_rows=st.integers(1, 9))
def test_units_equal_those_of_a_walk_over_the_images(
    tmp_path_factory: pytest.TempPathFactory, generations: list[list[str]], shard_size: int, batch_rows: int
) -> None:
    dataset = _dataset(tmp_path_factory.mktemp("plan"), generations)
    with pytest.MonkeyPatch.context() as patch:
        whole = plan_units(dataset, shard_size=shard_size)
        patch.setattr(plan, "_BATCH_ROWS", batch_rows)
        units = plan_units(dataset, shard_size=shard_size)
        found = {unit.shard: [row.image_id for row in unit_images(dataset, unit)] for unit in units}
    assert units == whole  # also the digests: independent of how rows arrive
    assert found == _naive(generations, shard_size)
    assert [unit.images for unit in units] == [len(found[unit.shard]) for unit in units]


@settings(max_examples=15)
@given(generations=_GENERATIONS, shard_size=st.integers(1, 12))
def test_an_append_leaves_old_units_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, generations: list[list[str]], shard_size: int
) -> None:
    root = tmp_path_factory.mktemp("append")
    before: list[Unit] = []
    for count in range(1, len(generations) + 1):
        units = plan_units(_dataset(root / str(count), generations[:count]), shard_size=shard_size)
        assert units[: len(before)] == before
        before = units


def test_a_unit_does_not_depend_on_the_splits_asked_for(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, [["train", "val", "train", "test", "val", "train"], ["val", "val"]])
    every = plan_units(dataset, shard_size=2)
    assert [unit.shard for unit in every] == [
        "train-00000",
        "train-00001",
        "val-00000",
        "test-00000",
        "val-00001",
    ]
    assert plan_units(dataset, shard_size=2, splits=["val"]) == [every[2], every[4]]


def test_the_digest_changes_with_the_images(tmp_path: Path) -> None:
    first = plan_units(_dataset(tmp_path / "a", [["train", "train"]]), shard_size=9)[0]
    other = plan_units(_dataset(tmp_path / "b", [["val"], ["train", "train"]]), shard_size=9)[1]
    assert (first.shard, first.images) == (other.shard, other.images)
    assert first.digest != other.digest
    assert first.fingerprint("f") != other.fingerprint("f")
    assert first.fingerprint("f") != first.fingerprint("g")


def test_bad_requests(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, [["train"]])
    with pytest.raises(InputError, match="shard size 0"):
        plan_units(dataset, shard_size=0)
    with pytest.raises(InputError, match="no split 'val'; this data set has train"):
        plan_units(dataset, shard_size=1, splits=["val"])
