"""Grids: configs × values, files of named rows, and the ready ones that are the papers' tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.models.build import TABLE_3
from camp.training.grid import GridRow, expand_grid, row_folders, shipped_grids


def test_every_config_with_every_value(tiny_config: Path) -> None:
    rows = expand_grid(
        [str(tiny_config), "camp_sample"],
        grids=["model.options.dim=8,16", "optimizer.name=adam,sgd", "optimizer.betas=[0.8, 0.9]"],
        settings=["schedule.epochs=2"],
    )
    assert len(rows) == 8
    assert rows[0].name == "tiny dim=8 name=adam betas=[0.8, 0.9]"
    config = rows[-1].config(seed=3, budget_minutes=2)
    assert config.model.options["dim"] == 16
    assert (config.optimizer.name, config.optimizer.betas) == ("sgd", (0.8, 0.9))
    assert (config.schedule.epochs, config.run.seed, config.run.budget_minutes) == (2, 3, 2)
    assert row_folders(rows)[0] == "tiny-dim=8-name=adam-betas=-0.8-0.9"


def test_true_false_and_bare_words() -> None:
    rows = expand_grid(["camp_sample"], grids=["model.options.gates=true,false"])
    assert [row.config().model.options["gates"] for row in rows] == [True, False]
    rows = expand_grid(["camp_sample"], grids=["model.options.fusion=sum,concat"])
    assert [row.config().model.options["fusion"] for row in rows] == ["sum", "concat"]


def test_a_file_of_rows(tmp_path: Path, tiny_config: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        "config = 'tiny.toml'\n[rows]\n'as it is' = []\n'wide' = ['model.options.dim=64']\n"
        "'camp' = {config = 'camp_sample', set = ['schedule.epochs=1']}\n"
    )
    rows = expand_grid([], grids=[str(grid)])
    assert [row.name for row in rows] == ["as it is", "wide", "camp"]
    assert [row.config().model.name for row in rows] == ["base", "base", "camp"]
    assert rows[1].config().model.options["dim"] == 64
    again = expand_grid(["base_sample", "vsepp_sample"], grids=[str(grid)])
    assert [row.name for row in again][:3] == [
        "base_sample: as it is",
        "vsepp_sample: as it is",
        "base_sample: wide",
    ]
    assert len(again) == 4  # the row with a config of its own is left out
    with pytest.raises(InputError, match="every row names a config of its own; leave --configs out"):
        expand_grid(["base_sample"], grids=["camp_table3"])


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no config to compare"):
        expand_grid([], grids=["optimizer.lr=1"])
    with pytest.raises(InputError, match=r"grid 'camp_tabel3' \(did you mean 'camp_table3'\?\)"):
        expand_grid([], grids=["camp_tabel3"])
    with pytest.raises(InputError, match="rows of the same name: camp_sample"):
        expand_grid(["camp_sample", "camp_sample"])
    grid = tmp_path / "g.toml"
    grid.write_text("confg = 'x'\n[rows]\n'a' = 3\n")
    with pytest.raises(InputError) as caught:
        expand_grid([], grids=[str(grid)])
    assert "confg: unknown (did you mean 'config'?); rows.'a': found 3" in str(caught.value)
    grid.write_text("[rows]\n'a' = []\n")
    with pytest.raises(InputError, match="no config; set 'config' in the file, or give --configs"):
        expand_grid([], grids=[str(grid)])


@pytest.mark.parametrize("name", shipped_grids())
def test_ready_grids_are_valid_and_say_how_to_run_them(name: str) -> None:
    assert shipped_grids()[name].read_text().startswith(f"# camp compare DATASET --grid {name} ")
    rows = expand_grid([], grids=[name])
    configs = [row.config() for row in rows]
    assert all(configs.count(config) == 1 for config in configs)


@pytest.mark.parametrize("name", ["camp_table3", "camp_table3_sample"])
def test_camp_table_3_has_the_paper_s_rows(name: str) -> None:
    rows = {row.name: row.config() for row in expand_grid([], grids=[name])}
    assert list(rows) == list(TABLE_3)
    for title, row in TABLE_3.items():
        config = rows[title]
        assert config.model.name == row.model
        assert config.model.options.items() >= row.options.items(), title
        ranking, all_negatives = row.loss.startswith("ranking"), row.loss == "bce_all"
        assert (config.loss.name in ("ranking_hardest", "annealed")) == ranking
        assert (config.loss.name == "bce_all") == all_negatives
        assert config.loss.of_probabilities == row.loss_options.get("of_probabilities", False)


def test_rows_start_from_one_of_them(tmp_path: Path) -> None:
    grid = tmp_path / "g.toml"
    grid.write_text(
        "config = 'camp_sample'\ninit = 'base'\n[rows]\n'a' = []\n'base' = {config = 'base_sample'}\n"
    )
    rows = expand_grid([], grids=[str(grid), "optimizer.lr=1e-3,1e-4"])
    assert [(row.name, row.init) for row in rows] == [
        ("a lr=0.001", "base lr=0.001"),
        ("a lr=0.0001", "base lr=0.0001"),
        ("base lr=0.001", None),
        ("base lr=0.0001", None),
    ]
    assert [row.init for row in expand_grid(["vsepp_sample"], grids=[str(grid)])] == [None]
    grid.write_text("config = 'camp_sample'\ninit = 'bas'\n[rows]\n'base' = []\n")
    with pytest.raises(
        InputError, match=r"init: found 'bas', expected the name of a row \(did you mean 'base'"
    ):
        expand_grid([], grids=[str(grid)])


def test_adapt_grids_go_onto_the_sample() -> None:
    for name in ("adapt_table3", "adapt_latent"):
        for row in expand_grid(["adapt_sample"], grids=[name]):
            assert row.source == "adapt_sample"
            row.config()


@given(st.lists(st.text(max_size=8), unique=True, max_size=8))
def test_folders_are_plain_and_distinct(names: list[str]) -> None:
    folders = row_folders([GridRow(name, "x") for name in names])
    assert len(set(folders)) == len(names)
    assert all(folder and "/" not in folder and not folder.startswith(".") for folder in folders)
