"""Markers -> an index that is the same in whatever order shards ended, for one kind of features alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from camp.errors import InputError, MismatchError, VerificationError
from camp.files import read_sealed, sealed, unseal, write_sealed
from camp.manifests.dataset import Dataset
from camp.pipeline.feature_index import (
    FAILURES_FILE,
    INDEX_FILE,
    FeatureIndex,
    check_compatible,
    finalize,
    list_markers,
    marker_path,
    read_marker,
    sort_shards,
)
from camp.pipeline.feature_spec import FeatureSpec, parse_shard_name, shard_name
from camp.pipeline.feature_summary import summarize_features
from camp.pipeline.shard_reader import ShardReader
from camp.pipeline.verify import verify_dataset

MakeDataset = Callable[..., Dataset]
MakeFeatures = Callable[..., Path]

SPEC = FeatureSpec(regions=3, dim=4)
PROVENANCE = {"extractor": "test"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_bytes_in_any_order(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset()
    one = make_features(dataset, "one", spec=SPEC, shard_size=2, failed=[3, 1])
    other = make_features(dataset, "other", spec=SPEC, shard_size=2, failed=[1, 3], reverse=True)
    assert content(one) == content(other)
    index = FeatureIndex.open(one)
    assert [entry["shard"] for entry in index.shards] == [
        "test-00000",
        "test-00001",
        "train-00000",
        "train-00001",
        "train-00002",
        "val-00000",
    ]
    assert index.splits["train"] == {"shards": 3, "rows": 4, "failed": 2}
    assert index.failures().to_pylist() == [
        {"image_id": 1, "shard": "train-00000", "reason": "cannot be decoded"},
        {"image_id": 3, "shard": "train-00001", "reason": "cannot be decoded"},
    ]


def test_nothing_of_this_machine_is_in_the_index(
    make_dataset: MakeDataset, make_features: MakeFeatures, tmp_path: Path
) -> None:
    one = make_features(make_dataset(root=tmp_path / "one"), spec=SPEC)
    other = make_features(make_dataset(root=tmp_path / "elsewhere"), spec=SPEC)
    assert content(one) == content(other)


def test_append_leaves_existing_shards_alone(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    first = make_dataset({"train": 5, "test": 2})
    folder = make_features(first, spec=SPEC, failed=[2])
    before = content(folder)
    second = make_dataset({"train": 3, "val": 2}, previous=first)
    # Until the new images are done the old index serves, and verify tells of the gap.
    assert len(ShardReader.open(folder)) == 6
    gaps = verify_dataset(second.root).features[0].gaps
    assert gaps == [7, 8, 9]  # val has no shard: nobody asked for it yet
    make_features(second, spec=SPEC, failed=[2])
    after = content(folder)
    assert set(after) - set(before) == {
        name + suffix for name in ("train-00002", "val-00000") for suffix in (".arrow", ".json")
    }
    assert all(after[name] == before[name] for name in before if name != INDEX_FILE)
    assert ShardReader.open(folder).image_ids.tolist() == [5, 6, 0, 1, 3, 4, 7, 8, 9, 10, 11]
    assert verify_dataset(second.root).intact


def test_an_unfinished_set_gets_no_index(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    folder = make_features(make_dataset(), spec=SPEC)
    (folder / INDEX_FILE).unlink()
    marker_path(folder, "train-00001").unlink()
    with pytest.raises(InputError, match="shard train-00001 is not done; run the same command again"):
        finalize(
            folder,
            provenance=PROVENANCE,
            spec=SPEC,
            expected_shards=["train-00000", "train-00001"],
        )
    assert not (folder / INDEX_FILE).exists()


def test_a_shard_of_another_size_gets_no_index(
    make_dataset: MakeDataset, make_features: MakeFeatures
) -> None:
    folder = make_features(make_dataset(), spec=SPEC)
    path = folder / "train-00000.arrow"
    size = path.stat().st_size
    path.write_bytes(b"")
    with pytest.raises(VerificationError, match=f"train-00000.arrow: 0 bytes, expected {size:,} bytes"):
        finalize(folder, provenance=PROVENANCE, spec=SPEC, expected_shards=list_markers(folder))


def test_features_of_another_kind_are_refused(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    folder = make_features(make_dataset(), spec=SPEC)
    check_compatible(folder, spec=SPEC, provenance=PROVENANCE)
    check_compatible(folder.parent / "new", spec=SPEC, provenance={})
    other = dataclasses.replace(SPEC, dtype="float32", regions=36)
    for _ in range(2):
        with pytest.raises(MismatchError) as caught:
            check_compatible(folder, spec=other, provenance={"extractor": "vg", "weights": "ab12"})
        for part in (
            "regions 3, not 36",
            "dtype float16, not float32",
            "extractor 'test', not 'vg'",
            "weights None, not 'ab12'",
            "choose another --name",
        ):
            assert part in str(caught.value)
        (folder / INDEX_FILE).unlink(missing_ok=True)  # markers alone tell as well
    with pytest.raises(MismatchError, match="dtype float16, not float32"):
        finalize(folder, provenance=PROVENANCE, spec=other, expected_shards=list_markers(folder))
    with pytest.raises(MismatchError, match="made in another way"):
        finalize(folder, provenance={}, spec=SPEC, expected_shards=list_markers(folder))


def test_another_schema_version_is_refused(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    folder = make_features(make_dataset(), spec=SPEC)
    write_sealed(folder / INDEX_FILE, {**read_sealed(folder / INDEX_FILE), "schema_version": 99})
    with pytest.raises(MismatchError, match=r"index\.json: schema version 99, expected 1"):
        FeatureIndex.open(folder)
    path = marker_path(folder, "train-00000")
    write_sealed(path, {**read_sealed(path), "schema_version": 99})
    with pytest.raises(MismatchError, match=r"train-00000\.json: schema version 99, expected 1"):
        read_marker(folder, "train-00000")


def test_summary(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset()
    assert summarize_features(dataset) == []
    make_features(dataset, "b", spec=SPEC, failed=[0])
    folder = make_features(dataset, "a", spec=SPEC)
    (folder / INDEX_FILE).unlink()
    unfinished, finished = summarize_features(dataset)
    assert (unfinished["name"], unfinished["finished"], unfinished["shards"]) == ("a", False, 4)
    assert finished["extractor"] == "test"
    assert (finished["regions"], finished["dim"], finished["dtype"]) == (3, 4, "float16")
    assert finished["rows"] == {"test": 3, "train": 5, "val": 2}
    assert finished["failures"] == {"cannot be decoded": 1}
    assert finished["bytes"] == sum(path.stat().st_size for path in (folder.parent / "b").glob("*.arrow"))


def test_shard_names() -> None:
    assert shard_name("train", 7) == "train-00007"
    assert parse_shard_name("train-00007") == ("train", 7)
    names = ["train-100000", "train-00002", "test-00010", "train-99999"]
    assert sort_shards(names) == ["test-00010", "train-00002", "train-99999", "train-100000"]
    with pytest.raises(InputError, match="shard 'train': expected a name such as"):
        parse_shard_name("train")


def test_seals() -> None:
    value = {"b": [1, 2, {"c": "é"}], "a": None}
    assert unseal(sealed(value), source="here") == value
    for damaged in (b"", b"[]", b"{}", b'{"seal": "x"}', sealed(value).replace(b" ", b"  ", 1)):
        with pytest.raises(VerificationError, match="^here: damaged"):
            unseal(damaged, source="here")


def test_failures_that_cannot_be_read(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    folder = make_features(make_dataset(), spec=SPEC)
    (folder / FAILURES_FILE).write_bytes(b"PAR1")
    with pytest.raises(VerificationError, match=r"failures\.parquet: cannot be read"):
        FeatureIndex.open(folder).failures()
