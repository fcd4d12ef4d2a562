"""camp eval, explain, search, score and report as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from camp.cli import camp
from camp.errors import InputError
from camp.evaluation.run_folder import Run


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(camp, [str(argument) for argument in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result


def test_eval_measures_a_run_and_keeps_its_matrix(base_run: Run, camp_run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "scores.npy"
    found = json.loads(run("eval", camp_run.folder, "--json", "--save-scores", kept).stdout)
    assert np.load(kept).shape == (8, 24)
    again = run("eval", "--scores", kept, "--captions-per-image", 3, "--json").stdout
    assert json.loads(again) == found
    both = json.loads(run("eval", camp_run.folder, "--ensemble", base_run.folder, "--json").stdout)
    assert both["rsum"] != found["rsum"]
    assert "image retrieval" in run("eval", base_run.folder).stdout
    with pytest.raises(InputError, match="found 8 images for 3 folds"):
        run("eval", camp_run.folder, "--folds", 3)
    with pytest.raises(click.UsageError, match="either RUN or --scores"):
        run("eval")


def test_eval_of_several_runs_is_their_mean_and_deviation(world: Any, base_run: Run, tmp_path: Path) -> None:
    other = world.run("seed", "base", seed=9, folder=tmp_path / "seed")
    alone = [json.loads(run("eval", one.folder, "--json").stdout) for one in (base_run, other)]
    found = json.loads(run("eval", base_run.folder, other.folder, "--json").stdout)
    assert [one["run"] for one in found["runs"]] == [str(base_run.folder), str(other.folder)]
    assert [one["rsum"] for one in found["runs"]] == [one["rsum"] for one in alone]
    sums = [one["rsum"] for one in alone]
    assert found["over_runs"]["rsum"] == pytest.approx({"mean": np.mean(sums), "std": np.std(sums, ddof=1)})
    table = run("eval", base_run.folder, other.folder).stdout
    assert "mean ± standard deviation of 2 runs" in table
    with pytest.raises(click.UsageError, match="--ensemble goes with one RUN, found 2"):
        run("eval", base_run.folder, other.folder, "--ensemble", base_run.folder)


def test_eval_keeps_half_precision_on_request(world: Any, tmp_path: Path) -> None:
    own = world.run("half", "camp", seed=3, folder=tmp_path / "half")
    kept = tmp_path / "scores.npy"
    run("eval", own.folder, "--keep-scores", "--half", "--save-scores", kept)
    assert np.load(kept).dtype == np.float16
    assert len(list((own.folder / "scores").glob("test-best-*/rows-*.npy"))) == 1


def test_eval_reranks(base_run: Run, camp_run: Run) -> None:
    options = ["--candidates", base_run.folder, "--top", "25%", "--top", "4"]
    rows = json.loads(run("eval", camp_run.folder, *options, "--json").stdout)
    assert [row["top"] for row in rows] == ["25%", "4"]
    table = run("eval", camp_run.folder, *options).stdout.splitlines()
    assert len(table) == 3
    assert table[1].lstrip().startswith("25%")


def test_eccv_is_for_coco_alone(base_run: Run) -> None:
    pytest.importorskip("eccv_caption", reason="the optional package eccv_caption is not installed")
    with pytest.raises(InputError, match="8 rows without cocoid; --eccv is for COCO"):
        run("eval", base_run.folder, "--eccv")


def test_explain_writes_a_picture(camp_run: Run, tmp_path: Path) -> None:
    out = tmp_path / "why.png"
    line = run("explain", camp_run.folder, "--image", "4.png", "--caption-id", 112, "--out", out).stdout
    assert line.startswith(f"{out}: score 0.")
    assert out.stat().st_size > 1000
    facts = json.loads(
        run("explain", camp_run.folder, "--image", "4.png", "--text", "a dog", "--out", out, "--json").stdout
    )
    assert facts["positive"]["words"][1:3] == ["a", "dog"]
    with pytest.raises(click.UsageError, match="either --caption-id or --text"):
        run("explain", camp_run.folder, "--image", "4.png", "--out", out)


def test_search_answers_and_says_how(base_run: Run, camp_run: Run) -> None:
    plain = run("search", base_run.folder, "a red dog", "--top", 3)
    assert len(plain.stdout.splitlines()) == 3
    assert "8 images of split 'test' in" in plain.stderr
    found = json.loads(run("search", base_run.folder, "--image", "4.png", "--json").stdout)
    assert found["searched"] == 24
    assert len(found["hits"]) == 10
    assert {"rank", "score", "key", "file", "caption_id", "text", "image_id"} == set(found["hits"][0])
    reranked = run("search", base_run.folder, "a dog", "--rerank", camp_run.folder, "--json").stdout
    asked = run("search", camp_run.folder, "a dog", "--candidates", base_run.folder, "--json").stdout
    assert json.loads(reranked)["hits"] == json.loads(asked)["hits"]
    alone = run("search", camp_run.folder, "a dog")
    assert "so every pair is scored; --candidates CHEAP_RUN is faster" in alone.stderr
    with pytest.raises(click.UsageError, match="either TEXT or --image"):
        run("search", base_run.folder)


def test_score_gives_a_number_per_text(camp_run: Run) -> None:
    lines = run("score", camp_run.folder, "4.png", "a dog", "a car").stdout.splitlines()
    assert [line.split(None, 1)[1] for line in lines] == ["a dog", "a car"]
    found = json.loads(run("score", camp_run.folder, "4.png", "a dog", "--json").stdout)
    assert found["image"] == "4.png"
    assert found["scores"][0]["score"] == pytest.approx(float(lines[0].split()[0]), abs=1e-4)


def test_report_names_its_page(camp_run: Run, tmp_path: Path, capsys: Any) -> None:
    found = json.loads(run("report", camp_run.folder, "--out", tmp_path / "page", "--json").stdout)
    assert Path(found["page"]) == tmp_path / "page" / "index.html"
    assert found["bytes"] == Path(found["page"]).stat().st_size
    assert len(found["notes"]) == 1
