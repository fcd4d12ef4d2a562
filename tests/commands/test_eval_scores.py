"""`camp eval --scores`: anybody's matrix, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from camp.cli import camp
from camp.errors import InputError
from camp.manifests.dataset import Dataset


def run(*arguments: str) -> str:
    result = CliRunner().invoke(camp, ["eval", *arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    owner = np.arange(10).repeat(5)
    scores = np.random.default_rng(0).normal(size=(10, 50)) + 2 * (owner == np.arange(10)[:, None])
    np.save(tmp_path / "scores.npy", scores.astype(np.float16))
    return tmp_path / "scores.npy"


def test_json_has_the_contract_s_shape(matrix: Path) -> None:
    metrics = json.loads(run("--scores", str(matrix), "--json", "--folds", "2"))
    for direction in ("caption_retrieval", "image_retrieval"):
        assert list(metrics[direction]) == ["r@1", "r@5", "r@10", "medr", "meanr"]
        assert list(metrics["ci"][direction]) == ["r@1", "r@5", "r@10"]
    assert metrics["folds"] == 2
    table = run("--scores", str(matrix))
    assert "caption retrieval" in table
    assert "rsum" in table


def test_captions_come_from_a_data_set(
    make_dataset: Callable[..., Dataset], tmp_path: Path, matrix: Path
) -> None:
    dataset = make_dataset({"train": 2, "test": 3}, captions_per_image=4)
    np.save(tmp_path / "three.npy", np.eye(3).repeat(4, axis=1))
    metrics = json.loads(
        run("--scores", str(tmp_path / "three.npy"), "--dataset", str(dataset.root), "--json")
    )
    assert metrics["rsum"] == 600
    with pytest.raises(InputError, match="found 10×50, expected 3×12, the images × captions of split 'test'"):
        run("--scores", str(matrix), "--dataset", str(dataset.root))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((50, 10)), "found 50×10, expected 50×250.*transpose it"),
        (
            np.zeros((10, 30)),
            "found 10×30, expected 10×50 for 5 captions per image; set --captions-per-image",
        ),
        (np.zeros(3), "found 1 dimensions, expected one matrix"),
        (np.array([["a"]]), "found <U1 values, expected real numbers"),
        (np.full((1, 5), np.nan), "found NaN at image 0, caption 0"),
    ],
)
def test_wrong_matrices(tmp_path: Path, content: np.ndarray, message: str) -> None:
    np.save(tmp_path / "m.npy", content)
    with pytest.raises(InputError, match=message):
        run("--scores", str(tmp_path / "m.npy"))


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "m.npy").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable .npy file"):
        run("--scores", str(tmp_path / "m.npy"))
    with pytest.raises(InputError, match="no such file"):
        run("--scores", str(tmp_path / "absent.npy"))
