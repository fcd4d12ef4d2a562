"""Configs: every shipped one is right, every mistake is told at once, TOML goes round."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.training.config import TrainConfig
from camp.training.config_file import config_to_toml, parse_config, read_config, shipped_configs

SHIPPED = shipped_configs()


def test_every_file_in_configs_is_found() -> None:
    folder = Path(__file__).resolve().parents[2] / "configs"
    assert set(SHIPPED) == {path.stem for path in folder.glob("*.toml")}
    assert "camp_f30k" in SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_are_valid_and_say_how_to_run_them(name: str) -> None:
    config = read_config(name)
    first = SHIPPED[name].read_text().splitlines()[0]
    assert first.startswith(f"# camp train DATASET --config {name} ")
    assert " --out RUN" in first
    assert parse_config_text(config_to_toml(config)) == config


def parse_config_text(text: str) -> TrainConfig:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return parse_config(tomllib.loads(text), source="text")


def test_all_errors_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[optimizer]\nlearning_rate = 1\nname = 'adm'\n[data]\nbatch_size = 'x'\n"
        "[model]\nname = 'camp'\n[model.options]\ndimm = 3\n[schedul]\nepochs = 1\n"
    )
    with pytest.raises(InputError) as caught:
        read_config(path)
    message = str(caught.value)
    assert "5 problems" in message
    assert "schedul: unknown (did you mean 'schedule'?)" in message
    assert "optimizer.learning_rate: unknown" in message
    assert "data.batch_size: found 'x', expected a whole number" in message
    path.write_text(
        "[optimizer]\nname = 'adm'\nlr = -1\n[model.options]\ndimm = 3\n[schedule]\ndrop_epochs = [5, 2]\n"
    )
    with pytest.raises(InputError) as caught:
        read_config(path)
    message = str(caught.value)
    assert "4 problems" in message
    assert (
        "optimizer.name: found 'adm', expected one of adam, adamw, adamax, sgd (did you mean 'adam'?)"
        in message
    )
    assert "optimizer.lr: found -1.0, expected more than 0" in message
    assert "model.options.dimm: unknown (did you mean 'dim'?)" in message
    assert "schedule.drop_epochs: found [5, 2], expected increasing numbers" in message


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[optimizer]\nlr = 1.0\n")
    config = read_config(path, overrides=["optimizer.lr=1e-4", "optimizer.name=sgd", "model.options.dim=64"])
    assert config.optimizer.lr == 1e-4
    assert config.optimizer.name == "sgd"
    assert config.model.options == {"dim": 64}
    with pytest.raises(InputError, match="--set nonsense: expected key=value"):
        read_config(path, overrides=["nonsense"])
    with pytest.raises(InputError, match="lr is a value, not a table"):
        read_config(path, overrides=["optimizer.lr.x=1"])


def test_a_config_extends_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[optimizer]\nlr = 1.0\nclip = 3.0\n[model.options]\ndim = 8\n")
    (tmp_path / "middle.toml").write_text("extends = 'base.toml'\n[optimizer]\nlr = 2.0\n")
    (tmp_path / "top.toml").write_text("extends = 'middle.toml'\n[model.options]\nword_dim = 5\n")
    config = read_config(tmp_path / "top.toml", overrides=["optimizer.clip=4"])
    assert (config.optimizer.lr, config.optimizer.clip) == (2.0, 4.0)
    assert config.model.options == {"dim": 8, "word_dim": 5}
    (tmp_path / "own.toml").write_text("extends = 'camp_sample'\n")
    assert read_config(tmp_path / "own.toml") == read_config("camp_sample")
    (tmp_path / "base.toml").write_text("extends = 'top.toml'\n")
    with pytest.raises(
        InputError, match="top.toml: extends itself, through top.toml, middle.toml, base.toml"
    ):
        read_config(tmp_path / "top.toml")
    (tmp_path / "base.toml").write_text("extends = 3\n")
    with pytest.raises(InputError, match="extends: found 3, expected a recipe's name or a .toml file"):
        read_config(tmp_path / "base.toml")


def test_wrong_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'camp_f30k'"):
        read_config("camp_f30")
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[x")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers(0, 99), unique=True))
def test_toml_goes_round(text: str, number: float, epochs: list[int]) -> None:
    tree = {
        "validation": {"split": text},
        "loss": {"margin": abs(number)},
        "schedule": {"drop_epochs": sorted(epochs)},
    }
    config = parse_config(tree, source="tree")
    assert parse_config_text(config_to_toml(config)) == config
