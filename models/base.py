"""CAMP's base model: regions and words pooled separately, compared as unit vectors (supplementary 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from .attention import masked_softmax
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, unit
from .matcher import Matcher


class AttentionPool(nn.Module):
    """Local features (n, L, d) -> weights (n, L) and their weighted sum (n, d), supplementary Eq. 1–2."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 1, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, local: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(local).squeeze(-1) / sqrt(local.shape[-1])
        weights = masked_softmax(logits, mask)
        return weights, torch.bmm(weights.unsqueeze(1), local).squeeze(1)


class Base(Matcher):
    """No interaction before the score: one vector per image and per caption, and their cosine."""

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.image = RegionEncoder(region_dim=region_dim, dim=dim)
        self.text = WordEncoder(vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors)
        self.pool_image = AttentionPool(dim)
        self.pool_text = AttentionPool(dim)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        local = self.image(regions)  # (n, R, d)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        return self._encoded(local, mask, self.pool_image)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        local = self.text(ids, lengths)  # (n, N, d)
        return self._encoded(local, word_mask(lengths.to(local.device), local.shape[1]), self.pool_text)

    def _encoded(self, local: Tensor, mask: Tensor, pool: AttentionPool) -> Encoded:
        weights, pooled = pool(local, mask)
        return Encoded(
            local=local.new_empty(*mask.shape, 0), mask=mask, glob=unit(pooled), cached={"weight": weights}
        )

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.glob @ texts.glob.mT

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.glob * texts.glob).sum(dim=-1)

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        return {"region_weight": images.cached["weight"], "word_weight": texts.cached["weight"]}

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return 1
