"""Regions written -> files that pyarrow and h5py read as the same columns, and errors that name the image."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.files import checksum_file, is_temporary
from camp.pipeline.feature_index import INDEX_FILE, is_done, marker_path, read_marker
from camp.pipeline.feature_spec import OPTIONAL_COLUMNS, FeatureSpec
from camp.pipeline.row_block import largest_bits
from camp.pipeline.shard_reader import Shard
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

MakeRegions = Callable[..., Regions]
STORES = ("arrow", "hdf5")


def f32(values: object) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def write(folder: Path, spec: FeatureSpec, rows: dict[int, Regions], **more: Any) -> dict[str, Any]:
    options = {"shard": "train-00000", "fingerprint": "unit", "capacity": len(rows), **more}
    with ShardWriter(folder, spec=spec, **options) as writer:
        for image_id, regions in rows.items():
            writer.add(image_id, regions)
        return writer.commit()


def read_with_library(path: Path) -> dict[str, np.ndarray]:
    """The columns as somebody without this package reads them."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {name: file[name][...] for name in file}
    table = pa.ipc.open_file(path).read_all()
    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        columns[name] = flat.to_numpy(zero_copy_only=False)
    return columns


def padded(rows: dict[int, Regions], spec: FeatureSpec) -> dict[str, np.ndarray]:
    """The slow oracle: what every column should hold."""

    def pad(values: np.ndarray) -> np.ndarray:
        out = np.zeros((spec.regions, *values.shape[1:]), values.dtype)
        for region in range(spec.regions):
            if region < len(values):
                out[region] = values[region]
            elif spec.short == "pad-repeat":
                out[region] = values[region % len(values)]
        return out

    per_region = ("boxes", *spec.columns)
    return {
        "image_id": np.array(list(rows), np.int64),
        "num_regions": np.array([len(row.features) for row in rows.values()], np.int32),
        "size": np.array([(row.width, row.height) for row in rows.values()], np.int32),
        **{name: np.stack([pad(getattr(row, name)) for row in rows.values()]) for name in per_region},
        "features": np.stack([pad(row.features.astype(spec.dtype)) for row in rows.values()]),
    }


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("short", ["pad-zero", "pad-repeat"])
def test_columns_are_what_other_programs_read(
    tmp_path: Path, make_regions: MakeRegions, store: str, dtype: str, short: str
) -> None:
    spec = FeatureSpec(regions=5, dim=3, store=store, dtype=dtype, short=short, columns=OPTIONAL_COLUMNS)
    rows = {image_id: make_regions(image_id, spec) for image_id in range(300)}  # more than one batch
    marker = write(tmp_path, spec, rows)
    found = read_with_library(tmp_path / marker["file"])
    expected = padded(rows, spec)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        assert np.array_equal(found[name].reshape(values.shape), values), name
    shard = Shard(tmp_path, marker, spec=spec)
    for name, values in expected.items():
        assert np.array_equal(shard.column(name), values), name
    assert marker["checksum"] == checksum_file(tmp_path / marker["file"])
    assert [path for path in tmp_path.iterdir() if is_temporary(path)] == []


def test_both_formats_have_the_same_content_checksum(tmp_path: Path, make_regions: MakeRegions) -> None:
    markers = []
    for store in STORES:
        spec = FeatureSpec(regions=4, dim=6, store=store)
        markers.append(write(tmp_path / store, spec, {i: make_regions(i, spec) for i in range(300)}))
    assert markers[0]["content"] == markers[1]["content"]
    assert markers[0]["checksum"] != markers[1]["checksum"]


