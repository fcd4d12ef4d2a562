"""Dot products of queries and contexts -> each query's cosine to what it attends to: SCAN's and BFAN's core.

The attended context is an average of context features with weights α, so it is never formed: its product with
the query is Σ α·s over the dot products s that attention needed anyway, its length √(αᵀ G α) with the Gram
matrix G of the contexts, cached. Per pair that leaves one product of d-wide features instead of two (four for
BFAN).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import masked_mean_weights, masked_softmax
from .encoders import NORM_EPSILON
from .scratch import may_overwrite, scratch

FOCI = ("equal", "prob")


def block_dots(a: Tensor, b: Tensor) -> Tensor:
    """Local features (nA, La, d) and (nB, Lb, d) -> (nA, nB·Lb, La), every b as queries to each a."""
    left, right = a.flatten(0, 1), b.flatten(0, 1).mT
    if not may_overwrite(a):
        products = left @ right  # (nA·La, nB·Lb)
        return products.view(a.shape[0], a.shape[1], -1).transpose(1, 2).contiguous()
    products = torch.mm(left, right, out=scratch("products", (left.shape[0], right.shape[1]), like=a))
    turned = products.view(a.shape[0], a.shape[1], -1).transpose(1, 2)
    return scratch("dots", turned.shape, like=a).copy_(turned)


def attention(dots: Tensor, query_mask: Tensor, context_mask: Tensor, smoothing: float) -> Tensor:
    """Dot products (g, items·Lq, Lc), masks (1 or g, items, Lq), (g, Lc) -> weights over the context.

    Without gradient they stand in memory that the next call overwrites.
    """
    if may_overwrite(dots):
        return _attention_over(dots, query_mask, context_mask, smoothing)
    groups, _, contexts = dots.shape
    rows = F.leaky_relu(dots, 0.1).view(groups, query_mask.shape[1], -1, contexts)
    # Over the real queries of one item: a padded word must not lower the others' share.
    lengths = rows.square().mul(query_mask.unsqueeze(-1)).sum(dim=2, keepdim=True)
    lengths = lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt() + NORM_EPSILON
    return masked_softmax(rows / lengths * smoothing, context_mask.view(groups, 1, 1, contexts)).view_as(dots)


def _attention_over(dots: Tensor, query_mask: Tensor, context_mask: Tensor, smoothing: float) -> Tensor:
    groups, _, contexts = dots.shape
    leaky = torch.mul(dots, 0.1, out=scratch("leaky", dots.shape, like=dots))
    rows = torch.maximum(leaky, dots, out=leaky).view(groups, query_mask.shape[1], -1, contexts)
    rows.mul_(query_mask.unsqueeze(-1))  # what a padded word attends to is never asked for
    lengths = torch.linalg.vector_norm(rows, dim=2, keepdim=True).add_(NORM_EPSILON)
    rows.mul_(smoothing / lengths)
    rows.masked_fill_(~context_mask.view(groups, 1, 1, contexts), torch.finfo(dots.dtype).min)
    return torch.softmax(leaky, dim=-1, out=scratch("weights", dots.shape, like=dots))


def focal(weights: Tensor, context_mask: Tensor, focus: str) -> Tensor:
    """Weights (g, m, Lc) -> those above what the others have on (weighted) average, renormalised; BFAN.

    The choice itself has no gradient. Where none is above the rest (a context of one element, or equal
    weights), all stay.
    """
    with torch.no_grad():
        if focus == "equal":  # Σ_j (a_i - a_j) > 0
            bar = 1 / context_mask.sum(dim=-1).clamp_min(1).view(-1, 1, 1)
        else:  # Σ_j (a_i - a_j) √a_j > 0
            root = weights.sqrt()
            bar = (weights * root).sum(dim=-1, keepdim=True) / root.sum(dim=-1, keepdim=True)
        keep = weights > bar
        keep |= ~keep.any(dim=-1, keepdim=True)
    kept = weights * keep
    return kept / kept.sum(dim=-1, keepdim=True)


def attended_cosines(dots: Tensor, weights: Tensor, grams: Tensor) -> Tensor:
    """Dot products and weights (g, m, Lc), Grams (g, Lc, Lc) -> cosines (g, m); queries have length 1."""
    if may_overwrite(dots):
        products = scratch("leaky", dots.shape, like=dots)  # the attention is done with it
        numerator = torch.mul(weights, dots, out=products).sum(dim=-1)
        squared = torch.bmm(weights, grams, out=products).mul_(weights).sum(dim=-1)
    else:
        numerator = (weights * dots).sum(dim=-1)
        squared = (torch.bmm(weights, grams) * weights).sum(dim=-1)
    return numerator / squared.clamp_min(NORM_EPSILON**2).sqrt()


def pool_queries(cosines: Tensor, query_mask: Tensor, lse: float | None) -> Tensor:
    """Cosines (g, items·Lq), mask (1 or g, items, Lq) -> (g, items): mean, or log-sum-exp that sharp."""
    cosines = cosines.view(cosines.shape[0], query_mask.shape[1], -1)
    if lse is None:
        return (cosines * masked_mean_weights(query_mask, cosines.dtype)).sum(dim=-1)
    return (cosines * lse).masked_fill(~query_mask, float("-inf")).logsumexp(dim=-1) / lse
