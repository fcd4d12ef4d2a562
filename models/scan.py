"""SCAN: every word attends to the regions (t2i) or every region to the words (i2t); the cosines are pooled.

Lee et al., "Stacked Cross Attention for Image-Text Matching", ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InputError
from .cross_attention import attended_cosines, attention, block_dots, pool_queries
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, unit
from .matcher import Matcher

DIRECTIONS = ("t2i", "i2t")
POOLINGS = ("avg", "lse")


class UnitFeatures(Matcher):
    """Unit region and word features with their Gram matrices: what SCAN and BFAN score."""

    def __init__(
        self, *, vocab_size: int, region_dim: int, word_dim: int, dim: int, vectors: Tensor | None
    ) -> None:
        super().__init__()
        self.image = RegionEncoder(region_dim=region_dim, dim=dim)
        self.text = WordEncoder(vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        local = unit(self.image(regions))  # (n, R, d)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        return _with_gram(local, mask)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        local = unit(self.text(ids, lengths))  # (n, N, d)
        return _with_gram(local, word_mask(lengths.to(local.device), local.shape[1]))

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return (16 if gradient else 8) * regions * words


def _with_gram(local: Tensor, mask: Tensor) -> Encoded:
    grams = {"plain": torch.bmm(local, local.mT)}
    return Encoded(local=local, mask=mask, glob=local.new_empty(len(local), 0), grams=grams)


class Scan(UnitFeatures):
    """direction="t2i": words are the queries, smoothing 9; "i2t": regions are, smoothing 4.

    pooling="lse" sharpens with `lse` (6 for t2i; 5 on Flickr30K and 20 on COCO for i2t).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        direction: str = "t2i",
        pooling: str = "avg",
        smoothing: float | None = None,
        lse: float | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, region_dim=region_dim, word_dim=word_dim, dim=dim, vectors=vectors
        )
        if direction not in DIRECTIONS:
            raise InputError(f"direction={direction!r}, expected one of {', '.join(DIRECTIONS)}")
        if pooling not in POOLINGS:
            raise InputError(f"pooling={pooling!r}, expected one of {', '.join(POOLINGS)}")
        self.direction = direction
        self.smoothing = smoothing if smoothing is not None else {"t2i": 9.0, "i2t": 4.0}[direction]
        sharpness = lse if lse is not None else {"t2i": 6.0, "i2t": 5.0}[direction]
        self.lse = sharpness if pooling == "lse" else None

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        contexts, queries = (images, texts) if self.direction == "t2i" else (texts, images)
        dots = block_dots(contexts.local, queries.local)  # (contexts, queries·Lq, Lc)
        scores = self._score(dots, queries.mask.unsqueeze(0), contexts)  # (contexts, queries)
        return scores if self.direction == "t2i" else scores.T

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        contexts, queries = (images, texts) if self.direction == "t2i" else (texts, images)
        dots = torch.bmm(queries.local, contexts.local.mT)  # (n, Lq, Lc)
        return self._score(dots, queries.mask.unsqueeze(1), contexts).squeeze(1)

    def _score(self, dots: Tensor, query_mask: Tensor, contexts: Encoded) -> Tensor:
        weights = attention(dots, query_mask, contexts.mask, self.smoothing)
        return pool_queries(attended_cosines(dots, weights, contexts.grams["plain"]), query_mask, self.lse)

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        contexts, queries = (images, texts) if self.direction == "t2i" else (texts, images)
        dots = torch.bmm(queries.local, contexts.local.mT)
        weights = attention(dots, queries.mask.unsqueeze(1), contexts.mask, self.smoothing).clone()
        return {"region_attention" if self.direction == "t2i" else "word_attention": weights}
