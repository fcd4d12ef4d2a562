"""VSRN: regions reason over one another, a GRU remembers them, and the memory must also write the caption.

Li et al., "Visual Semantic Reasoning for Image-Text Matching", ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from ..schema import Batch
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, last_state, unit
from .matcher import Matcher
from .normalisation import MaskedBatchNorm

CAPTIONER_DROPOUT = 0.2


class RegionReasoning(nn.Module):
    """One step over the region graph: X + BN(W[(θ(X) φ(X)ᵀ / R) g(X)]), a residual that starts at 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = MaskedBatchNorm(dim, affine=True)
        nn.init.zeros_(self.norm.norm.weight)
        nn.init.zeros_(self.norm.norm.bias)

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(dim=1).clamp_min(1).view(-1, 1, 1)
        affinity = torch.bmm(self.theta(X), self.phi(X).mT) / count  # (n, R, R), no softmax
        read = torch.bmm(affinity * mask.unsqueeze(1), self.g(X))
        reasoned: Tensor = self.norm(self.out(read), mask)
        return X + reasoned


class VsrnImage(nn.Module):
    """Region features (n, R, D) -> reasoned regions (n, R, d) and the image's vector (n, d)."""

    def __init__(self, *, region_dim: int, dim: int, steps: int, final_norm: bool, compat: bool) -> None:
        super().__init__()
        self.compat = compat
        self.regions = RegionEncoder(region_dim=region_dim, dim=dim)
        self.reasoning = nn.ModuleList(RegionReasoning(dim) for _ in range(steps))
        self.memory = nn.GRU(dim, dim, batch_first=True)
        self.final_norm = nn.BatchNorm1d(dim) if final_norm else None

    def forward(self, regions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        X = self.regions(regions)
        if self.compat:
            X = _unit_channels(X, mask)
        for step in self.reasoning:
            X = step(X, mask)
        X = _unit_channels(X, mask) if self.compat else unit(X)
        counts = mask.sum(dim=1).clamp_min(1).cpu()
        # In detector order: the best region first, the last state after the last real one.
        packed = pack_padded_sequence(X, counts, batch_first=True, enforce_sorted=False)
        vector = self.memory(packed)[1].squeeze(0)
        return X, unit(vector if self.final_norm is None else self.final_norm(vector))


def _unit_channels(X: Tensor, mask: Tensor) -> Tensor:
    """Every channel of length 1 over the regions: the axis that the published code normalises."""
    return F.normalize(X * mask.unsqueeze(-1), dim=1)


class Captioner(nn.Module):
    """Reasoned regions (n, R, d), their mask and captions -> mean negative log-likelihood of a caption."""

    def __init__(self, *, vocab_size: int, word_dim: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(CAPTIONER_DROPOUT)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.attend_regions = nn.Linear(hidden, hidden)
        self.attend_state = nn.Linear(hidden, hidden, bias=False)
        self.attend = nn.Linear(hidden, 1, bias=False)
        self.writer = nn.GRUCell(hidden + word_dim, hidden)
        self.out = nn.Linear(hidden, vocab_size)

    def forward(self, regions: Tensor, mask: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """One row of regions per caption; each word is written from the true ones before it."""
        counts = mask.sum(dim=1).clamp_min(1)
        read, _ = self.reader(self.dropout(self.reduce(regions)))  # (n, R, hidden), padding last
        state = last_state(read, counts)
        keys = self.attend_regions(read)
        words = self.dropout(self.embed(tokens))
        real = word_mask(lengths.to(tokens.device), tokens.shape[1])
        states = []
        for position in range(int(lengths.max()) - 1):
            energy = self.attend(torch.tanh(keys + self.attend_state(state).unsqueeze(1))).squeeze(-1)
            weights = energy.masked_fill(~mask, torch.finfo(energy.dtype).min).softmax(dim=-1)
            context = torch.bmm(weights.unsqueeze(1), read).squeeze(1)
            state = self.writer(torch.cat([context, words[:, position]], dim=-1), state)
            states.append(state)
        if not states:
            return state.sum() * 0  # captions of one word have no next one
        written = torch.stack(states, dim=1)[real[:, 1 : len(states) + 1]]  # (words, hidden)
        targets = tokens[:, 1 : len(states) + 1][real[:, 1 : len(states) + 1]]
        return F.cross_entropy(self.out(written), targets, reduction="sum") / len(tokens)


class Vsrn(Matcher):
    """final_norm: batch norm on the image's vector (Flickr30K). compat: L2 over regions, as published."""

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 2048,
        vectors: Tensor | None = None,
        steps: int = 4,
        final_norm: bool = False,
        caption_weight: float = 1.0,
        captioner_dim: int = 512,
        compat: bool = False,
    ) -> None:
        super().__init__()
        self.caption_weight = caption_weight
        self.image = VsrnImage(
            region_dim=region_dim, dim=dim, steps=steps, final_norm=final_norm, compat=compat
        )
        self.text = WordEncoder(
            vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors, bidirectional=False
        )
        if caption_weight:
            self.aux = Captioner(vocab_size=vocab_size, word_dim=word_dim, dim=dim, hidden=captioner_dim)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        mask = (
            torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device) if mask is None else mask
        )
        local, glob = self.image(regions, mask)
        # Only the captioner reads the regions, and it runs in training.
        kept = local if self.training and self.caption_weight else local.new_empty(*mask.shape, 0)
        return Encoded(local=kept, mask=mask, glob=glob)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        hidden = self.text(ids, lengths)
        mask = word_mask(lengths.to(hidden.device), hidden.shape[1])
        glob = unit(last_state(hidden, lengths))
        return Encoded(local=hidden.new_empty(*mask.shape, 0), mask=mask, glob=glob)

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.glob @ texts.glob.mT

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.glob * texts.glob).sum(dim=-1)

    def aux_losses(self, batch: Batch, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        if not (self.training and self.caption_weight):
            return {}
        own = slice(0, batch.anchors)
        rows = batch.caption_image[own]
        value = self.aux(images.local[rows], images.mask[rows], batch.tokens[own], batch.lengths[own])
        return {"caption": self.caption_weight * value}

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return 1
