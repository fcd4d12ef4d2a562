"""The options that many commands share, declared once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DATASET = click.Path(path_type=Path, file_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


def debug_option(function: Decorated) -> Decorated:
    """--debug behind the command as well as before it; cli.py reads it from the arguments."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")(function)


def json_option(function: Decorated) -> Decorated:
    """--json: the result as one JSON document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)


def print_json(value: Any) -> None:
    """A result -> stdout, for machines."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A log line -> stderr."""
    click.echo(text, err=True)
