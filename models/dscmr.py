"""DSCMR: both modalities into one space whose points are told apart by shared labels.

Zhen et al., "Deep Supervised Cross-modal Retrieval", CVPR 2019: the baseline of label-wise sharing. Here an
image is the mean of its regions and a caption the mean of its word vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError, MismatchError
from ..schema import Batch
from .attention import masked_mean
from .encoded import Encoded, word_mask
from .encoders import WordEmbedding, unit
from .matcher import Matcher


def batch_labels(batch: Batch, labels: int) -> Tensor:
    """(I, L) of a batch, or what to do where it has none."""
    if batch.labels is None:
        raise InputError(
            "the data set has no labels, which this model learns from; import it with --instances FILE, or "
            "from a table with a column of labels"
        )
    if batch.labels.shape[1] != labels:
        raise MismatchError(f"{batch.labels.shape[1]} labels in the batch, the model has {labels}")
    return batch.labels


class TextVector(nn.Module):
    """Word ids (n, N) -> the mean of their vectors through linear + ReLU (n, hidden)."""

    def __init__(self, *, vocab_size: int, word_dim: int, hidden: int, vectors: Tensor | None) -> None:
        super().__init__()
        self.embed = WordEmbedding(vocab_size=vocab_size, word_dim=word_dim, vectors=vectors)
        self.fc = nn.Linear(self.embed.out_dim, hidden)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        mapped: Tensor = self.fc(masked_mean(self.embed(ids), mask))
        return mapped.relu()


class Dscmr(Matcher):
    """similarity_weight and pair_weight are λ and η of the paper."""

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        labels: int = 80,
        hidden: int = 2048,
        similarity_weight: float = 1e-3,
        pair_weight: float = 0.1,
    ) -> None:
        super().__init__()
        self.labels, self.similarity_weight, self.pair_weight = labels, similarity_weight, pair_weight
        self.image = nn.Linear(region_dim, hidden)
        self.text = TextVector(vocab_size=vocab_size, word_dim=word_dim, hidden=hidden, vectors=vectors)
        self.shared = nn.ModuleDict({"space": nn.Linear(hidden, dim), "classes": nn.Linear(dim, labels)})

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        mask = (
            torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device) if mask is None else mask
        )
        mean = masked_mean(regions.to(self.image.weight.dtype), mask)
        return self._encoded(self.image(mean).relu(), mask)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        mask = word_mask(lengths.to(ids.device), int(lengths.max()))
        return self._encoded(self.text(ids[:, : mask.shape[1]], mask), mask)

    def _encoded(self, mapped: Tensor, mask: Tensor) -> Encoded:
        point = self.shared["space"](mapped)  # (n, d)
        return Encoded(
            local=point.new_empty(*mask.shape, 0),
            mask=mask,
            glob=unit(point),
            pooled={"point": point, "labels": self.shared["classes"](point)},
        )

    def predict_labels(self, encoded: Encoded) -> Tensor:
        return encoded.pooled["labels"]

    def aux_losses(self, batch: Batch, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        if not self.training:
            return {}
        y = batch_labels(batch, self.labels).to(images.glob.dtype)[batch.caption_image]  # (C, L)
        rows = batch.caption_image
        u, v = images.pooled["point"][rows], texts.pooled["point"]  # (C, d)
        guesses = images.pooled["labels"][rows], texts.pooled["labels"]
        classes = sum((guess - y).norm(dim=1).mean() for guess in guesses)
        same = (y @ y.mT > 0).to(u.dtype)  # (C, C) share a label
        uu, vv = unit(u), unit(v)
        similarity = torch.zeros((), dtype=u.dtype, device=u.device)
        for a, b in ((uu, uu), (uu, vv), (vv, vv)):
            theta = a @ b.mT / 2
            similarity = similarity + (F.softplus(theta) - same * theta).mean()
        pairs = (u - v).norm(dim=1).mean()
        return {
            "classes": torch.as_tensor(classes),
            "similarity": self.similarity_weight * similarity,
            "pairs": self.pair_weight * pairs,
        }

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.glob @ texts.glob.mT

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.glob * texts.glob).sum(dim=-1)

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return 1
