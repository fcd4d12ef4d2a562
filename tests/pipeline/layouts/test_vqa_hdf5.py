"""The HDF5 of the VQA projects: both kinds, their pickles, and sizes won back from spatial features."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.pipeline.layouts.record import ExportShape, ForeignRow
from camp.pipeline.layouts.vqa_hdf5 import VqaLayout, _image_size, write_vqa

MakeRows = Callable[..., list[ForeignRow]]
ShapeOf = Callable[..., ExportShape]


@pytest.mark.parametrize("counts", [(3, 3), (2, 5)])
def test_what_is_written_has_the_published_names_and_types(
    counts: tuple[int, ...], tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    rows = make_rows(counts)
    write_vqa(rows, tmp_path / "train36.hdf5", shape_of(rows))
    # 'train36.hdf5' and 'train36_imgid2idx.pkl' with integer keys, as the VQA loaders open them.
    index = pickle.loads((tmp_path / "train36_imgid2idx.pkl").read_bytes())
    assert index == {500000: 0, 500001: 1}
    with h5py.File(tmp_path / "train36.hdf5") as file:
        adaptive = counts[0] != counts[1]
        outer = (sum(counts),) if adaptive else (2, 3)
        assert file["image_features"].shape == (*outer, 8)
        assert file["image_bb"].shape == (*outer, 4)
        assert file["spatial_features"].shape == (*outer, 6)
        assert all(file[name].dtype == np.float32 for name in ("image_features", "image_bb"))
        if adaptive:
            assert file["pos_boxes"][:].tolist() == [[0, 2], [2, 7]]
            assert file["pos_boxes"].dtype == np.int32
        boxes = rows[0].regions.boxes
        first = file["spatial_features"][: counts[0]] if adaptive else file["spatial_features"][0]
        np.testing.assert_allclose(first[:, 4], (boxes[:, 2] - boxes[:, 0]) / 640, rtol=1e-5)
        np.testing.assert_allclose(first[:, 3], boxes[:, 3] / 480, rtol=1e-6)


@given(
    width=st.integers(1, 20_000),
    height=st.integers(1, 20_000),
    shares=st.lists(st.floats(1 / 128, 1, width=32), min_size=1, max_size=5),
)
def test_sizes_come_back_from_spatial_features(width: int, height: int, shares: list[float]) -> None:
    size = np.array([width, height], np.float32)
    corners = np.array(shares, np.float32)[:, None] * size  # (n, 2)
    boxes = np.concatenate([np.zeros_like(corners), corners], axis=1)
    spatial = boxes / np.tile(size, 2)
    assert _image_size(boxes, spatial) == (width, height)


def test_sizes_that_cannot_be_known(tmp_path: Path) -> None:
    boxes = np.ones((2, 4), np.float32)
    assert _image_size(boxes, None) == (0, 0)
    assert _image_size(boxes, np.zeros((2, 6), np.float32)) == (0, 0)
    assert _image_size(boxes, np.full((2, 6), 0.3, np.float32)) == (0, 0)


def make(folder: Path, index: Any, *, name: str = "val", rows: int = 2, **other: Any) -> Path:
    path = folder / f"{name}.hdf5"
    with h5py.File(path, "w") as file:
        file["image_features"] = np.ones((rows, 3, 8), np.float32)
        file["image_bb"] = np.ones((rows, 3, 4), np.float32)
        for key, value in other.items():
            if key in file:
                del file[key]
            if value is not None:
                file[key] = value
    if index is not None:
        (folder / f"{name}_imgid2idx.pkl").write_bytes(pickle.dumps(index, 0))
    return path


def test_a_chunked_compressed_big_endian_file(tmp_path: Path) -> None:
    path = make(tmp_path, {7: 0, 8: 1})
    features = np.random.default_rng(0).standard_normal((2, 3, 8))
    with h5py.File(path, "a") as file:
        del file["image_features"]
        file.create_dataset(
            "image_features", data=features, dtype=">f8", chunks=(1, 3, 8), compression="gzip"
        )
    layout = VqaLayout(path)
    np.testing.assert_array_equal(layout.read(1).regions.features, features[1].astype(np.float32))
    layout.close()


def test_rows_without_an_image_and_a_folder(tmp_path: Path) -> None:
    make(tmp_path, {np.int64(9): 1}, name="train", rows=3)
    make(tmp_path, {7: 0, 9: 1})
    layout = VqaLayout(tmp_path)
    assert list(layout.ids) == ["9", "7"]
    assert layout.findings.count("rows with an id seen before, left out") == 1
    layout.close()


@pytest.mark.parametrize(
    ("index", "other", "message"),
    [
        (None, {}, r"val\.hdf5: no val_imgid2idx\.pkl beside it"),
        ([1, 2], {}, r"val_imgid2idx\.pkl: found a list, expected a dictionary"),
        ({7: 2}, {}, r"image 7 is at row 2, expected one of 2"),
        ({7: 0}, {"image_bb": None}, r"no image_bb in it, found \['image_features'\]"),
        ({7: 0}, {"pos_boxes": np.zeros((2, 2), np.int32)}, r"expected \(all regions, D\)"),
    ],
)
def test_bad_files(index: Any, other: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = make(tmp_path, index, **other)
    with pytest.raises(InputError, match=message):
        VqaLayout(path)


def test_spans_outside_the_file(tmp_path: Path) -> None:
    flat: dict[str, Any] = {
        "image_features": np.ones((6, 8), np.float32),
        "image_bb": np.ones((6, 4), np.float32),
    }
    path = make(tmp_path, {7: 0, 8: 1}, pos_boxes=np.array([[0, 3], [3, 9]], np.int32), **flat)
    layout = VqaLayout(path)
    assert len(layout.read(0).regions.features) == 3
    with pytest.raises(InputError, match=r"val\.hdf5: image 8 \(row 1\): regions 3 to 9 of 6"):
        layout.read(1)
    layout.close()


def test_truncated_and_wrong_magic(tmp_path: Path) -> None:
    path = make(tmp_path, {7: 0})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cut off or damaged"):
        VqaLayout(path)
    path.write_bytes(b"PK" + content)
    with pytest.raises(InputError, match="it is not HDF5"):
        VqaLayout(path)


def test_an_unknown_size_cannot_be_exported(tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf) -> None:
    [row] = make_rows((2,))
    unknown = ForeignRow("7", replace(row.regions, width=0))
    with pytest.raises(InputError, match="image 7: its size is unknown"):
        write_vqa([unknown], tmp_path / "x.hdf5", shape_of([unknown]))
    assert list(tmp_path.iterdir()) == []
