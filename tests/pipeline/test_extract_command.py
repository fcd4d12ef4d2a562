"""`camp-data extract` and `camp-data show`, as a user runs them, with the fake extractor behind them."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from camp.cli import camp_data
from camp.errors import InputError, TooManyFailuresError
from camp.manifests.dataset import Dataset
from camp.pipeline import extract_options
from camp.pipeline.drawing import draw_regions
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.region_picture import region_labels
from camp.schema import Regions

MakePhotographs = Callable[..., Dataset]
SMALL = ["--model", "fake", "--regions", "3", "--dtype", "float32", "--device", "cpu", "--shard-size", "4"]


@pytest.fixture(autouse=True)
def fake_builder(monkeypatch: pytest.MonkeyPatch, fake_options: ExtractOptions) -> None:
    patched = functools.partial(ExtractOptions, builder=fake_options.builder)
    monkeypatch.setattr(extract_options, "ExtractOptions", patched)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(camp_data, list(arguments))


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(camp_data, list(arguments), standalone_mode=False)
    assert isinstance(result.exception, (InputError, TooManyFailuresError))
    return str(result.exception)


def test_extract_reports_counts_reasons_and_exit_codes(make_photographs: MakePhotographs) -> None:
    dataset = make_photographs({"train": 6, "val": 2}, widths={3: 19})
    folder = str(dataset.root)
    planned = json.loads(run("extract", folder, *SMALL, "--dry-run", "--json").stdout)
    assert [unit["shard"] for unit in planned["units"]] == ["train-00000", "train-00001", "val-00000"]
    assert (planned["images"], planned["units_done"], planned["device"]) == (8, 0, "cpu")
    row_bytes = 8 + 4 + 8 + 3 * (16 + 4 + 4) + 3 * 8 * 4
    assert planned["bytes"] == 8 * row_bytes
    assert planned["seconds"] > 0
    assert planned["memory_per_worker"] > 1e6
    assert not (dataset.root / "features").exists()
    assert "time" in run("extract", folder, *SMALL, "--dry-run").stdout

    result = run("extract", folder, *SMALL, "--workers", "1", "--log-json")
    assert result.exit_code == 3
    assert "7 of 8 images in 3 shards" in result.stdout
    assert "1  ValueError: this width is not liked" in result.stdout
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert events[0] == {"event": "begin", "units": 3, "images": 8}
    assert [event["shard"] for event in events if event["event"] == "done"] == [
        "train-00000",
        "train-00001",
        "val-00000",
    ]
    assert events[-1]["total"]["images_done"] == 8

    again = run("extract", folder, *SMALL, "--json")
    assert again.exit_code == 3
    summary = json.loads(again.stdout)
    assert (summary["units_before"], summary["done"], summary["failed"]) == (3, 7, 1)
    assert "allows 0" in refused("extract", folder, *SMALL, "--max-errors", "10%")


def test_a_folder_becomes_a_data_set_and_grows(tmp_path: Path, make_photographs: MakePhotographs) -> None:
    dataset = make_photographs({"train": 3})
    photographs = tmp_path / "photographs"
    shutil.copytree(tmp_path / "dataset" / "images", photographs)
    out = str(tmp_path / "made")
    assert "say with --out DATASET" in refused("extract", str(photographs), *SMALL)
    result = run("extract", str(photographs), "--out", out, *SMALL)
    assert result.exit_code == 0, result.output
    assert "ready on cpu" in result.stderr
    shutil.copy(photographs / "photo.0000.jpg", photographs / "z.jpg")
    result = run("extract", str(photographs), "--out", out, *SMALL, "--json")
    assert "1 new images" in result.stderr
    assert json.loads(result.stdout)["done"] == 4
    assert "other images than" in refused("extract", str(tmp_path), "--out", out, *SMALL)
    assert "leave out --out" in refused("extract", str(dataset.root), "--out", out, *SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-regions", "3"], "belong together"),
        (["--min-regions", "9", "--max-regions", "3"], "9 to 3 regions"),
        (["--regions", "3", "--max-regions", "3"], "exclude each other"),
        (["--set", "x"], "expected KEY=VALUE"),
        (["--max-errors", "few"], "expected a number such as 100"),
        (["--splits", "train,dev"], "no split 'dev'; this data set has train"),
        (["--name", "../x"], "features name '../x'"),
        (["--image-seconds", "0"], "expected more than 0"),
    ],
)
def test_bad_requests_are_one_sentence(
    arguments: list[str], message: str, make_photographs: MakePhotographs
) -> None:
    assert message in refused("extract", str(make_photographs({"train": 1}).root), *arguments)
    assert "no such folder" in refused("extract", "nowhere")


def test_show_draws_the_boxes(tmp_path: Path, make_photographs: MakePhotographs) -> None:
    dataset = make_photographs({"train": 3}, widths={2: 19})
    folder, out = str(dataset.root), tmp_path / "shown.png"
    assert "no finished features" in refused("show", folder, "--image", "0")
    run("extract", folder, *SMALL)
    facts = json.loads(run("show", folder, "--image", "photo.0001.jpg", "--out", str(out), "--json").stdout)
    assert (facts["image_id"], facts["features"], facts["picture"]) == (1, "fake", str(out))
    assert [region["label"] for region in facts["regions"]] == ["thing"] * 3
    with Image.open(out) as picture:
        assert min(picture.size) == 640
    text = run("show", folder, "--image", "1", "--out", str(out), "--top", "2").stdout
    assert text.count("thing") == 2
    assert "this width is not liked" in refused("show", folder, "--image", "2")
    assert "did you mean 'photo.0001.jpg'" in refused("show", folder, "--image", "photo.1.jpg")
    assert "expected .png, .jpg or .webp" in refused("show", folder, "--image", "0", "--out", "x.txt")
    run("extract", folder, *SMALL, "--name", "twin")
    assert "has features fake, twin; choose" in refused("show", folder, "--image", "0")


def test_a_drawn_box_is_where_the_region_is() -> None:
    pixels = np.zeros((800, 900, 3), np.uint8)
    regions = Regions(
        boxes=np.array([[100, 200, 300, 400]], np.float32),
        features=np.zeros((1, 1), np.float32),
        width=900,
        height=800,
    )
    drawn = np.asarray(draw_regions(pixels, regions)).max(axis=2) > 0
    rows, columns = np.nonzero(drawn)
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (100, 200, 300, 400)
    assert not drawn[210:390, 110:290].any()
    assert not np.asarray(draw_regions(pixels, regions, top=0)).any()


def test_labels_are_said_as_people_say_them() -> None:
    regions = Regions(
        boxes=np.zeros((2, 4), np.float32),
        features=np.zeros((2, 1), np.float32),
        width=1,
        height=1,
        classes=np.array([1, 9], np.int32),
        attributes=np.array([0, 0], np.int32),
    )
    names = region_labels(regions, classes=["car", "stop sign,stopsign"], attributes=["red"])
    assert names == ["red stop sign", "red class 9"]
    assert region_labels(regions, classes=None, attributes=None) is None


def test_a_model_nobody_knows_leaves_nothing_behind(
    make_photographs: MakePhotographs, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_photographs({"train": 1})
    monkeypatch.undo()  # the real builder
    assert "did you mean 'scenes-tiny'" in refused("extract", str(dataset.root), "--model", "scene-tiny")
    assert not (dataset.root / "features").exists()
