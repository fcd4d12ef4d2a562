"""mmf's .npy pairs and LMDB, as its own scripts write them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.layouts.mmf_lmdb import LmdbLayout
from camp.pipeline.layouts.mmf_npy import NpyLayout

N, D, CLASSES = 4, 8, 10
FEATURES = np.random.default_rng(0).standard_normal((N, D), np.float32)
BOXES = np.arange(N * 4, dtype=np.float32).reshape(N, 4)
PROBABILITIES = np.random.default_rng(1).random((N, CLASSES), np.float32)


def info(**other: Any) -> dict[str, Any]:
    return {
        "bbox": BOXES,
        "num_boxes": N,
        "objects": PROBABILITIES.argmax(axis=1),
        "cls_prob": PROBABILITIES,
        "image_width": 640,
        "image_height": 480,
        **other,
    }


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def save(folder: Path, name: str, features: Any = FEATURES, info: Any = None) -> None:
    np.save(folder / f"{name}.npy", features)
    if info is not None:
        np.save(folder / f"{name}_info.npy", np.array(info, dtype=object))


def test_every_class_probability_becomes_the_score_of_the_class(tmp_path: Path) -> None:
    save(tmp_path, "a", info=info())
    layout = NpyLayout(tmp_path)
    assert list(layout.ids) == ["a"]
    regions = layout.read(0).regions
    np.testing.assert_array_equal(regions.features, FEATURES)
    np.testing.assert_array_equal(regions.boxes, BOXES)
    assert (regions.width, regions.height) == (640, 480)
    np.testing.assert_array_equal(regions.class_scores, PROBABILITIES.max(axis=1))
    np.testing.assert_array_equal(regions.classes, PROBABILITIES.argmax(axis=1))


def test_fewer_boxes_than_features_and_padding(tmp_path: Path) -> None:
    save(tmp_path, "a", info=info(bbox=BOXES[:2], objects=np.arange(4), cls_prob=np.ones(4, np.float32)))
    padded = FEATURES.copy()
    padded[3:] = 0
    save(tmp_path, "b", padded, info=info(num_boxes=3))
    save(tmp_path, "c", info=info(num_boxes=3))  # only three were confident, all four are regions
    layout = NpyLayout(tmp_path)
    assert [len(layout.read(row).regions.features) for row in range(3)] == [2, 3, 4]


def test_without_info_there_are_no_boxes(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")
    layout = NpyLayout(tmp_path)
    assert not layout.has_boxes
    assert not layout.read(0).regions.boxes.any()
    save(tmp_path, "b", info=info())
    layout = NpyLayout(tmp_path)
    assert layout.has_boxes
    with pytest.raises(InputError, match=r"a\.npy: no a_info\.npy beside it"):
        layout.read(0)
    assert layout.read(1).regions.width == 640


@pytest.mark.parametrize(
    ("features", "told", "message"),
    [
        (FEATURES, {"x": _Attack()}, r"a_info\.npy: the pickle asks for posix\.system"),
        (np.array(_Attack(), dtype=object), info(), r"a\.npy: the pickle asks for posix\.system"),
        (FEATURES[None], info(), r"a\.npy: features of type float32 and shape \(1, 4, 8\)"),
        (FEATURES, {"num_boxes": 3}, r"a\.npy: no bbox in its info, found \['num_boxes'\]"),
        (FEATURES, info(num_boxes="many"), "num_boxes 'many', expected a whole number"),
        (FEATURES, info(objects=np.arange(4) + 8), r"do not point into cls_prob of shape \(4, 10\)"),
        (FEATURES, [1, 2], "expected one dictionary"),
    ],
)
def test_bad_pairs(features: Any, told: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path, "a", features, told)
    with pytest.raises(InputError, match=message):
        NpyLayout(tmp_path).read(0)


def test_nothing_but_info_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a_info.npy", FEATURES)
    with pytest.raises(InputError, match="nothing but _info"):
        NpyLayout(tmp_path)


def make_lmdb(path: Path, items: dict[bytes, Any], *, protocol: int = 4, subdir: bool = True) -> None:
    with lmdb.open(str(path), map_size=1 << 24, subdir=subdir) as env, env.begin(write=True) as transaction:
        for key, item in items.items():
            transaction.put(key, pickle.dumps(item, protocol))
        transaction.put(b"keys", pickle.dumps([*items, b"lost"], protocol))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("subdir", [True, False])
def test_lmdb_as_the_conversion_writes_it(protocol: int, subdir: bool, tmp_path: Path) -> None:
    item = {"feature_path": "train/x", "features": FEATURES, **info()}
    path = tmp_path / "features.lmdb"
    make_lmdb(path, {b"train/x": item, b"train/y": item}, protocol=protocol, subdir=subdir)
    layout = LmdbLayout(path)
    assert list(layout.ids) == ["train/x", "train/y"]
    assert layout.findings.as_dict()["keys that are listed but have no entry"]["examples"] == ["lost"]
    regions = layout.read(1).regions
    np.testing.assert_array_equal(regions.features, FEATURES)
    np.testing.assert_array_equal(regions.boxes, BOXES)
    assert layout.max_regions([0, 1]) == N
    layout.close()


def test_lmdb_values_never_run(tmp_path: Path) -> None:
    make_lmdb(
        tmp_path / "x", {b"a": {"features": FEATURES, **info()}, b"b": {"features": _Attack()}, b"c": 3}
    )
    layout = LmdbLayout(tmp_path / "x")
    layout.read(0)
    with pytest.raises(InputError, match=r"x: b: the pickle asks for posix\.system"):
        layout.read(1)
    with pytest.raises(InputError, match="x: c: found a int, expected a dictionary with features"):
        layout.read(2)
    layout.close()


def test_lmdb_truncated(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "data.mdb").write_bytes(b"not an lmdb" * 1000)
    with pytest.raises(InputError, match="x: not a readable LMDB"):
        LmdbLayout(tmp_path / "x")
