"""Affinities -> weights that padding gets no share of, and the pooling they drive."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the last axis over the entries whose mask (broadcast) is true.

    The lowest finite number stands for minus infinity: a row without any real entry gives equal weights, not
    NaN.
    """
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim=-1)


def masked_mean_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask (…, L) -> weights 1/length on the real entries, 0 elsewhere."""
    weights = mask.to(dtype)
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1)


def masked_mean(local: Tensor, mask: Tensor) -> Tensor:
    """Local features (n, L, d) -> the mean of the real ones (n, d)."""
    return torch.bmm(masked_mean_weights(mask, local.dtype).unsqueeze(1), local).squeeze(1)
