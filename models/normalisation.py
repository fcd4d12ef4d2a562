"""Local features and their mask -> normalised over what is real: padding enters no mean and no variance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import InputError
from .encoders import unit

NORMS = ("batch", "instance", "l2", "none")


class MaskedBatchNorm(nn.Module):
    """Batch norm over the real regions or words of all items: (n, L, d), mask -> (n, L, d), 0 on padding."""

    def __init__(self, dim: int, *, affine: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, affine=affine)

    def forward(self, local: Tensor, mask: Tensor) -> Tensor:
        real: Tensor = self.norm(local[mask])  # (real rows, d)
        return torch.zeros_like(local).masked_scatter(mask.unsqueeze(-1), real.to(local.dtype))


class LocalNorm(nn.Module):
    """One of NORMS without parameters: (n, L, d), (n, L) -> (n, L, d)."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        if kind not in NORMS:
            raise InputError(f"norm={kind!r}, expected one of {', '.join(NORMS)}")
        self.kind = kind
        if kind == "batch":
            self.batch = MaskedBatchNorm(dim, affine=False)

    def forward(self, local: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "batch":
            normalised: Tensor = self.batch(local, mask)
            return normalised
        if self.kind == "instance":
            real = mask.unsqueeze(-1)
            count = real.sum(dim=1, keepdim=True).clamp_min(1)
            centred = (local - (local * real).sum(dim=1, keepdim=True) / count) * real
            variance = centred.square().sum(dim=1, keepdim=True) / count
            return centred / (variance + 1e-5).sqrt()
        return unit(local) if self.kind == "l2" else local
