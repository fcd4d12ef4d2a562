"""The runs of a comparison -> means and spreads per row, as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.recall import CUTOFFS, DIRECTIONS, over_seeds
from ..files import write_atomic

TABLE_FILES = ("table.md", "table.csv", "table.json")
COSTS = (
    "training_seconds",
    "encode_seconds",
    "score_seconds",
    "microseconds_per_pair",
    "parameters",
    "trained_parameters",
)
_RECALLS = [(direction, f"r@{cutoff}") for direction in DIRECTIONS for cutoff in CUTOFFS]
_HEADINGS = [
    "",
    *(f"{direction.split('_')[0]} R@{cutoff}" for direction in DIRECTIONS for cutoff in CUTOFFS),
    "rsum",
    "trained",
    "scored",
    "µs/pair",
    "parameters",
    "runs",
]


@dataclass(frozen=True)
class RowSummary:
    """One row: its runs so far by seed, each as compare_job gives it."""

    name: str
    source: str
    settings: tuple[str, ...]
    runs: Mapping[int, Mapping[str, Any]]

    @cached_property
    def measured(self) -> list[Mapping[str, Any]]:
        """The runs that have numbers; a collapsed one has them too."""
        return [run for run in self.runs.values() if run["status"] != "failed"]

    @cached_property
    def recall(self) -> dict[str, Any] | None:
        return over_seeds([run["metrics"] for run in self.measured]) if self.measured else None

    def cost(self, name: str) -> dict[str, float] | None:
        """Mean and standard deviation of one of COSTS."""
        values = [run[name] for run in self.measured]
        if not values:
            return None
        return {
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        }

    @property
    def errors(self) -> list[str]:
        return [
            f"seed {seed}: {run['error']}" for seed, run in self.runs.items() if run["status"] == "failed"
        ]

    def state(self, seeds: int) -> str:
        """'3', '1 of 3', '2, 1 failed', '3, 1 collapsed'."""
        count = {
            status: sum(run["status"] == status for run in self.runs.values())
            for status in ("done", "collapsed", "failed")
        }
        measured = count["done"] + count["collapsed"]
        parts = [str(measured) if len(self.runs) == seeds else f"{measured} of {seeds}"]
        parts += [f"{count[status]} {status}" for status in ("collapsed", "failed") if count[status]]
        return ", ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """All rows, and what they were measured on."""

    dataset: str
    features: str
    split: str
    folds: int
    device: str
    seeds: int
    chance: Mapping[str, Any]
    rows: Sequence[RowSummary]

    @property
    def title(self) -> str:
        folds = f", mean of {self.folds} folds" if self.folds > 1 else ""
        spread = f", mean ± standard deviation of {self.seeds} seeds" if self.seeds > 1 else ""
        return f"{self.dataset}, {self.features}, split {self.split}{folds}, on {self.device}{spread}"

    def cells(self) -> list[list[str]]:
        """Headings, the chance level, and a line per row."""
        lines = [list(_HEADINGS), self._chance_line()]
        for row in self.rows:
            values: list[str] = []
            recall = row.recall
            for direction, cutoff in _RECALLS:
                values.append(_spread(recall and recall[direction][cutoff]))
            values.append(_spread(recall and recall["rsum"]))
            values += [_seconds(row.cost("training_seconds")), _seconds(row.cost("score_seconds"))]
            per_pair, parameters = row.cost("microseconds_per_pair"), row.cost("parameters")
            values.append(f"{per_pair['mean']:.3g}" if per_pair else "–")
            values.append(f"{parameters['mean'] / 1e6:.2f} M" if parameters else "–")
            lines.append([row.name, *values, row.state(self.seeds)])
        return lines

    def _chance_line(self) -> list[str]:
        recalls = [f"{self.chance[direction][cutoff]:.1f}" for direction, cutoff in _RECALLS]
        return ["chance", *recalls, f"{self.chance['rsum']:.1f}", "", "", "", "", ""]

    def text(self) -> str:
        """For a terminal."""
        cells = self.cells()
        widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
        lines = [
            "  ".join(
                value.ljust(width) if column == 0 else value.rjust(width)
                for column, (value, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        errors = [f"{row.name}, {error}" for row in self.rows for error in row.errors]
        return "\n".join([self.title, *lines, *errors])

    def markdown(self) -> str:
        head, *lines = ([value.replace("|", "\\|") for value in line] for line in self.cells())
        table = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
        errors = [f"- {row.name}, {error}" for row in self.rows for error in row.errors]
        parts = [self.title, "", *("| " + " | ".join(line) + " |" for line in table)]
        return "\n".join([*parts, *(["", *errors] if errors else [])]) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "features": self.features,
            "split": self.split,
            "folds": self.folds,
            "device": self.device,
            "seeds": self.seeds,
            "chance": dict(self.chance),
            "rows": [
                {
                    "name": row.name,
                    "config": row.source,
                    "set": list(row.settings),
                    **(row.recall or {}),
                    **{name: row.cost(name) for name in COSTS},
                    "runs": {str(seed): dict(run) for seed, run in row.runs.items()},
                }
                for row in self.rows
            ],
        }

    def csv(self) -> str:
        """One line per run, for spreadsheets."""
        recalls = [f"{direction.split('_')[0]} {cutoff}" for direction, cutoff in _RECALLS]
        stream = io.StringIO()
        writer = csv.writer(stream)
        writer.writerow(["row", "seed", "status", *recalls, "rsum", *COSTS, "error"])
        for row in self.rows:
            for seed, run in row.runs.items():
                metrics = run.get("metrics")
                numbers = [metrics[direction][cutoff] if metrics else "" for direction, cutoff in _RECALLS]
                numbers += [metrics["rsum"] if metrics else "", *(run.get(name, "") for name in COSTS)]
                writer.writerow([row.name, seed, run["status"], *numbers, run.get("error", "")])
        return stream.getvalue()


def write_tables(table: Comparison, out: Path) -> None:
    """table.md, table.csv and table.json, each whole or as it was."""
    contents = (table.markdown(), table.csv(), json.dumps(table.to_json(), indent=1, ensure_ascii=False))
    for name, content in zip(TABLE_FILES, contents, strict=True):
        write_atomic(out / name, content.encode())


def _spread(value: Mapping[str, float] | None) -> str:
    if not value:
        return "–"
    return f"{value['mean']:.1f}" + (f" ± {value['std']:.1f}" if value["std"] else "")


def _seconds(value: Mapping[str, float] | None) -> str:
    if not value:
        return "–"
    seconds = value["mean"]
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
