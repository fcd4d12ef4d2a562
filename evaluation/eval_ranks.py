"""torchrun's environment -> which part of a score matrix this process computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(days=2)  # the others may have a block of hours left


@dataclass(frozen=True)
class EvalRanks:
    """This process among those that score one matrix; alone by default."""

    rank: int = 0
    world_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that measures and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def wait(self) -> None:
        """Until every process is here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def eval_ranks() -> Iterator[EvalRanks]:
    """Join the group that torchrun started; without torchrun, alone.

    The processes share their blocks through files and only wait for each other, so gloo does on GPUs too.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield EvalRanks()
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield EvalRanks(rank=int(os.environ["RANK"]), world_size=world_size)
    finally:
        dist.destroy_process_group()
