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
            # In two parts: a result of 16 MB would be fresh memory each time, which the system clears first.
            parts = left.chunk(2)
            rivals["oneDNN"] = lambda: [onednn.linear(part, right) for part in parts]
    return rivals


def gemm_rates(result: Result, seconds: Mapping[str, float]) -> dict[str, float]:
    """Library -> FLOP/s; a row each."""
    rates = {name: OPERATIONS / seconds[name] for name in ("torch.mm", "oneDNN") if name in seconds}
    for name, rate in rates.items():
        result.row(f"GEMM {ROWS}×{DIM}×{DIM}, {name}", rate / 1e9, "GFLOP/s")
    return rates


def gemm_ratio(result: Result, ratio: str, rate: float, rates: Mapping[str, float]) -> None:
    """Somebody's FLOP/s as a share of torch.mm's: a ratio; of the faster library's: a row."""
    result.ratio(ratio, rate / rates["torch.mm"])
    result.row(f"{ratio}: share of the faster library's rate", 100 * rate / max(rates.values()), "%")
