"""Feature sets -> the other format and float type, exactly, resumably, and never from damaged rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from camp.cli import camp_data
from camp.errors import InputError, MismatchError, VerificationError
from camp.manifests.dataset import Dataset
from camp.pipeline.convert import convert_features
from camp.pipeline.feature_index import FeatureIndex, finalize
from camp.pipeline.feature_spec import OPTIONAL_COLUMNS, FeatureSpec
from camp.pipeline.shard_reader import ShardReader
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.verify import verify_dataset
from camp.schema import Regions

MakeDataset = Callable[..., Dataset]
MakeFeatures = Callable[..., Path]
SMALL = ("image_id", "num_regions", "size", "boxes", *OPTIONAL_COLUMNS)


def test_there_and_back_is_exact(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset({"train": 70, "test": 3})
    spec = FeatureSpec(regions=4, dim=6, dtype="float32", columns=OPTIONAL_COLUMNS, short="pad-repeat")
    first = make_features(dataset, "first", spec=spec, shard_size=68, failed=[5, 71])
    (first / "class_names.txt").write_text("cat\n")
    hdf5 = convert_features(dataset, features="first", store="hdf5")
    back = convert_features(dataset, features=hdf5.name, store="arrow", name="back")
    half = convert_features(dataset, features="first", dtype="float16")
    assert [hdf5.name, half.name] == ["first-hdf5", "first-float16"]
    readers = {folder.name: ShardReader.open(folder) for folder in (first, hdf5, back, half)}
    original = readers.pop("first")
    for name, reader in readers.items():
        for column in SMALL:
            assert np.array_equal(reader.small_column(column), original.small_column(column)), (name, column)
        assert reader.index.failures().equals(original.index.failures())
    everything = original.gather(original.positions())
    assert np.array_equal(readers["first-hdf5"].gather(original.positions()), everything)
    assert np.array_equal(readers["back"].gather(original.positions()), everything)
    narrow = readers["first-float16"].gather(original.positions())
    assert np.array_equal(narrow, everything.astype(np.float16))
    assert original.index.fingerprint == readers["first-hdf5"].index.fingerprint
    assert original.index.fingerprint != readers["first-float16"].index.fingerprint
    assert readers["first-float16"].index.provenance["converted_from"] == {"dtype": "float32"}
    assert verify_dataset(dataset.root).intact


def test_a_second_run_keeps_finished_shards(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset()
    make_features(dataset, "first", spec=FeatureSpec(regions=2, dim=3))
    folder = convert_features(dataset, features="first", store="hdf5")
    before = {path.name: (path.read_bytes(), path.stat().st_ino) for path in folder.iterdir()}
    (folder / "index.json").unlink()
    (folder / "train-00001.json").unlink()
    convert_features(dataset, features="first", store="hdf5")
    after = {path.name: (path.read_bytes(), path.stat().st_ino) for path in folder.iterdir()}
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in before.items()
    }
    kept = {name for name in before if before[name][1] == after[name][1]}
    assert kept == {
        f"{shard}{end}" for shard in ("train-00000", "val-00000", "test-00000") for end in (".h5", ".json")
    }


def test_damaged_rows_are_not_given_a_new_checksum(
    make_dataset: MakeDataset, make_features: MakeFeatures
) -> None:
    dataset = make_dataset()
    folder = make_features(dataset, "first", spec=FeatureSpec(regions=2, dim=3))
    layout = FeatureIndex.open(folder).shards[1]["layout"]
    path = folder / "train-00000.arrow"
    content = bytearray(path.read_bytes())
    content[layout["tail"]["features"]] ^= 1
    path.write_bytes(content)
    with pytest.raises(VerificationError, match=r"train-00000\.arrow: damaged; run 'camp-data verify'"):
        convert_features(dataset, features="first", store="hdf5")
    assert not (dataset.features_folder("first-hdf5") / "train-00000.h5").exists()


def test_what_does_not_fit_is_refused(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset({"train": 1})
    make_features(dataset, "first", spec=FeatureSpec(regions=1, dim=2, dtype="float32"))
    with pytest.raises(InputError, match="is arrow float32 already; choose another --store or --dtype"):
        convert_features(dataset, features="first", dtype="float32")
    with pytest.raises(InputError, match="cannot be converted into itself"):
        convert_features(dataset, features="first", store="hdf5", name="first")
    make_features(dataset, "second", spec=FeatureSpec(regions=1, dim=2))
    with pytest.raises(MismatchError, match="store arrow, not hdf5"):
        convert_features(dataset, features="first", store="hdf5", name="second")
    folder = dataset.features_folder("first")
    with ShardWriter(
        folder,
        shard="train-00000",
        spec=FeatureSpec(regions=1, dim=2, dtype="float32"),
        fingerprint="unit",
        capacity=1,
        provenance={"extractor": "test"},
    ) as writer:
        boxes = np.zeros((1, 4), np.float32)
        writer.add(0, Regions(boxes=boxes, features=np.array([[1e6, 1]], np.float32), width=1, height=1))
        writer.commit()
    spec = FeatureSpec(regions=1, dim=2, dtype="float32")
    finalize(folder, provenance={"extractor": "test"}, spec=spec, expected_shards=["train-00000"])
    with pytest.raises(InputError, match=r"image 0: features up to 1e\+06 do not fit float16"):
        convert_features(dataset, features="first", dtype="float16")


def test_command(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset()
    make_features(dataset, "first", spec=FeatureSpec(regions=2, dim=3))
    run = CliRunner()
    result = run.invoke(camp_data, ["convert", str(dataset.root), "--features", "first", "--store", "hdf5"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(dataset.features_folder("first-hdf5"))
    result = run.invoke(camp_data, ["convert", str(dataset.root), "--features", "none", "--store", "hdf5"])
    assert result.exit_code == 1
    assert "no such feature set" in result.stderr
