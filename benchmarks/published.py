"""Encoded images and captions -> scores, computed the way the papers' released code arranges it.

The rivals of benchmarks/score.py and benchmarks/models.py: equal scores, with every intermediate formed and
captions taken one by one (or expanded to pairs) as published. Written for this comparison; captions come
without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from camp.models.adapt import Adapt
from camp.models.camp_official import CampOfficial, OfficialSide
from camp.models.encoded import Encoded


def captions_of(texts: Encoded) -> list[Tensor]:
    """Encoded captions -> the real words of each, (N, d)."""
    return [local[:length] for local, length in zip(texts.local, texts.lengths.tolist(), strict=True)]


def _attend(queries: Tensor, contexts: Tensor, smoothing: float) -> Tensor:
    """(n, Lq, d), (n, Lc, d) -> weights (n, Lq, Lc)."""
    affinity = F.leaky_relu(torch.bmm(contexts, queries.mT), 0.1)
    affinity = affinity / (affinity.norm(dim=2, keepdim=True) + 1e-8)
    return (affinity.mT.contiguous() * smoothing).softmax(dim=-1)


def _cosines(queries: Tensor, weights: Tensor, contexts: Tensor) -> Tensor:
    attended = torch.bmm(contexts.mT, weights.mT.contiguous()).mT
    lengths = queries.norm(dim=-1) * attended.norm(dim=-1)
    return (queries * attended).sum(dim=-1) / lengths.clamp_min(1e-8)


def scan_loop(images: Tensor, captions: Sequence[Tensor], *, smoothing: float = 9.0) -> Tensor:
    """SCAN t2i AVG, caption by caption with the attended regions formed: -> (nI, nT)."""
    columns = []
    for caption in captions:
        queries = caption.unsqueeze(0).repeat(len(images), 1, 1)
        columns.append(_cosines(queries, _attend(queries, images, smoothing), images).mean(dim=1))
    return torch.stack(columns, dim=1)


def _focal(weights: Tensor) -> Tensor:
    root = weights.sqrt()
    focus = weights * root.sum(dim=-1, keepdim=True) - (weights * root).sum(dim=-1, keepdim=True)
    kept = torch.where(focus > 0, torch.ones_like(focus), torch.zeros_like(focus)) * weights
    return kept / kept.sum(dim=-1, keepdim=True)


def bfan_loop(images: Tensor, captions: Sequence[Tensor], *, smoothing: float = 20.0) -> Tensor:
    """BFAN prob, caption by caption, both directions on their own: -> (nI, nT)."""
    columns = []
    for caption in captions:
        words = caption.unsqueeze(0).repeat(len(images), 1, 1)
        column = torch.zeros(len(images))
        for queries, contexts in ((words, images), (images, words)):
            weights = _focal(_attend(queries, contexts, smoothing))
            column = column + _cosines(queries, weights, contexts).mean(dim=1)
        columns.append(column)
    return torch.stack(columns, dim=1)


def adapt_loop(model: Adapt, images: Encoded, texts: Encoded) -> Tensor:
    """ADAPT t2i, caption by caption with adapted regions and masks formed: -> (nI, nT)."""
    regions = images.local.mT.contiguous()  # (nI, d, R)
    columns = []
    for scale, shift, caption in zip(texts.pooled["scale"], texts.pooled["shift"], texts.glob, strict=True):
        adapted = regions * scale.view(1, -1, 1) + shift.view(1, -1, 1)
        masks = (adapted * model.smoothing).softmax(dim=-1)
        vectors = (masks * adapted).mean(dim=-1)
        columns.append(vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-8) @ caption)
    return torch.stack(columns, dim=1)


def official_expanded(model: CampOfficial, images: Encoded, texts: Encoded) -> Tensor:
    """The released CAMP with every pair expanded -> logits (nI, nT).

    Queries and keys are those of the encodings: the published code makes them once per batch, and everything
    behind them for every pair.
    """
    words = texts.mask.view(1, len(texts), 1, -1)
    regions = images.mask.view(len(images), 1, 1, -1)
    v = _official_side(model.side_image, model.side_text, _Side(images, 1, regions), _Side(texts, 0, words))
    t = _official_side(model.side_text, model.side_image, _Side(texts, 0, words), _Side(images, 1, regions))
    return model.match(torch.cat([v, t], dim=-1)).squeeze(-1)


class _Side(NamedTuple):
    encoded: Encoded
    axis: int  # where the other modality's axis goes: (nI, 1, R, d), (1, nT, N, d)
    mask: Tensor

    def expanded(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(self.axis)


def _official_side(side: OfficialSide, source: OfficialSide, receiver: _Side, sender: _Side) -> Tensor:
    query = receiver.expanded(receiver.encoded.cached["query"])
    key, value = (sender.expanded(part) for part in (sender.encoded.cached["key"], sender.encoded.local))
    messages = _weighted(query, key, value, sender.mask)  # (nI, nT, L, d)
    asked, heard = source.message_query(messages), source.message_key(messages)
    messages = _weighted(asked, heard, messages, receiver.mask)
    messages = messages / (messages.norm(dim=-1, keepdim=True) + 1e-8)
    own = receiver.expanded(receiver.encoded.local).expand_as(messages)
    gate = (own * messages).sum(dim=-1, keepdim=True).sigmoid()
    fused = side.fuse(torch.cat([own, messages], dim=-1) * gate).relu_() + own
    heads = _masked(side.pool(fused).mT, receiver.mask)
    pooled = (heads @ fused).mean(dim=-2)
    return pooled / (pooled.norm(dim=-1, keepdim=True) + 1e-8)


def _weighted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return _masked(query @ key.mT / sqrt(query.shape[-1]), mask) @ value


def _masked(logits: Tensor, mask: Tensor) -> Tensor:
    return logits.masked_fill(~mask, -1e9).softmax(dim=-1)
