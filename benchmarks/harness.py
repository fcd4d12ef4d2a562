"""Rival functions -> interleaved timings, a table, and the JSON every benchmark writes."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

REPEATS = 7


def arguments(description: str) -> argparse.Namespace:
    """The two options of every benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within a minute on 2 cores")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def interleaved(
    rivals: Mapping[str, Callable[[], object]],
    *,
    repeats: int = REPEATS,
    warm_up: int = 1,
    before: Callable[[], object] = lambda: None,  # each turn, not timed
) -> dict[str, float]:
    """Name -> function, to name -> best seconds.

    Rivals take turns, so that a noisy minute hits all, and in a new order each round, so that nobody always
    finds the caches as the same other one leaves them. Garbage is collected between the rounds.
    """
    for function in rivals.values():
        for _ in range(warm_up):
            before()
            function()
    best = dict.fromkeys(rivals, float("inf"))
    order, shuffle = list(rivals), Random(0).shuffle
    for _ in range(repeats):
        gc.collect()
        shuffle(order)
        for name in order:
            before()
            start = time.perf_counter()
            rivals[name]()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_name(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if torch := sys.modules.get("torch"):
        facts["torch"] = torch.__version__
        facts["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return facts


def peak_megabytes() -> float:
    """The most memory this process has held so far; getrusage would count its parent's before the start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


@dataclass
class Result:
    """Rows and ratios of one benchmark; a ratio is 'how many times better than', or the share of a limit."""

    benchmark: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def row(self, name: str, value: float, unit: str) -> None:
        self.rows.append({"name": name, "value": value, "unit": unit})

    def ratio(self, name: str, value: float) -> None:
        self.ratios[name] = value

    def finish(self, path: Path | None) -> None:
        """Print the table; write the JSON where asked."""
        width = max((len(row["name"]) for row in self.rows), default=0)
        for row in self.rows:
            print(f"{row['name']:<{width}}  {row['value']:>14,.4g}  {row['unit']}")
        for name, value in self.ratios.items():
            print(f"ratio {name}: {value:.2f}")
        for note in self.notes:
            print(f"note: {note}")
        if path:
            document = {
                "benchmark": self.benchmark,
                "machine": machine(),
                "rows": self.rows,
                "ratios": self.ratios,
                "notes": self.notes,
            }
            path.write_text(json.dumps(document, indent=2) + "\n")
