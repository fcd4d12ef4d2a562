"""Config names, key=value lists and grid files -> the rows of a comparison, each a config of its own.

A grid file is TOML: `config` is what its rows start from, and `[rows]` names each row and what it sets:

    config = "adapt_t2i_f30k"

    [rows]
    "ADAPT-T2I" = []
    "ADAPT-T2I (no fovea)" = ["model.options.fovea=false"]
    "SCAN t2i" = { config = "scan_t2i_f30k" }

`init = "NAME"` before the rows lets every row start from the weights of that one, of the same seed.
"""

from __future__ import annotations

import importlib.resources
import itertools
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import fingerprint
from .config import TrainConfig, did_you_mean
from .config_file import read_config, read_toml, toml_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class GridRow:
    """One line of the table: a config and what is changed in it."""

    name: str
    source: str  # a recipe's name, or a file
    settings: tuple[str, ...] = ()  # key=value, as --set takes them
    init: str | None = None  # the row whose weights it starts from

    def config(self, *, seed: int = 0, budget_minutes: float | None = None) -> TrainConfig:
        """The config of its `seed`-th repetition; all its problems at once."""
        config = read_config(self.source, overrides=self.settings)
        run = replace(config.run, seed=config.run.seed + seed)
        if budget_minutes is not None:
            run = replace(run, budget_minutes=budget_minutes)
        return replace(config, run=run)


def expand_grid(
    configs: Sequence[str], *, grids: Sequence[str] = (), settings: Sequence[str] = ()
) -> list[GridRow]:
    """Configs × the values of every `key=a,b`, or × the rows of a grid file.

    Without configs a file's rows start from its own; with them, rows that name a config are left out.
    `settings` hold for every row, before the row's own.
    """
    axes = [_axis(grid) for grid in grids if "=" in grid]
    files = [grid for grid in grids if "=" not in grid]
    rows = [row for file in files for row in _file_rows(file, configs)]
    if not files:
        rows = [GridRow(_stem(config), config) for config in configs]
    if not rows:
        raise InputError("no config to compare; give --configs a,b or a --grid file")
    rows = [_at(row, point, settings) for row in rows for point in itertools.product(*axes)]
    if twice := [name for name, count in Counter(row.name for row in rows).items() if count > 1]:
        raise InputError(f"rows of the same name: {', '.join(twice)}; name each config once")
    return rows


def _at(row: GridRow, point: Sequence[tuple[str, Any]], settings: Sequence[str]) -> GridRow:
    """A row with one value of every axis."""
    suffix = "".join(f" {key.rpartition('.')[2]}={_shown(value)}" for key, value in point)
    return GridRow(
        row.name + suffix,
        row.source,
        (*settings, *row.settings, *(f"{key}={toml_value(value)}" for key, value in point)),
        None if row.init is None else row.init + suffix,
    )


def row_folders(rows: Sequence[GridRow]) -> list[str]:
    """A folder name for each row; names that would be alike get a few digits of their own."""
    plain = [re.sub(r"[^A-Za-z0-9._=+-]+", "-", row.name).strip("-.").lower() or "row" for row in rows]
    shared = {name for name, count in Counter(plain).items() if count > 1}
    return [
        f"{name}-{fingerprint(row.name)[:6]}" if name in shared else name
        for name, row in zip(plain, rows, strict=True)
    ]


def shipped_grids() -> dict[str, Path]:
    """Names of the ready grids -> their files."""
    folder = importlib.resources.files(__package__.rpartition(".")[0] + ".configs") / "grids"
    return {
        Path(entry.name).stem: Path(str(entry))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def _file_rows(source: str, configs: Sequence[str]) -> list[GridRow]:
    path = Path(source)
    if path.suffix != ".toml":
        shipped = shipped_grids()
        if source not in shipped:
            hint = did_you_mean(source, shipped)
            raise InputError(
                f"grid {source!r}{hint}: expected key=a,b, a .toml file or one of {', '.join(shipped)}"
            )
        path = shipped[source]
    tree = read_toml(path)
    wrong = [f"{key}: unknown{did_you_mean(key, _KEYS)}" for key in tree if key not in _KEYS]
    table, base = tree.get("rows", {}), tree.get("config")
    if not isinstance(table, dict) or not table:
        wrong.append("rows: expected a table with at least one row")
        table = {}
    start = tree.get("init") if not configs else None
    if start is not None and start not in table:
        wrong.append(f"init: found {start!r}, expected the name of a row{did_you_mean(str(start), table)}")
    given = list(configs) or ([_beside(path, base)] if isinstance(base, str) else [])
    rows = []
    for name, entry in table.items():
        own, settings = _entry(name, entry, wrong)
        if own is not None and configs:
            continue
        own = None if own is None else _beside(path, own)
        if own is None and not given:
            wrong.append(f"rows.{name!r}: no config; set 'config' in the file, or give --configs")
        for config in given if own is None else [own]:
            several = own is None and len(given) > 1
            title = f"{_stem(config)}: {name}" if several else name
            rows.append(GridRow(title, config, settings, None if name == start else start))
    if not rows and not wrong:
        wrong.append("every row names a config of its own; leave --configs out")
    if wrong:
        raise InputError(f"{path}: " + "; ".join(wrong))
    return rows


_KEYS = ("config", "init", "rows")


def _beside(path: Path, config: str) -> str:
    """A file that a grid names lies beside the grid."""
    return str(path.parent / config) if config.endswith(".toml") else config


def _entry(name: str, entry: Any, wrong: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """A row's value -> its own config or None, and its settings."""
    table = {"set": entry} if isinstance(entry, list) else entry
    if not isinstance(table, dict) or not set(table) <= {"config", "set"}:
        wrong.append(f"rows.{name!r}: found {entry!r}, expected a list of key=value, or config and set")
        return None, ()
    settings, config = table.get("set", []), table.get("config")
    if not all(isinstance(one, str) for one in settings) or not isinstance(config, (str, type(None))):
        wrong.append(f"rows.{name!r}: found {entry!r}, expected texts")
        return None, ()
    return config, tuple(settings)


def _axis(grid: str) -> list[tuple[str, Any]]:
    """'optimizer.lr=1e-3,1e-4' -> its points; the values are TOML, or bare words."""
    key, _, text = grid.partition("=")
    try:
        values = tomllib.loads(f"value = [{text}]")["value"]
    except tomllib.TOMLDecodeError:
        values = [_word(part) for part in text.split(",")]
    if not key.strip() or not values:
        raise InputError(f"--grid {grid}: expected key=a,b, for instance optimizer.lr=1e-3,1e-4")
    return [(key.strip(), value) for value in values]


def _word(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _stem(config: str) -> str:
    return Path(config).stem if config.endswith(".toml") else config