@pytest.mark.parametrize("store", STORES)
@settings(max_examples=20)
@given(rows=st.integers(0, 140), regions=st.integers(1, 4), dim=st.integers(1, 5), failed=st.integers(0, 2))
def test_any_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory, store: str, rows: int, regions: int, dim: int, failed: int
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    spec = FeatureSpec(regions=regions, dim=dim, store=store)
    generator = np.random.default_rng(rows)
    features = generator.random((rows, regions, dim), np.float32) + 1
    with ShardWriter(
        folder, shard="val-00003", spec=spec, fingerprint="unit", capacity=rows + failed
    ) as writer:
        for row in range(rows):
            boxes = np.zeros((regions, 4), np.float32)
            writer.add(row, Regions(boxes=boxes, features=features[row], width=1, height=1))
        for image in range(failed):
            writer.fail(1000 + image, "why not")
        marker = writer.commit()
    shard = Shard(folder, marker, spec=spec)
    assert np.array_equal(shard.column("features"), features.astype(np.float16))
    assert np.array_equal(shard.column("image_id"), np.arange(rows))
    assert sum(len(batch["image_id"]) for batch in shard.batches()) == rows
    for row in (0, rows // 2, rows - 1) if rows else ():
        assert np.array_equal(shard.row("features", row), features[row].astype(np.float16))
    assert len(read_with_library(folder / marker["file"])["image_id"]) == rows
    assert [failure["image_id"] for failure in marker["failures"]] == [1000 + i for i in range(failed)]


@pytest.mark.parametrize("store", STORES)
def test_hdf5_and_arrow_files_are_the_same_bytes_every_time(
    tmp_path: Path, make_regions: MakeRegions, store: str
) -> None:
    spec = FeatureSpec(regions=4, dim=6, store=store)
    for folder in ("a", "b"):
        write(tmp_path / folder, spec, {i: make_regions(i, spec) for i in range(70)})
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


SPEC = FeatureSpec(regions=4, dim=3, columns=("classes",), dtype="float16")
GOOD = Regions(
    boxes=np.tile(f32([1, 1, 9, 9]), (2, 1)),
    features=np.ones((2, 3), np.float32),
    width=10,
    height=10,
    classes=np.zeros(2, np.int32),
)
BAD: dict[str, dict[str, Any]] = {
    "features not finite": {"features": f32([[1, 2, 3], [1, np.nan, 3]])},
    "features not finite (NaN or infinity)": {"features": f32([[1, 2, 3], [1, -np.inf, 3]])},
    "do not fit float16; use --dtype float32": {"features": f32([[1, 2, 3], [1, 70000, 3]])},
    "features all zero": {"features": np.zeros((2, 3), np.float32)},
    "features of shape (2, 4), expected (regions, 3)": {"features": np.ones((2, 4), np.float32)},
    "no regions": {"features": np.ones((0, 3), np.float32)},
    "5 regions, expected at most 4": {"features": np.ones((5, 3), np.float32)},
    "boxes of shape (3, 4), expected (2, 4)": {"boxes": np.zeros((3, 4), np.float32)},
    "box [1.0, 1.0, 12.0, 9.0] outside the image of 10×10": {"boxes": f32([[1, 1, 9, 9], [1, 1, 12, 9]])},
    "box [5.0, 1.0, 3.0, 9.0] outside": {"boxes": f32([[5, 1, 3, 9], [1, 1, 9, 9]])},
    "box [nan, 1.0, 9.0, 9.0] outside": {"boxes": f32([[np.nan, 1, 9, 9], [1, 1, 9, 9]])},
    "image size 0×10": {"width": 0},
    "classes absent, expected (2,)": {"classes": None},
    "classes of shape (3,), expected (2,)": {"classes": np.zeros(3, np.int32)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_regions_name_the_image_and_leave_the_shard_usable(tmp_path: Path, message: str) -> None:
    bad = dataclasses.replace(GOOD, **BAD[message])
    with ShardWriter(tmp_path, shard="train-00000", spec=SPEC, fingerprint="unit", capacity=3) as writer:
        writer.add(1, GOOD)
        with pytest.raises(InputError) as caught:
            writer.add(7, bad)
        assert str(caught.value).startswith("train-00000, image 7: ")
        assert message in str(caught.value)
        writer.fail(7, str(caught.value))
        writer.add(8, GOOD)
        marker = writer.commit()
    shard = Shard(tmp_path, marker, spec=SPEC)
    assert shard.column("image_id").tolist() == [1, 8]
    assert (shard.column("features")[:, :2] == 1).all()
    assert (shard.column("features")[:, 2:] == 0).all()


def test_short_images_can_be_refused(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, short="error")
    with (
        ShardWriter(tmp_path, shard="train-00000", spec=spec, fingerprint="unit", capacity=1) as writer,
        pytest.raises(InputError, match="image 3: 2 regions, expected 4"),
    ):
        writer.add(3, GOOD)


def test_images_twice_or_too_many_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, shard="train-00000", spec=SPEC, fingerprint="unit", capacity=2) as writer:
        writer.add(1, GOOD)
        with pytest.raises(InputError, match="train-00000: image 1 twice"):
            writer.fail(1, "why not")
        writer.add(2, GOOD)
        with pytest.raises(InputError, match="more than the 2 images"):
            writer.add(3, GOOD)


def test_sources_without_boxes_store_zeros(tmp_path: Path) -> None:
    spec = FeatureSpec(regions=2, dim=3, boxes=False)
    nothing = np.zeros((0, 4), np.float32)
    regions = Regions(boxes=nothing, features=np.ones((2, 3), np.float32), width=0, height=0)
    shard = Shard(tmp_path, write(tmp_path, spec, {5: regions}), spec=spec)
    assert (shard.column("boxes") == 0).all()
    assert shard.column("size").tolist() == [[0, 0]]


@pytest.mark.parametrize("store", STORES)
def test_an_exception_leaves_nothing_behind(tmp_path: Path, store: str) -> None:
    spec = dataclasses.replace(SPEC, store=store)

    def write_half() -> None:
        with ShardWriter(tmp_path, shard="train-00000", spec=spec, fingerprint="unit", capacity=2) as writer:
            writer.add(1, GOOD)
            raise RuntimeError("by the way")

    with pytest.raises(RuntimeError, match="by the way"):
        write_half()
    assert list(tmp_path.iterdir()) == []
    assert not is_done(tmp_path, "train-00000", "unit")


def test_a_shard_is_done_for_its_fingerprint_and_size_alone(tmp_path: Path) -> None:
    marker = write(tmp_path, SPEC, {1: GOOD})
    assert is_done(tmp_path, "train-00000", "unit")
    assert not is_done(tmp_path, "train-00000", "another unit")
    assert not is_done(tmp_path, "train-00001", "unit")
    path = tmp_path / marker["file"]
    os.truncate(path, marker["bytes"] - 1)
    assert not is_done(tmp_path, "train-00000", "unit")
    path.unlink()
    assert not is_done(tmp_path, "train-00000", "unit")


def test_replacing_a_shard_withdraws_what_vouched_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SPEC, {1: GOOD})
    (tmp_path / INDEX_FILE).write_text("{}")

    def killed(temporary: Path, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("camp.pipeline.shard_writer.publish", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, SPEC, {2: GOOD})
    assert not marker_path(tmp_path, "train-00000").exists()
    assert not (tmp_path / INDEX_FILE).exists()
    monkeypatch.undo()
    write(tmp_path, SPEC, {2: GOOD})
    marker = read_marker(tmp_path, "train-00000")
    assert marker is not None
    assert Shard(tmp_path, marker, spec=SPEC).column("image_id").tolist() == [2]


@given(st.lists(st.floats(width=16), min_size=1, max_size=8), st.sampled_from(["float16", "float32"]))
def test_largest_bits_tell_zero_and_not_finite(values: list[float], dtype: str) -> None:
    row = np.array([values], dtype)
    largest = int(largest_bits(row)[0])
    infinity = int(np.array(np.inf, dtype).view(f"u{row.dtype.itemsize}"))
    assert (largest >= infinity) == (not np.isfinite(row).all())
    assert (largest == 0) == (not row.any())


def test_a_spec_refuses_what_it_does_not_know() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "dtype is 'float64', expected one of float16, float32": {"dtype": "float64"},
        "store is 'zarr', expected one of arrow, hdf5": {"store": "zarr"},
        "short is 'crop'": {"short": "crop"},
        "no column 'masks'; there are classes": {"columns": ("masks",)},
        "0 regions of 3 numbers": {"regions": 0},
    }
    for message, fields in wrong.items():
        with pytest.raises(InputError) as caught:
            FeatureSpec(**{"regions": 2, "dim": 3, **fields})
        assert message in str(caught.value)
