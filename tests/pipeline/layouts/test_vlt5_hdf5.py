"""VL-T5's groups: nested names, absent columns, damage."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.layouts.vlt5_hdf5 import Vlt5Layout


def add(file: h5py.File, name: str, **other: object) -> None:
    group = file.create_group(name)
    group["features"] = np.ones((3, 8), np.float32)
    group["boxes"] = np.ones((3, 4), np.float64)
    group["img_w"] = 640
    group["img_h"] = 480
    for key, value in other.items():
        if key in group:
            del group[key]
        if value is not None:
            group[key] = value


def test_nested_groups_and_absent_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        add(file, "COCO_val2014_000000000042", obj_id=np.array([1, 2, 3]))
        add(file, "flickr/1000.x")
        file["meta"] = 3
    layout = Vlt5Layout(path)
    assert sorted(layout.ids) == ["COCO_val2014_000000000042", "flickr/1000.x"]
    regions = layout.read(layout.ids.index("COCO_val2014_000000000042")).regions
    assert regions.classes is not None
    assert regions.classes.tolist() == [1, 2, 3]
    assert regions.class_scores is None
    assert regions.boxes.dtype == np.float32
    assert (regions.width, regions.height) == (640, 480)
    layout.close()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"boxes": None}, r"x\.h5: a: no boxes in this group, found \['features', 'img_h', 'img_w'\]"),
        ({"boxes": np.ones((2, 4))}, r"x\.h5: a: boxes of shape \(2, 4\), expected \(3, 4\)"),
        ({"obj_id": np.ones(3)}, "classes of type float64"),
        ({"obj_id": np.full(3, 2**40)}, "expected ids below"),
        ({"obj_conf": np.ones(2)}, "2 class scores, expected 3"),
        ({"features": np.ones((0, 8))}, "expected at least one region"),
    ],
)
def test_bad_groups(other: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        add(file, "a", **other)
        add(file, "b")
    layout = Vlt5Layout(path)
    with pytest.raises(InputError, match=message):
        layout.read(0)
    assert layout.read(1).image_id == "b"
    layout.close()


def test_an_hdf5_of_another_kind(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image_features"] = np.ones((2, 3))
    with pytest.raises(InputError, match=r"no group with features found, but \['image_features'\]"):
        Vlt5Layout(tmp_path / "x.h5")
