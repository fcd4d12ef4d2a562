"""`camp train` as a user runs it: on a small drawn sample with real shards, vocabulary and tokens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from camp.cli import camp, camp_data
from camp.errors import CampError
from camp.evaluation.checkpoint import load_checkpoint

SCRIPT = str(Path(sys.executable).with_name("camp"))
SMALL = [
    "--set", "model.options.dim=16", "--set", "model.options.word_dim=8", "--set", "data.batch_size=8",
    "--set", "schedule.epochs=2", "--set", "schedule.warmup_steps=2", "--set", "validation.images=0",
]  # fmt: skip
SMALL_CAMP = [*SMALL, "--set", "model.options.affinity_dim=4"]


def run(*arguments: str | Path, group: Any = camp) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def done(*arguments: str | Path, group: Any = camp) -> Result:
    result = run(*arguments, group=group)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(camp, [str(argument) for argument in arguments], standalone_mode=False)
    assert isinstance(result.exception, CampError), result.output + repr(result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 drawn images with features, a vocabulary and tokens."""
    root = tmp_path_factory.mktemp("sample")
    done("sample", root / "drawn", "--images", "24", group=camp_data)
    data = root / "data"
    done("import", root / "drawn" / "karpathy.json", "--format", "karpathy", "--out", data, group=camp_data)
    done("extract", data, "--model", "scenes-tiny", "--regions", "6", "--device", "cpu", group=camp_data)
    done("build-vocab", data, "--min-count", "1", "--tokenizer", "plain", group=camp_data)
    return data


@pytest.fixture(scope="module")
def base(sample: Path) -> Path:
    """A base model trained on it."""
    folder = sample.parent / "base"
    done("train", sample, "--config", "base_sample", *SMALL, "--out", folder)
    return folder


def weights(folder: Path, name: str = "best") -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, name)[0]


def test_a_run_is_a_folder_that_the_evaluator_reads(base: Path) -> None:
    lines = [json.loads(line) for line in (base / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line["kind"] == "validation"]
    assert [line["epoch"] for line in measured] == [1, 2]
    assert (base / "curve.png").stat().st_size > 1000
    found = json.loads(done("eval", base, "--split", "test", "--json").stdout)
    assert 0 < found["rsum"] <= 600


@pytest.mark.parametrize("config", ["camp_sample", "camp_official_f30k"])
def test_camp_starts_from_the_base_models_encoders(
    sample: Path, base: Path, tmp_path: Path, config: str
) -> None:
    small = SMALL_CAMP if config == "camp_sample" else SMALL
    slow: list[str | Path] = ["--set", "optimizer.lr=1e-12", "--set", "schedule.epochs=1", "--init", base]
    result = done("train", sample, "--config", config, *small, *slow, "--out", tmp_path / "run")
    assert "11 of" in result.stderr
    started, own = weights(base), weights(tmp_path / "run")
    shared = [name for name in own if name in started]
    assert shared
    for name in shared:
        torch.testing.assert_close(own[name], started[name], rtol=0, atol=1e-6)


def test_a_run_of_another_vocabulary_or_width_is_no_start(sample: Path, base: Path, tmp_path: Path) -> None:
    wide: list[str | Path] = [
        *SMALL_CAMP,
        "--set",
        "model.options.dim=24",
        "--set",
        "model.options.word_dim=12",
    ]
    text = refused(
        "train", sample, "--config", "camp_sample", *wide, "--init", base, "--out", tmp_path / "run"
    )
    assert "do both have the same dim?" in text
    assert not (tmp_path / "run").exists()
    done("build-vocab", sample, "--min-count", "3", "--tokenizer", "plain", "--name", "few", group=camp_data)
    other: list[str | Path] = ["--vocab", "few", "--init", base, "--out", tmp_path / "run"]
    assert "mean other words" in refused("train", sample, "--config", "camp_sample", *SMALL_CAMP, *other)


def test_a_killed_run_ends_as_if_it_had_not_been(sample: Path, base: Path, tmp_path: Path) -> None:
    """SIGKILL between two saves, from the shell: the end is the same to the bit."""
    train = ["train", str(sample), "--config", "base_sample", *SMALL, "--set", "run.save_minutes=1e-6"]
    command = [SCRIPT, *train, "--out", str(tmp_path / "run"), "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = 0
    for _ in range(20):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not killed:
            while not (tmp_path / "run" / "last.json").exists() and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
        _, errors = child.communicate(timeout=300)
        if child.returncode == 0:
            break
        killed += 1
        assert child.returncode == -signal.SIGKILL, errors.decode()
    assert killed == 1
    found, expected = weights(tmp_path / "run"), weights(base)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("across", ["true", "false"])
def test_two_processes_under_torchrun(sample: Path, tmp_path: Path, across: str) -> None:
    """Negatives from both ranks give what one process gives; each rank's own give something else."""
    small = [*SMALL]
    for change in (
        "schedule.epochs=2",
        "optimizer.name='sgd'",
        "optimizer.lr=0.1",
        "data.epoch_unit='image'",
    ):
        small += ["--set", change]
    train = ["train", str(sample), "--config", "base_sample", *small, "--device", "cpu"]
    done(*train, "--out", tmp_path / "one")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--no-python", SCRIPT, *train, "--set", f"loss.across_ranks={across}", "--out", str(tmp_path / "two"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    close = [torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-5) for name in one]
    assert all(close) == (across == "true"), [(one[n] - two[n]).abs().max() for n in one]


def test_bad_input_is_one_line(sample: Path, base: Path, tmp_path: Path) -> None:
    train: list[str | Path] = ["train", sample, "--config", "base_sample", *SMALL]
    out: list[str | Path] = ["--out", tmp_path / "run"]
    assert "a run is there already" in refused(*train, "--out", base)
    assert "region_dim" in refused(*train, "--set", "model.options.region_dim=7", *out)
    assert "did you mean" in refused(*train, "--set", "optimizer.weight_dekay=1", *out)
    assert "split" in refused(*train, "--set", "validation.split='nowhere'", *out)
    assert "batch_size" in refused(*train, "--set", "data.batch_size=4000", *out)
    assert "resume with what it was started with" in refused(
        *train, "--set", "model.options.dim=8", "--resume", "--out", base
    )
    both = ["--set", "loss.across_ranks=true", "--set", "negatives.file=mined.parquet"]
    assert "leave one of the two out" in refused(*train, *both, *out)
    many = refused(*train, "--set", "loss.name='bec'", "--set", "optimizer.lr=-1", *out)
    assert "loss.name" in many
    assert "optimizer.lr" in many
