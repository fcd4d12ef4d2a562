"""Mined negatives and labels through `camp mine`, `camp train` and `camp eval`, on a tiny data set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from camp.cli import camp
from camp.errors import CampError
from camp.manifests.dataset import Dataset
from camp.training.config_file import read_config
from camp.training.journal import read_journal


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(camp, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def refused(*arguments: Any) -> str:
    result = CliRunner().invoke(camp, [str(argument) for argument in arguments], standalone_mode=False)
    assert isinstance(result.exception, CampError), result.output + repr(result.exception)
    return str(result.exception)


@pytest.fixture
def mined(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> Path:
    run("train", tiny_dataset.root, "--config", tiny_config, "--out", tmp_path / "first")
    run("mine", tmp_path / "first", "--top", "10", "--top-images", "4", "--out", tmp_path / "mined.parquet")
    return tmp_path / "mined.parquet"


@pytest.mark.parametrize("model", ["base", "scan"])
@pytest.mark.parametrize("terms", ["triplet", "quintuplet", "adaptive"])
def test_a_second_round(
    mined: Path, tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path, model: str, terms: str
) -> None:
    lists = ["--set", f"negatives.file={mined}", "--set", f"negatives.terms={terms}"]
    lists += ["--set", "loss.name=ranking_hardest", "--set", f"model.name={model}"]
    second = tmp_path / "second"
    run("train", tiny_dataset.root, "--config", tiny_config, "--out", second, *lists)
    losses = [entry["loss"] for entry in read_journal(second) if entry["kind"] == "train"]
    assert all(loss >= 0 for loss in losses)
    header = json.loads((second / "run.json").read_text())
    assert header["negatives"]["run"]["model"] == "base"
    assert header["config"]["negatives"]["terms"] == terms
    metrics = json.loads(run("eval", second, "--bootstrap", "0", "--json"))
    assert metrics["rsum"] > 0
    assert sum(metrics["cross_ranks"].values()) == pytest.approx(100)
    again = refused(
        "train", tiny_dataset.root, "--config", tiny_config, "--out", second, "--resume",
        "--set", f"model.name={model}",
    )  # fmt: skip
    assert "its negatives is" in again


def test_lists_of_other_data_are_refused(
    mined: Path, tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_dataset.root, other)
    index = other / "features" / "made"
    shutil.copytree(index, other / "features" / "again")
    common = ["--config", tiny_config, "--set", "loss.name=ranking_hardest", "--features", "again"]
    # The same features under another name are the same features.
    run("train", other, *common, "--set", f"negatives.file={mined}", "--out", tmp_path / "fine")
    absent = refused(
        "train", other, *common, "--set", f"negatives.file={tmp_path / 'no.parquet'}", "--out", tmp_path / "x"
    )
    assert "make it with 'camp mine RUN --out" in absent
    assert not (tmp_path / "x").exists()
    wrong = refused(
        "train", other, "--config", tiny_config, "--features", "made", "--set", "loss.name=annealed",
        "--set", f"negatives.file={mined}", "--out", tmp_path / "x",
    )  # fmt: skip
    assert "'adaptive' weighs the hinges of ranking_hardest, but loss.name is 'annealed'" in wrong


@pytest.mark.parametrize("name", ["labelwise", "dscmr"])
def test_label_models_learn(tiny_dataset: Dataset, tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    small = ["model.options.dim=16", "model.options.word_dim=8", "data.batch_size=8", "schedule.epochs=12"]
    small += [
        "validation.images=0",
        "schedule.drop_epochs=[]",
        "schedule.warmup_steps=0",
        "optimizer.lr=0.01",
    ]
    if name == "labelwise":
        small += ["model.options.layers=1", "model.options.heads=2", "model.options.feedforward=16"]
    settings = [part for setting in small for part in ("--set", setting)]
    run("train", tiny_dataset.root, "--config", f"{name}_sample", "--out", out, *settings)
    header = json.loads((out / "run.json").read_text())
    assert header["model"]["options"]["labels"] == 12
    validations = [entry for entry in read_journal(out) if entry["kind"] == "validation"]
    assert all("labels" in entry for entry in validations)
    metrics = json.loads(run("eval", out, "--bootstrap", "0", "--json"))
    for direction in ("caption_retrieval", "image_retrieval"):
        found = metrics["labels"][direction]
        assert found["map"] > found["chance_map"]
        assert 0 < found["ndcg@500"] <= 1
    assert 0.3 < metrics["labels"]["micro_f1"]["text"] <= 1
    assert "Micro-F1 image" in run("eval", out, "--bootstrap", "0")


def test_recipes_name_their_lists() -> None:
    for name in ("vsrn_coco_aoq", "bfan_f30k_aoq", "scan_i2t_coco_aoq"):
        config = read_config(name)
        assert config.negatives.file == "mined.parquet"
        assert config.schedule.epochs == 20
