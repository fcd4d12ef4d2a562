"""VSE++: the mean region and the caption's last state as unit vectors, compared by their dot product.

Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives", BMVC 2018, on region
features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import masked_mean
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, last_state, unit
from .matcher import Matcher


class Vsepp(Matcher):
    """One vector each: the score of a whole gallery is one product of matrices."""

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
        self.text = WordEncoder(
            vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors, bidirectional=False
        )

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        mask = (
            torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device) if mask is None else mask
        )
        glob = unit(self.image(masked_mean(regions.to(self.image.fc.weight.dtype), mask)))
        return Encoded(local=glob.new_empty(*mask.shape, 0), mask=mask, glob=glob)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        hidden = self.text(ids, lengths)
        mask = word_mask(lengths.to(hidden.device), hidden.shape[1])
        glob = unit(last_state(hidden, lengths))
        return Encoded(local=hidden.new_empty(*mask.shape, 0), mask=mask, glob=glob)

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.glob @ texts.glob.mT

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.glob * texts.glob).sum(dim=-1)

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return 1
