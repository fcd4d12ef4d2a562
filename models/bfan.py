"""BFAN: SCAN's attention both ways, narrowed to what each query finds relevant, and summed.

Liu et al., "Focus Your Attention: A Bidirectional Focal Attention Network for Image-Text Matching", ACM MM
2019.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InputError
from .cross_attention import FOCI, attended_cosines, attention, focal, pool_queries
from .encoded import Encoded
from .scan import UnitFeatures


class Bfan(UnitFeatures):
    """focus="equal" compares a weight with the mean of all, "prob" with their mean weighted by √weight."""

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        focus: str = "prob",
        smoothing: float = 20.0,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, region_dim=region_dim, word_dim=word_dim, dim=dim, vectors=vectors
        )
        if focus not in FOCI:
            raise InputError(f"focus={focus!r}, expected one of {', '.join(FOCI)}")
        self.focus, self.smoothing = focus, smoothing

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        (nI, R), (nT, N) = images.mask.shape, texts.mask.shape
        dots = (images.local.flatten(0, 1) @ texts.local.flatten(0, 1).mT).view(nI, R, nT, N)
        by_words = dots.permute(0, 2, 3, 1).reshape(nI, nT * N, R)
        by_regions = dots.permute(2, 0, 1, 3).reshape(nT, nI * R, N)
        t2i = self._score(by_words, texts.mask.unsqueeze(0), images)  # (nI, nT)
        return t2i + self._score(by_regions, images.mask.unsqueeze(0), texts).T

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        dots = torch.bmm(texts.local, images.local.mT)  # (n, N, R)
        t2i = self._score(dots, texts.mask.unsqueeze(1), images)
        i2t = self._score(dots.mT.contiguous(), images.mask.unsqueeze(1), texts)
        return (t2i + i2t).squeeze(1)

    def _score(self, dots: Tensor, query_mask: Tensor, contexts: Encoded) -> Tensor:
        weights = self._weights(dots, query_mask, contexts)
        return pool_queries(attended_cosines(dots, weights, contexts.grams["plain"]), query_mask, None)

    def _weights(self, dots: Tensor, query_mask: Tensor, contexts: Encoded) -> Tensor:
        return focal(attention(dots, query_mask, contexts.mask, self.smoothing), contexts.mask, self.focus)

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        dots = torch.bmm(texts.local, images.local.mT)
        return {
            "region_attention": self._weights(dots, texts.mask.unsqueeze(1), images),
            "word_attention": self._weights(dots.mT.contiguous(), images.mask.unsqueeze(1), texts),
        }
