"""torchrun's environment -> this process's rank, and gradients summed over all ranks.

Not DistributedDataParallel: the two passes of training add to `.grad` in several backward calls, which its
hooks would reduce too early. One all-reduce of a flat buffer after the last of them does the same work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Ranks:
    """Who this process is among those that train together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace every gradient by its sum over the ranks."""
        if self.world_size == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
        )
        dist.all_reduce(flat)
        offset = 0
        for parameter in parameters:
            part = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)

    def same_weights(self, model: nn.Module) -> None:
        """Give every rank the first one's weights."""
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def total(self, values: list[float]) -> list[float]:
        """Sums over the ranks."""
        return values if self.world_size == 1 else self._reduced(values)

    def agree(self, flag: bool) -> bool:
        """True on every rank when it is true on any."""
        return self._reduced([float(flag)])[0] > 0 if self.world_size > 1 else flag

    def _reduced(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device())
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def _device(self) -> torch.device:
        return torch.device("cuda", self.local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")

    def close(self) -> None:
        if self.world_size > 1:
            dist.destroy_process_group()


def join_ranks(device: torch.device) -> Ranks:
    """Under torchrun, join the group (NCCL for CUDA, gloo else); alone otherwise."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Ranks()
    ranks = Ranks(
        rank=int(os.environ["RANK"]), world_size=world_size, local_rank=int(os.environ.get("LOCAL_RANK", "0"))
    )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return ranks
