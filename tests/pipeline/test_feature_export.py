"""Export: into every layout and back without a difference, and never half or over something."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from camp.cli import camp_data
from camp.errors import InputError
from camp.manifests.dataset import Dataset
from camp.pipeline.feature_export import ID_KINDS, choose_features, export_features
from camp.pipeline.feature_import import FeatureImportOptions, import_features
from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.layouts.formats import FORMATS
from camp.pipeline.plan import plan_units, unit_images
from camp.pipeline.shard_reader import ShardReader
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

MakeDataset = Callable[..., Dataset]
COLUMNS = ("classes", "class_scores", "attributes", "attribute_scores")
FAILED = 4  # the image that has no features


def regions(seed: int, *, count: int) -> Regions:
    generator = np.random.default_rng(seed)
    corner = generator.random((count, 2), np.float32) * np.array([320, 240], np.float32)
    return Regions(
        boxes=np.concatenate([corner, corner * 2], axis=1).astype(np.float32),
        features=generator.standard_normal((count, 16), np.float32),
        width=640,
        height=480,
        classes=generator.integers(0, 1600, count).astype(np.int32),
        class_scores=generator.random(count, np.float32),
        attributes=generator.integers(0, 400, count).astype(np.int32),
        attribute_scores=generator.random(count, np.float32),
    )


def add_features(
    dataset: Dataset,
    name: str = "made",
    *,
    dtype: str = "float32",
    adaptive: bool = False,
    columns: tuple[str, ...] = COLUMNS,
) -> Path:
    folder = dataset.features_folder(name)
    spec = FeatureSpec(regions=6, dim=16, dtype=dtype, columns=columns)
    units = plan_units(dataset, shard_size=4)
    for unit in units:
        with ShardWriter(
            folder, shard=unit.shard, spec=spec, fingerprint="x", capacity=unit.images
        ) as writer:
            for image in unit_images(dataset, unit):
                if image.image_id == FAILED:
                    writer.fail(FAILED, "not liked")
                else:
                    count = 1 + image.image_id % 6 if adaptive else 6
                    writer.add(image.image_id, regions(image.image_id, count=count))
            writer.commit()
    finalize(folder, provenance={}, spec=spec, expected_shards=[unit.shard for unit in units])
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_there_and_back_again(
    format: str, adaptive: bool, dtype: str, make_dataset: MakeDataset, tmp_path: Path
) -> None:
    """Exact with float32; and what float16 has lost once, it does not lose again."""
    dataset = make_dataset()
    before = ShardReader.open(add_features(dataset, dtype=dtype, adaptive=adaptive))
    suffix = ".tsv" if "tsv" in format else ".h5" if "hdf5" in format else ""
    destination = tmp_path / "elsewhere" / f"out{suffix}"
    sent = export_features(dataset, destination, format=format)
    assert (sent.images, sent.without_features) == (10, 1)
    assert set(sent.left_out) == set(COLUMNS) - set(FORMATS[format].holds)
    options = FeatureImportOptions(dtype=dtype, shard_size=5)
    result = import_features(dataset, destination, format=format, name="back", options=options)
    assert (result.rows, result.failed, result.findings) == (10, 1, {})
    after = ShardReader.open(result.folder)
    for image_id in before.image_ids.tolist():
        sent_regions, back = before.by_id(image_id), after.by_id(image_id)
        np.testing.assert_array_equal(back.features, sent_regions.features)
        assert (back.width, back.height) == (640, 480)
        if format != "scan-npy":
            np.testing.assert_array_equal(back.boxes, sent_regions.boxes)
        for column in FORMATS[format].holds:
            np.testing.assert_array_equal(getattr(back, column), getattr(sent_regions, column))


def test_real_tsvs_come_out_as_they_went_in(shared_data: Path, tmp_path: Path) -> None:
    """With float32 not one byte differs, where the order is the manifest's."""
    run = CliRunner().invoke
    dataset, folder = str(tmp_path / "dataset"), shared_data / "bottomup"
    run(camp_data, ["import", str(folder / "images"), "--format", "folder", "--out", dataset])
    for name, layout in (
        ("anderson_1_image", "anderson-tsv"),
        ("detectron2_same_image", "anderson-tsv"),
        ("lxmert_10_images", "lxmert-tsv"),
    ):
        source, copy = folder / f"{name}.tsv", tmp_path / f"{name}.tsv"
        how = ["--format", layout, "--name", name]
        done = run(camp_data, ["import-features", dataset, str(source), *how, "--dtype", "float32"])
        assert done.exit_code == 3, done.output
        ids = ["--ids", "cocoid"] if layout == "anderson-tsv" else []
        done = run(camp_data, ["export-features", dataset, str(copy), *how, *ids])
        if ids:  # a folder of photographs has no COCO ids
            assert "has no cocoid; choose other --ids" in done.output
            done = run(camp_data, ["export-features", dataset, str(copy), *how, "--ids", "stem"])
            expected = source.read_bytes().replace(b"150367", b"COCO_train2014_000000150367", 1)
        else:
            expected = source.read_bytes()
        assert done.exit_code == 0, done.output
        assert sorted(copy.read_bytes().splitlines()) == sorted(expected.splitlines())


