"""Comparisons: one table of many runs, resumed after a kill, with failures told and changes noticed."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.errors import EXIT_INCOMPLETE, InputError, MismatchError, StorageError
from camp.evaluation.checkpoint import load_checkpoint
from camp.evaluation.recall import chance_recalls, evaluate
from camp.evaluation.run_folder import open_run
from camp.manifests.dataset import Dataset
from camp.pipeline.folder_lock import folder_lock
from camp.training.compare import LOCK_FOLDER, CompareOutcome, compare_configs, compare_jobs, job_states
from camp.training.grid import expand_grid

SCRIPT = "from camp.cli import camp; camp()"


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nothing here outlives the tests


def compare(dataset: Dataset, config: Path, out: Path, *grids: str, **options: Any) -> CompareOutcome:
    return compare_configs(dataset, expand_grid([str(config)], grids=grids), out=out, **options)


def test_table_and_plot_of_rows_and_seeds(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = compare(tiny_dataset, tiny_config, out, "model.name=base,vsepp", seeds=2)
    assert outcome.exit_code == 0
    document = json.loads((out / "table.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["tiny name=base", "tiny name=vsepp"]
    row = document["rows"][0]
    runs = [row["runs"][seed]["metrics"]["caption_retrieval"]["r@1"] for seed in ("0", "1")]
    assert row["caption_retrieval"]["r@1"]["mean"] == pytest.approx(np.mean(runs))
    assert row["caption_retrieval"]["r@1"]["std"] == pytest.approx(np.std(runs, ddof=1))
    assert row["training_seconds"]["mean"] > 0
    assert row["microseconds_per_pair"]["mean"] == pytest.approx(
        1e6 * row["score_seconds"]["mean"] / (6 * 12)
    )
    run = open_run(out / "tiny-name=vsepp" / "seed-1")
    parameters = sum(parameter.numel() for parameter in run.build_model().parameters())
    assert document["rows"][1]["parameters"]["mean"] == parameters
    lines = (out / "table.md").read_text().splitlines()
    assert lines[2].startswith("|  | caption R@1 | caption R@5 | caption R@10 | image R@1 |")
    assert lines[5].startswith("| tiny name=base | ")
    table = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert [(line["row"], line["seed"]) for line in table][:2] == [
        ("tiny name=base", "0"),
        ("tiny name=base", "1"),
    ]
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "mean ± standard deviation of 2 seeds" in outcome.table.text()


def test_what_is_done_is_not_done_again(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", list[str]()
    first = compare(tiny_dataset, tiny_config, out)
    again = compare(tiny_dataset, tiny_config, out, say=said.append)
    assert said == ["1 of 1 runs are done already"]
    assert again.table.to_json() == first.table.to_json()
    more = compare(tiny_dataset, tiny_config, out, seeds=2, say=said.append)
    assert "run 1 of 1: tiny, seed 1" in said
    assert more.table.rows[0].runs[0] == first.table.rows[0].runs[0]
    # Another split is measured anew, but not trained anew.
    steps = first.table.rows[0].runs[0]["steps"]
    validation = compare(tiny_dataset, tiny_config, out, split="val")
    assert validation.table.rows[0].runs[0]["measured_on"] == {"split": "val", "folds": 1}
    assert validation.table.rows[0].runs[0]["steps"] == steps


def test_a_changed_config_is_noticed(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = compare(tiny_dataset, tiny_config, out)
    tiny_config.write_text(tiny_config.read_text().replace("lr = 0.01", "lr = 0.02"))
    with pytest.raises(
        MismatchError, match=r"seed-0: optimizer.lr was 0.01, now it is 0.02; choose another --out"
    ):
        compare(tiny_dataset, tiny_config, out)
    with pytest.raises(MismatchError, match="run.budget_minutes was 0.0, now it is 3"):
        compare(tiny_dataset, tiny_config, out, budget_minutes=3.0, seeds=1)
    after = compare(tiny_dataset, tiny_config, out, redo_changed=True)
    assert after.table.rows[0].runs[0] != before.table.rows[0].runs[0]
    jobs = compare_jobs(expand_grid([str(tiny_config)]), out=out, seeds=2, budget_minutes=None)
    states = job_states(tiny_dataset, jobs, features=None, vocab=None, split="test", folds=1)
    assert [state for _, state in states] == ["done", "new"]


def test_failures_are_lines_and_the_rest_goes_on(
    tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path
) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        "config = 'tiny.toml'\n[rows]\n'diverges' = ['optimizer.lr=1e30']\n"
        "'no vectors' = ['data.vectors=absent']\n"
        "'collapses' = ['loss.name=ranking_hardest', 'loss.margin=1e4', 'run.collapse_steps=2']\n"
        "'learns' = []\n"
    )
    out, said = tmp_path / "out", list[str]()

    def run(**options: Any) -> CompareOutcome:
        return compare_configs(
            tiny_dataset, expand_grid([], grids=[str(grid)]), out=out, say=said.append, **options
        )

    outcome = run()
    assert outcome.exit_code == EXIT_INCOMPLETE
    status = {row.name: row.runs[0]["status"] for row in outcome.table.rows}
    assert status == {
        "diverges": "failed",
        "no vectors": "failed",
        "collapses": "collapsed",
        "learns": "done",
    }
    text = outcome.table.text()
    assert "diverges, seed 0: step " in text
    assert "the loss is nan" in text
    assert "data.vectors is 'absent'" in (out / "table.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("collapses")]
    assert line.endswith("1, 1 collapsed")
    said.clear()
    assert run().exit_code == EXIT_INCOMPLETE
    assert said == ["4 of 4 runs are done already"]
    run(retry_failed=True)
    assert "run 1 of 2: diverges, seed 0" in said


def test_a_killed_comparison_goes_on(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    arguments = [
        "--configs",
        str(tiny_config),
        "--grid",
        "model.name=base,vsepp",
        "--set",
        "schedule.epochs=30",
    ]
    command = [sys.executable, "-c", SCRIPT, "compare", str(tiny_dataset.root), *arguments, "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([*command, str(out)], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    second = False
    for line in process.stderr:
        second = second or line.startswith("run 2 of 2")
        if second and line.startswith("epoch 3:"):
            process.send_signal(signal.SIGKILL)
            break
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL
    first = (out / "tiny-name=base" / "seed-0" / "result.json").read_bytes()
    assert not (out / "tiny-name=vsepp" / "seed-0" / "result.json").exists()
    assert (out / "tiny-name=vsepp" / "seed-0" / "last.json").exists()

    rows = expand_grid([str(tiny_config)], grids=["model.name=base,vsepp"], settings=["schedule.epochs=30"])
    said: list[str] = []
    resumed = compare_configs(tiny_dataset, rows, out=out, say=said.append)
    assert "1 of 2 runs are done already" in said
    assert not [line for line in said if line.startswith("epoch 1:")]
    assert (out / "tiny-name=base" / "seed-0" / "result.json").read_bytes() == first
    undisturbed = compare_configs(tiny_dataset, rows, out=whole)
    for here, there in zip(resumed.table.rows, undisturbed.table.rows, strict=True):
        assert here.runs[0]["metrics"] == there.runs[0]["metrics"]
        assert here.runs[0]["steps"] == there.runs[0]["steps"] == 60


def test_rows_start_from_the_weights_of_another(
    tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path
) -> None:
    grid = tmp_path / "grid.toml"
    row = "'vsepp' = ['model.name=vsepp', 'optimizer.lr=1e-12', 'schedule.epochs=1']\n"
    grid.write_text("config = 'tiny.toml'\ninit = 'base'\n[rows]\n" + row + "'base' = []\n")
    out, said = tmp_path / "out", list[str]()
    outcome = compare_configs(tiny_dataset, expand_grid([], grids=[str(grid)]), out=out, say=said.append)
    assert [line for line in said if line.startswith("run ")] == [
        "run 1 of 2: base, seed 0",
        "run 2 of 2: vsepp, seed 0",
    ]
    assert [row.name for row in outcome.table.rows] == ["vsepp", "base"]
    first, second = (load_checkpoint(out / name / "seed-0", "best")[0] for name in ("base", "vsepp"))
    assert torch.allclose(first["image.fc.weight"], second["image.fc.weight"], atol=1e-6)
    # Another start makes another run of the row that starts there.
    tiny_config.write_text(tiny_config.read_text().replace("lr = 0.01", "lr = 0.02"))
    jobs = compare_jobs(expand_grid([], grids=[str(grid)]), out=out, seeds=1, budget_minutes=None)
    states = job_states(tiny_dataset, jobs, features=None, vocab=None, split="test", folds=1)
    assert [(job.row, state) for job, state in states] == [("base", "changed"), ("vsepp", "changed")]


def test_a_budget_ends_every_run(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    outcome = compare(
        tiny_dataset, tiny_config, tmp_path / "out", "schedule.epochs=100000", budget_minutes=1e-3
    )
    run = outcome.table.rows[0].runs[0]
    assert run["ended"] == "out of time"
    assert run["training_seconds"] >= 0.06
    assert run["epochs"] < 100000


def test_wrong_input_is_told_before_anything_trains(
    tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="tiny dimm=3: .*options.dimm: unknown"):
        compare(tiny_dataset, tiny_config, out, "model.options.dimm=3")
    with pytest.raises(InputError, match="no image of split 'absent'|absent"):
        compare(tiny_dataset, tiny_config, out, split="absent")
    with (
        folder_lock(out / LOCK_FOLDER),
        pytest.raises(StorageError, match="is comparing into it.*another --out"),
    ):
        compare(tiny_dataset, tiny_config, out)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without torchrun"):
        compare(tiny_dataset, tiny_config, out)
    assert not (out / "tiny").exists()


def test_the_chance_level_is_that_of_random_scores() -> None:
    owner = np.repeat(np.arange(30), 5)
    generator = np.random.default_rng(0)
    drawn = [evaluate(generator.random((30, 150)), owner, bootstrap=0) for _ in range(200)]
    chance = chance_recalls(owner, images=30)
    for direction in ("caption_retrieval", "image_retrieval"):
        for cutoff in ("r@1", "r@5", "r@10"):
            assert np.mean([one[direction][cutoff] for one in drawn]) == pytest.approx(
                chance[direction][cutoff], abs=1.5
            )
    assert chance_recalls([0, 1], images=2)["rsum"] == 500.0
