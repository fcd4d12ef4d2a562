"""MILVLG's .npz as people hold them: turned, padded, damaged, and with pickles in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.layouts.milvlg_npz import NpzLayout

N, D = 3, 8


def members(**other: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "x": random.standard_normal((N, D), np.float32),
        "bbox": np.arange(N * 4, dtype=np.float32).reshape(N, 4),
        "num_bbox": N,
        "image_h": 480,
        "image_w": 640,
        **other,
    }


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("compressed", [True, False])
def test_as_the_extractor_writes_it(compressed: bool, tmp_path: Path) -> None:
    info = {
        "image_id": "a",
        "objects_id": np.array([5, 6, 7]),
        "objects_conf": np.array([0.5, 0.25, 0.125], np.float32),
    }
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", **members(), info=np.array(info, dtype=object))
    layout = NpzLayout(tmp_path)
    regions = layout.read(0).regions
    np.testing.assert_array_equal(regions.features, members()["x"])
    np.testing.assert_array_equal(regions.boxes, members()["bbox"])
    assert (regions.width, regions.height) == (640, 480)
    assert regions.classes is not None
    assert regions.classes.tolist() == [5, 6, 7]
    assert regions.class_scores is not None
    assert regions.class_scores.tolist() == [0.5, 0.25, 0.125]
    assert regions.attributes is None


def test_turned_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **members(x=members()["x"].T))
    np.testing.assert_array_equal(NpzLayout(tmp_path).read(0).regions.features, members()["x"])


def test_padding_behind_num_bbox_is_cut(tmp_path: Path) -> None:
    padded = {"x": np.zeros((6, D), np.float32), "bbox": np.zeros((6, 4), np.float32)}
    padded["x"][:N], padded["bbox"][:N] = members()["x"], members()["bbox"]
    np.savez(tmp_path / "a.npz", **members(**padded))
    assert NpzLayout(tmp_path).read(0).regions.features.shape == (N, D)


def test_code_in_info_never_runs(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **members(), info=np.array({"objects_id": _Attack()}, dtype=object))
    layout = NpzLayout(tmp_path)
    regions = layout.read(0).regions
    assert regions.classes is None
    [finding] = layout.findings.as_dict().values()
    assert "asks for posix.system" in finding["examples"][0]


def test_code_instead_of_features_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **members(x=np.array(_Attack(), dtype=object)))
    with pytest.raises(InputError, match=r"a\.npz: x: the pickle asks for posix\.system"):
        NpzLayout(tmp_path).read(0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": np.zeros((4, D), np.float32)}, r"a\.npz: x of shape \(4, 8\), expected 3 rows"),
        ({"x": np.zeros(D, np.float32)}, r"x of shape \(8,\)"),
        ({"bbox": np.zeros((N, 5), np.float32)}, r"boxes of shape \(3, 5\), expected \(3, 4\)"),
        ({"image_w": "wide"}, "image width"),
        ({"x": np.array([["a"] * D] * N)}, "features are not numbers"),
    ],
)
def test_wrong_members(other: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **members(**other))
    with pytest.raises(InputError, match=message):
        NpzLayout(tmp_path).read(0)


def test_a_truncated_file_is_one_bad_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **members())
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: len(content) // 2])
    layout = NpzLayout(tmp_path)
    assert layout.max_regions([0, 1]) == N
    with pytest.raises(InputError, match=r"a\.npz: not a readable \.npz"):
        layout.read(0)
    assert layout.read(1).regions.features.shape == (N, D)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **members())
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(members()["x"].tobytes()[:16]) + 5] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match="Bad CRC-32"):
        NpzLayout(tmp_path).read(0)


def test_a_missing_member(tmp_path: Path) -> None:
    content = members()
    del content["bbox"]
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(InputError, match=r"a\.npz: no bbox in it, found \['image_h\.npy'"):
        NpzLayout(tmp_path).read(0)
