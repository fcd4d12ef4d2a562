"""Import of foreign features: joined, resumable, exact, and honest about what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from camp.cli import camp_data
from camp.errors import InputError, MismatchError, TooManyFailuresError
from camp.manifests.dataset import Dataset
from camp.pipeline.feature_import import FeatureImportOptions, import_features
from camp.pipeline.layouts import tsv
from camp.pipeline.layouts.record import ForeignRow
from camp.pipeline.shard_reader import ShardReader
from camp.schema import Regions

MakeDataset = Callable[..., Dataset]
FLOAT32 = FeatureImportOptions(dtype="float32", shard_size=3)


def regions(seed: int, *, count: int = 4, dim: int = 8, size: tuple[int, int] = (640, 480)) -> Regions:
    generator = np.random.default_rng(seed)
    corner = generator.random((count, 2), np.float32) * np.array(size, np.float32) / 2
    return Regions(
        boxes=np.concatenate([corner, corner * 2], axis=1).astype(np.float32),
        features=generator.standard_normal((count, dim), np.float32),
        width=size[0],
        height=size[1],
    )


def write_rows(path: Path, numbers: Sequence[int], **how: Any) -> Path:
    """A TSV of the images with these numbers, under their COCO ids."""
    rows = [ForeignRow(str(500_000 + number), regions(number, **how)) for number in numbers]
    tsv.write_tsv(rows, path, columns=tsv.ANDERSON)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("store", ["arrow", "hdf5"])
def test_every_image_gets_its_row(store: str, make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()  # 6 train, 2 val, 3 test
    source = write_rows(tmp_path / "features.tsv", [8, 3, 0, 10, 1, 9, 2, 7, 4, 6, 5])
    options = FeatureImportOptions(dtype="float32", shard_size=4, store=store)
    result = import_features(dataset, source, format="anderson-tsv", name="bu", options=options)
    assert (result.rows, result.failed, result.join.way) == (11, 0, "cocoid")
    assert result.folder == dataset.features_folder("bu")
    reader = ShardReader.open(result.folder)
    # Rows of a split are in the manifest's order, whatever the file's.
    assert reader.image_ids.tolist() == [8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7]
    for number in range(11):
        found, expected = reader.by_id(number), regions(number)
        np.testing.assert_array_equal(found.features, expected.features)
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        assert (found.width, found.height) == (640, 480)
    assert reader.index.provenance["boxes"] == "pixels"


def test_float16_is_within_half_a_unit(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "features.tsv", range(11))
    result = import_features(dataset, source, format="anderson-tsv")
    assert result.spec.dtype == "float16"
    reader = ShardReader.open(result.folder)
    for number in range(11):
        found, expected = reader.by_id(number), regions(number)
        np.testing.assert_allclose(found.features.astype(np.float32), expected.features, rtol=2**-11)
        np.testing.assert_array_equal(found.boxes, expected.boxes)


def test_both_sides_without_partner_are_listed(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "features.tsv", [0, 1, 2, 3, 4, 5, 6, 7, 8, 77, 78])
    result = import_features(dataset, source, format="anderson-tsv", options=FLOAT32)
    report = result.as_json()
    assert report["join"]["images_without_row"] == {"count": 2, "keys": ["photo.0009.jpg", "photo.0010.jpg"]}
    assert report["join"]["rows_without_image"] == {"count": 2, "ids": ["500077", "500078"]}
    assert report["reasons"] == {"no row in features.tsv": 2}
    failures = ShardReader.open(result.folder).index.failures().to_pylist()
    assert [failure["image_id"] for failure in failures] == [9, 10]


def test_a_bad_row_is_that_images_failure(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "features.tsv", range(11))
    lines = source.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"\t4\t", b"\t5\t")
    nan = regions(3)
    nan.features[0, 0] = np.nan
    outside = regions(4, size=(6400, 4800))
    tsv.write_tsv(
        [
            ForeignRow("500003", nan),
            ForeignRow("500004", Regions(outside.boxes, outside.features, 640, 480)),
            ForeignRow("500005", regions(5, dim=7)),
        ],
        tmp_path / "bad.tsv",
        columns=tsv.ANDERSON,
    )
    lines[3:6] = (tmp_path / "bad.tsv").read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join(lines))
    result = import_features(dataset, source, format="anderson-tsv", options=FLOAT32)
    assert (result.rows, result.failed) == (7, 4)
    reasons = {
        row["image_id"]: row["reason"] for row in ShardReader.open(result.folder).index.failures().to_pylist()
    }
    assert "features.tsv: line 3: boxes hold 64 bytes" in reasons[2]
    assert "not finite" in reasons[3]
    assert "outside the image of 640×480" in reasons[4]
    assert "features of shape (4, 7), expected (regions, 8)" in reasons[5]


def test_max_errors(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "features.tsv", range(8))
    options = FeatureImportOptions(max_errors=2)
    with pytest.raises(TooManyFailuresError, match="3 images without features, more than --max-errors 2"):
        import_features(dataset, source, format="anderson-tsv", options=options)
    assert not dataset.features_folder("anderson-tsv").exists()
    result = import_features(
        dataset, source, format="anderson-tsv", options=FeatureImportOptions(max_errors=3)
    )
    assert result.failed == 3


def test_a_second_source_fills_the_gaps(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    first = write_rows(tmp_path / "train.tsv.0", [0, 1, 2, 3])
    second = write_rows(tmp_path / "train.tsv.1", [4, 5, 6, 7, 8, 9, 10])
    assert import_features(dataset, first, format="anderson-tsv", options=FLOAT32).failed == 7
    folder = dataset.features_folder("anderson-tsv")
    untouched = (folder / "train-00000.arrow").stat().st_ino
    # dtype is not repeated: it is what the features there are.
    result = import_features(
        dataset, second, format="anderson-tsv", options=FeatureImportOptions(shard_size=3)
    )
    assert (result.rows, result.failed) == (11, 0)
    assert (folder / "train-00000.arrow").stat().st_ino == untouched
    reader = ShardReader.open(folder)
    for number in range(11):
        np.testing.assert_array_equal(reader.by_id(number).features, regions(number).features)


def test_appended_images_get_new_shards(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    import_features(
        dataset, write_rows(tmp_path / "a.tsv", range(11)), format="anderson-tsv", options=FLOAT32
    )
    folder = dataset.features_folder("anderson-tsv")
    before = {path.name: path.stat().st_ino for path in folder.glob("*.arrow")}
    dataset = make_dataset({"train": 2}, previous=dataset)
    result = import_features(
        dataset, write_rows(tmp_path / "b.tsv", [11, 12]), format="anderson-tsv", options=FLOAT32
    )
    assert (result.rows, result.failed, result.units - result.units_done_before) == (13, 0, 1)
    assert before.items() <= {path.name: path.stat().st_ino for path in folder.glob("*.arrow")}.items()


def test_a_changed_source_is_imported_again(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "a.tsv", range(11))
    import_features(dataset, source, format="anderson-tsv", options=FLOAT32)
    again = import_features(dataset, source, format="anderson-tsv", options=FLOAT32)
    assert again.units_done_before == again.units == 4
    write_rows(source, [*range(10), 10], count=3)
    changed = import_features(dataset, source, format="anderson-tsv", options=FLOAT32)
    assert changed.units_done_before == 0
    assert ShardReader.open(changed.folder).num_regions.tolist() == [3] * 11


def test_more_regions_than_wanted(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset({"train": 3})
    rows = [ForeignRow(str(500_000 + n), regions(n, count=count)) for n, count in enumerate((2, 5, 3))]
    source = tmp_path / "adaptive.tsv"
    tsv.write_tsv(rows, source, columns=tsv.ANDERSON)
    adaptive = import_features(dataset, source, format="anderson-tsv", name="adaptive")
    reader = ShardReader.open(adaptive.folder)
    assert (reader.spec.regions, reader.num_regions.tolist()) == (5, [2, 5, 3])
    with pytest.raises(InputError, match="rows with up to 5 regions, but 3 are to be stored; add --truncate"):
        import_features(
            dataset, source, format="anderson-tsv", name="three", options=FeatureImportOptions(regions=3)
        )
    options = FeatureImportOptions(regions=3, truncate=True)
    cut = import_features(dataset, source, format="anderson-tsv", name="three", options=options)
    assert cut.truncated == 1
    reader = ShardReader.open(cut.folder)
    assert reader.num_regions.tolist() == [2, 3, 3]
    np.testing.assert_array_equal(reader.by_id(1).boxes, rows[1].regions.boxes[:3])


def test_mismatches_are_refused_before_any_work(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "a.tsv", range(11))
    folder = import_features(dataset, source, format="anderson-tsv", options=FLOAT32).folder
    before = tree(folder)
    for options, message in (
        (FeatureImportOptions(shard_size=4), "made for 3 images, expected 4; use the --shard-size"),
        (FeatureImportOptions(shard_size=3, dtype="float16"), "dtype float32, not float16"),
        (FeatureImportOptions(shard_size=3, store="hdf5"), "store arrow, not hdf5"),
        (FeatureImportOptions(shard_size=3, regions=5), "regions 4, not 5"),
    ):
        with pytest.raises(MismatchError, match=message):
            import_features(dataset, source, format="anderson-tsv", options=options)
    with pytest.raises(InputError, match="features name '../x'"):
        import_features(dataset, source, format="anderson-tsv", name="../x")
    assert tree(folder) == before


def test_one_split_alone(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    source = write_rows(tmp_path / "a.tsv", [0, 1, 2, 3, 4, 5, 6])
    options = FeatureImportOptions(splits=["train"])
    result = import_features(dataset, source, format="anderson-tsv", options=options)
    assert (result.rows, result.failed, result.join.rows_without_image) == (6, 0, [])
    result = import_features(
        dataset, source, format="anderson-tsv", options=FeatureImportOptions(splits=["val"])
    )
    assert (result.rows, result.failed) == (7, 1)
    with pytest.raises(InputError, match="no row belongs to an image of test"):
        import_features(dataset, source, format="anderson-tsv", options=FeatureImportOptions(splits=["test"]))


def test_scan_rows_have_no_boxes(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    rows = {"train": range(6), "dev": range(6, 8), "test": range(8, 11)}
    for name, numbers in rows.items():
        features = np.stack([regions(number).features for number in numbers])
        np.save(tmp_path / f"{name}_ims.npy", features if name != "test" else np.repeat(features, 5, axis=0))
        (tmp_path / f"{name}_caps.txt").write_text("a dog .\n" * len(numbers) * 5)
    result = import_features(dataset, tmp_path, format="scan-npy", name="scan", options=FLOAT32)
    assert (result.rows, result.failed, result.join.way) == (11, 0, "order")
    reader = ShardReader.open(result.folder)
    assert reader.index.provenance["boxes"] == "none"
    assert not reader.spec.boxes
    for number in range(11):
        found = reader.by_id(number)
        np.testing.assert_array_equal(found.features, regions(number).features)
        assert not found.boxes.any()
        assert (found.width, found.height) == (640, 480)  # the manifest knows


@pytest.mark.parametrize("ids", [True, False])
def test_scan_precomp_folder_gives_captions_and_features(ids: bool, tmp_path: Path) -> None:
    """One folder, two commands: the data set, then its features, with Karpathy's imgids or without any."""
    folder, dataset = tmp_path / "f30k_precomp", str(tmp_path / "dataset")
    folder.mkdir()
    for name, first in (("train", 0), ("dev", 4), ("test", 6)):
        count = 4 if name == "train" else 2
        features = np.stack([regions(first + number).features for number in range(count)])
        np.save(folder / f"{name}_ims.npy", np.repeat(features, 5, axis=0) if name == "train" else features)
        captions = [f"caption {number} of image {number // 5} ." for number in range(count * 5)]
        (folder / f"{name}_caps.txt").write_text("\n".join(captions))
        if ids:
            (folder / f"{name}_ids.txt").write_text("".join(f"{90 - first - n}\n" for n in range(count)))
    run = CliRunner().invoke
    assert (
        run(camp_data, ["import", str(folder), "--format", "scan-precomp", "--out", dataset]).exit_code == 0
    )
    done = run(
        camp_data, ["import-features", dataset, str(folder), "--format", "scan-npy", "--dtype", "float32"]
    )
    assert done.exit_code == 0, done.output
    assert f"8 images, 4 regions of 8 float32 each, joined by {'imgid' if ids else 'key'}" in done.stdout
    reader = ShardReader.open(Dataset.open(dataset).features_folder("scan-npy"))
    for number in range(8):
        np.testing.assert_array_equal(reader.by_id(number).features, regions(number).features)
    assert run(camp_data, ["verify", dataset]).exit_code == 0


