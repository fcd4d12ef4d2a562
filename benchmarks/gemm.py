"""The machine's own rate of matrix products, fp32, 4096×1024×1024: by torch.mm and by oneDNN."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from harness import Result

from camp.models import onednn

ROWS, DIM = 4096, 1024
OPERATIONS = 2 * ROWS * DIM**2


def gemm_rivals() -> dict[str, Callable[[], object]]:
    """To be timed beside what is compared with them."""
    left, right, product = torch.randn(ROWS, DIM), torch.randn(DIM, DIM), torch.empty(ROWS, DIM)
    rivals: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(left, right, out=product)}
    with torch.no_grad():
        if onednn.usable(left):
            rivals["oneDNN"] = lambda: onednn.linear(left, right)
    return rivals


def gemm_rates(result: Result, seconds: Mapping[str, float]) -> dict[str, float]:
    """FLOP/s of each library, and of the faster one as "best"; a row each."""
    rates = {name: OPERATIONS / seconds[name] for name in ("torch.mm", "oneDNN") if name in seconds}
    for name, rate in rates.items():
        result.row(f"GEMM {ROWS}×{DIM}×{DIM}, {name}", rate / 1e9, "GFLOP/s")
    return {**rates, "best": max(rates.values())}
