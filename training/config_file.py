"""TOML and --set overrides -> a checked TrainConfig, all errors at once; and back to TOML."""

from __future__ import annotations

import importlib.resources
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from ..errors import InputError
from .config import TrainConfig, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def shipped_configs() -> dict[str, Path]:
    """Names of the ready recipes -> their files."""
    folder = importlib.resources.files(__package__.rpartition(".")[0] + ".configs")
    return {
        Path(entry.name).stem: Path(str(entry))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def read_config(source: Path | str, *, overrides: Sequence[str] = ()) -> TrainConfig:
    """A file, or the name of a shipped recipe, and `key=value` overrides -> a config."""
    path = _find(source)
    tree = _read_tree(path)
    problems: list[str] = []
    for override in overrides:
        _override(tree, override, problems)
    return parse_config(tree, source=str(path), problems=problems)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts -> a tree of plain values."""
    tree: dict[str, Any] = {}
    problems: list[str] = []
    for setting in settings:
        _override(tree, setting, problems)
    if problems:
        raise InputError("; ".join(problems))
    return tree


def parse_config(tree: Mapping[str, Any], *, source: str, problems: Sequence[str] = ()) -> TrainConfig:
    """A tree of plain values -> a config; every problem in it is told in one error."""
    wrong = list(problems)
    hints = get_type_hints(TrainConfig)
    wrong += [f"{key}: unknown{did_you_mean(key, hints)}" for key in tree if key not in hints]
    stages: dict[str, Any] = {}
    for name, kind in hints.items():
        table = tree.get(name, {})
        if not isinstance(table, dict):
            wrong.append(f"{name}: found {table!r}, expected a table")
            continue
        stage = _build(kind, table, f"{name}.", wrong)
        if stage is not None:
            stages[name] = stage
            wrong += [f"{name}.{problem}" for problem in stage.problems()]
    if wrong:
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        raise InputError(f"{source}: {count}: " + "; ".join(wrong))
    return TrainConfig(**stages)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file -> its tables."""
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: invalid UTF-8 at byte {error.start}") from None


def _read_tree(path: Path, *, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A config file over what it `extends`: a recipe's name, or a file beside it."""
    if path.resolve() in above:
        raise InputError(f"{path}: extends itself, through {', '.join(file.name for file in above)}")
    tree = read_toml(path)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise InputError(f"{path}: extends: found {base!r}, expected a recipe's name or a .toml file")
    below = _find(path.parent / base if base.endswith(".toml") else base)
    return _merge(_read_tree(below, above=(*above, path.resolve())), tree)


def _merge(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, values replaced."""
    for key, value in over.items():
        table = below.get(key)
        below[key] = _merge(table, value) if isinstance(table, dict) and isinstance(value, dict) else value
    return below


def _find(source: Path | str) -> Path:
    path = Path(source)
    if path.suffix == ".toml":
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return path
    shipped = shipped_configs()
    if str(source) not in shipped:
        hint = did_you_mean(str(source), shipped)
        raise InputError(
            f"config {str(source)!r}{hint}: expected a .toml file or one of {', '.join(shipped) or 'none'}"
        )
    return shipped[str(source)]


def _override(tree: dict[str, Any], override: str, problems: list[str]) -> None:
    """'optimizer.lr=1e-4' into the tree; the value is TOML, or a bare word."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        problems.append(f"--set {override}: expected key=value, for instance optimizer.lr=1e-4")
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *parents, last = key.strip().split(".")
    table: Any = tree
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            problems.append(f"--set {override}: {parent} is a value, not a table")
            return
    table[last] = value


def _build(kind: type[Any], table: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    """A table -> its dataclass, or None where a field has the wrong type."""
    hints = get_type_hints(kind)
    problems += [f"{where}{key}: unknown{did_you_mean(key, hints)}" for key in table if key not in hints]
    before = len(problems)
    values = {
        name: _value(table[name], hint, f"{where}{name}", problems)
        for name, hint in hints.items()
        if name in table
    }
    return kind(**values) if len(problems) == before else None


def _value(value: Any, hint: Any, where: str, problems: list[str]) -> Any:
    """A TOML value of the field's type; whole numbers are fine where a real one is wanted."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool):
        if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
            return value
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        problems.append(f"{where}: found {value!r}, expected {names[hint]}")
        return None
    if getattr(hint, "__origin__", None) is tuple:
        inner = hint.__args__[0]
        if isinstance(value, list):
            return tuple(_value(entry, inner, f"{where}[{n}]", problems) for n, entry in enumerate(value))
        problems.append(f"{where}: found {value!r}, expected a list")
        return None
    if not isinstance(value, dict):
        problems.append(f"{where}: found {value!r}, expected a table")
    return value


def config_to_toml(config: TrainConfig) -> str:
    """A config -> TOML that reads back to the same config."""
    lines: list[str] = []
    for name, stage in asdict(config).items():
        lines.append(f"[{name}]")
        lines += [
            f"{key} = {toml_value(value)}" for key, value in stage.items() if not isinstance(value, dict)
        ]
        for key, table in stage.items():
            if isinstance(table, dict) and table:
                lines.append(f"[{name}.{key}]")
                lines += [f"{inner} = {toml_value(value)}" for inner, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(entry) for entry in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