def test_sizes_that_differ_from_the_manifest_are_reported(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset({"train": 2})
    rows = [ForeignRow("500000", regions(0)), ForeignRow("500001", regions(1, size=(480, 640)))]
    tsv.write_tsv(rows, tmp_path / "a.tsv", columns=tsv.ANDERSON)
    result = import_features(dataset, tmp_path / "a.tsv", format="anderson-tsv")
    finding = result.findings["image sizes that differ from the manifest's"]
    assert finding["examples"] == ["photo.0001.jpg: 480×640, not 640×480"]
    assert ShardReader.open(result.folder).by_id(1).width == 480


def test_real_features(shared_data: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    images, dataset = shared_data / "bottomup" / "images", str(tmp_path / "dataset")
    assert run(camp_data, ["import", str(images), "--format", "folder", "--out", dataset]).exit_code == 0
    source = shared_data / "bottomup" / "lxmert_10_images.tsv"
    arguments = ["import-features", dataset, str(source), "--format", "lxmert-tsv", "--dtype", "float32"]
    result = import_features(
        Dataset.open(dataset), source, format="lxmert-tsv", options=FeatureImportOptions(dtype="float32")
    )
    # One of the eleven photographs is Anderson's; the sizes are those of the photographs.
    assert (result.rows, result.failed, result.findings) == (10, 1, {})
    layout = tsv.open_lxmert(source)
    reader = ShardReader.open(result.folder)
    for image in Dataset.open(dataset).image_rows():
        if image.image_id not in reader:
            assert image.key == "COCO_train2014_000000150367.jpg"
            continue
        found = reader.by_id(image.image_id)
        expected = layout.read(layout.ids.index(image.key.removesuffix(".jpg"))).regions
        for name in ("boxes", "features", "classes", "class_scores", "attributes", "attribute_scores"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert (found.width, found.height) == (image.width, image.height)
    layout.close()
    done = run(camp_data, [*arguments, "--json"], standalone_mode=True)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["shards"] == {"written": 0, "kept": 1}
    source = shared_data / "bottomup" / "anderson_1_image.tsv"
    done = run(camp_data, ["import-features", dataset, str(source), "--format", "anderson-tsv"])
    assert done.exit_code == 3
    assert "1 images, 36 regions of 2048 float16 each, joined by cocoid" in done.stdout
    assert "failed       10  no row in anderson_1_image.tsv" in done.stdout


def test_errors_are_one_line(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    (tmp_path / "x.tsv").write_text("what\n")
    arguments = ["import-features", str(dataset.root), str(tmp_path / "x.tsv"), "--format", "anderson-tsv"]
    result = CliRunner().invoke(camp_data, arguments)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert "no row of 6 fields found" in result.stderr.splitlines()[-1]


def kill_after(arguments: list[str], folder: Path, *, shards: int) -> dict[str, int]:
    """Start the import in a process of its own and kill it when so many shards are done -> their inodes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "camp.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and len(done := list(folder.glob("*-?????.json"))) < shards:
        pass
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return {path.name: path.with_suffix(".arrow").stat().st_ino for path in done}


def test_killed_it_goes_on_and_the_bytes_are_the_same(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset({"train": 60, "test": 20})
    source = write_rows(tmp_path / "a.tsv", range(78), count=36, dim=512)
    options = FeatureImportOptions(dtype="float32", shard_size=2)
    whole = import_features(dataset, source, format="anderson-tsv", name="undisturbed", options=options)
    assert (whole.rows, whole.failed, whole.units) == (78, 2, 40)
    arguments = ["import-features", str(dataset.root), str(source), "--format", "anderson-tsv"]
    arguments += ["--name", "killed", "--dtype", "float32", "--shard-size", "2"]
    folder = dataset.features_folder("killed")
    first = kill_after(arguments, folder, shards=1)
    second = kill_after(arguments, folder, shards=15)
    result = import_features(dataset, source, format="anderson-tsv", name="killed", options=options)
    assert result.units_done_before >= 15
    for inodes in (first, second):  # what was done was not done again
        assert all(
            (folder / name).with_suffix(".arrow").stat().st_ino == inode for name, inode in inodes.items()
        )
    assert tree(folder) == tree(whole.folder)
