"""Mining of hard negatives from vectors: how near it comes to one product of matrices, and what it holds.

Ratio: mine_gemm, the share of torch.mm's rate (fp32, 4096×1024×1024) that is left after keeping the best 300
captions of each image and the best 60 images of each caption, positives hidden.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F
from gemm import gemm_rates, gemm_ratio, gemm_rivals
from harness import Result, arguments, interleaved, peak_megabytes

from camp.evaluation.mining import BLOCK, HiddenPairs, mine_block, parts, vector_blocks
from camp.evaluation.top_lists import TopLists

IMAGES, CAPTIONS, DIM = 5000, 25_000, 1024
TOP_CAPTIONS, TOP_IMAGES = 300, 60


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        print(memory(int(sys.argv[2])))
        return
    options = arguments(__doc__ or "")
    result = Result("mine")
    mining_row(result, quick=options.quick)
    result.finish(options.json)


def mining_row(result: Result, *, quick: bool) -> None:
    """Rows and the ratio mine_gemm into somebody's result."""
    images, captions = vectors(IMAGES), vectors(CAPTIONS)
    seconds = interleaved(
        {"mine": lambda: mine(images, captions), **gemm_rivals()},
        repeats=3 if quick else 7,
        warm_up=0 if quick else 1,
    )
    rate = 2 * IMAGES * CAPTIONS * DIM / seconds["mine"]
    result.row("mining 5,000 × 25,000", seconds["mine"], "s")
    result.row("mining", rate / 1e9, "GFLOP/s")
    gemm_ratio(result, "mine_gemm", rate, gemm_rates(result, seconds))
    small, large = (memory_of(rows) for rows in (IMAGES, 4 * IMAGES))
    result.row("memory above the vectors, 5,000 images", small, "MB")
    result.row("memory above the vectors, 20,000 images", large, "MB")
    matrix = 4 * IMAGES * CAPTIONS * 4 / 1e6
    result.notes.append(f"the matrix of 20,000 images would take {matrix:,.0f} MB")


def vectors(count: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, DIM, generator=torch.Generator().manual_seed(count)), dim=1)


@torch.no_grad()
def mine(images: torch.Tensor, captions: torch.Tensor) -> list[torch.Tensor]:
    """Both ways, as `camp mine` does it -> the captions' keys and the images'."""
    owner = np.arange(len(captions)) * len(images) // len(captions)
    hidden = HiddenPairs(owner, np.arange(len(captions)))
    columns = TopLists(len(captions), top=TOP_IMAGES)
    blocks = vector_blocks(lambda block: images[block], captions)
    found = [
        mine_block(
            blocks(block), block, hidden=hidden, captions=len(captions), top=TOP_CAPTIONS, columns=columns
        )
        for block in parts(len(images), BLOCK)
    ]
    return [columns.sorted_keys(), *found]


def memory_of(images: int) -> float:
    """In a process of its own: the peak counts everything that ever ran."""
    command = [sys.executable, __file__, "--memory", str(images)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(images: int) -> float:
    """Megabytes that mining takes beyond its vectors; few captions, so that it is over soon."""
    some, captions = vectors(images), vectors(4096)
    mine(some[:64], captions[:1024])  # what the libraries keep for themselves
    before = peak_megabytes()
    mine(some, captions)
    return peak_megabytes() - before


if __name__ == "__main__":
    main()