def test_nothing_is_overwritten(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    add_features(dataset)
    (tmp_path / "out.tsv").write_text("mine")
    with pytest.raises(InputError, match=r"out\.tsv: is there already"):
        export_features(dataset, tmp_path / "out.tsv", format="anderson-tsv")
    assert (tmp_path / "out.tsv").read_text() == "mine"


def test_columns_that_a_layout_cannot_do_without(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    add_features(dataset, columns=("classes", "class_scores"))
    with pytest.raises(InputError, match="have no attributes, which lxmert-tsv needs"):
        export_features(dataset, tmp_path / "x.tsv", format="lxmert-tsv")
    assert not (tmp_path / "x.tsv").exists()


def test_scan_export_has_the_captions_and_no_boxes(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    add_features(dataset)
    export_features(dataset, tmp_path / "scan", format="scan-npy", splits=["train", "val"])
    assert sorted(path.name for path in (tmp_path / "scan").iterdir()) == [
        *("dev_caps.txt", "dev_ids.txt", "dev_ims.npy", "train_caps.txt", "train_ids.txt", "train_ims.npy")
    ]
    captions = (tmp_path / "scan" / "train_caps.txt").read_text().splitlines()
    assert len(captions) == 25  # image 4 has no features and is left out, captions and all
    assert captions[0] == "A dog number 0 runs on grass ."
    assert captions[20] == "A dog number 25 runs on grass ."
    assert (tmp_path / "scan" / "dev_ids.txt").read_text().split() == ["500006", "500007"]
    # Features without boxes go back to SCAN's layout and to no other.
    import_features(dataset, tmp_path / "scan", format="scan-npy", name="scan")
    with pytest.raises(InputError, match="have no boxes, which anderson-tsv needs; choose scan-npy"):
        export_features(dataset, tmp_path / "x.tsv", format="anderson-tsv", name="scan")
    export_features(dataset, tmp_path / "again", format="scan-npy", name="scan")


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("auto", "500000"),
        ("key", "photo.0000.jpg"),
        ("stem", "photo.0000"),
        ("cocoid", "500000"),
        ("imgid", "1000"),
        ("image-id", "0"),
    ],
)
def test_ids(kind: str, first: str, make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    add_features(dataset)
    assert kind in ID_KINDS
    export_features(dataset, tmp_path / "x.tsv", format="anderson-tsv", ids=kind)
    assert (tmp_path / "x.tsv").read_text().split("\t")[0] == first


def test_choosing_features(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    with pytest.raises(InputError, match="no features, there are: none yet"):
        choose_features(dataset, None)
    add_features(dataset, "b")
    assert choose_features(dataset, None) == "b"
    add_features(dataset, "a")
    with pytest.raises(InputError, match=r"has several features \(a, b\); say which"):
        choose_features(dataset, None)
    with pytest.raises(InputError, match="no features 'c', there are: a, b"):
        choose_features(dataset, "c")


def test_the_command_reports(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    add_features(dataset)
    arguments = ["export-features", str(dataset.root), str(tmp_path / "x"), "--format", "mmf-npy", "--json"]
    result = CliRunner().invoke(camp_data, arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "destination": str(tmp_path / "x"),
        "features": "made",
        "images": 10,
        "without_features": 1,
        "ids": "stem",
        "left_out": ["attributes", "attribute_scores"],
    }


def test_the_commands_of_the_guide(
    make_dataset: MakeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command in docs/features.md works, one after the other."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "features.md"
    commands = [line.split() for line in guide.read_text().splitlines() if line.startswith("camp-data ")]
    assert len(commands) == 4
    dataset = make_dataset(root=tmp_path / "flickr30k")
    add_features(dataset)
    export_features(dataset, tmp_path / "all.tsv", format="anderson-tsv", ids="stem")
    rows = (tmp_path / "all.tsv").read_bytes().splitlines(keepends=True)
    (tmp_path / "bottom_up.tsv").write_bytes(b"".join(rows[:6]))
    (tmp_path / "more.tsv").write_bytes(b"".join(rows[6:]))
    monkeypatch.chdir(tmp_path)
    for _, *command in commands:
        result = CliRunner().invoke(camp_data, command)
        assert result.exit_code in (0, 3), result.output
    assert len((tmp_path / "copy.tsv").read_bytes().splitlines()) == 10
    assert (tmp_path / "f30k_precomp" / "train_ims.npy").exists()
