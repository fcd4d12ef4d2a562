"""ADAPT: one modality's mean filters the other's local features by channel, and a fovea sharpens them.

Wehrmann et al., "Adaptive Cross-Modal Embeddings for Image-Text Alignment", AAAI 2020; equations at the line.

With a = 1 + γ(c), the shift β cancels inside the softmax over regions, so the adapted vector is a⊙f + β with
f = Σ softmax(λ a⊙V)_r ⊙ V_r, and neither V̄ nor the mask is formed. Scoring a block without gradient walks
over the regions with running sums (base 2, the largest exponent known beforehand), all of it in the cache:
one exponential per region and channel is what remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import e, log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from .attention import masked_mean
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, unit
from .matcher import Matcher
from .normalisation import LocalNorm

DIRECTIONS = ("t2i", "i2t")
SCALES = ("one_plus", "plain")
POOLINGS = ("mean", "max")


class AdaptImage(nn.Module):
    """Region features (n, R, D) -> unit features (n, R, d)."""

    def __init__(self, *, region_dim: int, dim: int, norm: str) -> None:
        super().__init__()
        self.regions = RegionEncoder(region_dim=region_dim, dim=dim)
        self.norm = LocalNorm(norm, dim)

    def forward(self, regions: Tensor) -> Tensor:
        return unit(F.leaky_relu(self.regions(regions), 0.1))


class AdaptText(nn.Module):
    """Word ids (n, N), lengths (n,) -> unit features (n, max length, d)."""

    def __init__(
        self, *, vocab_size: int, word_dim: int, dim: int, vectors: Tensor | None, embedding: str, norm: str
    ) -> None:
        super().__init__()
        self.words = WordEncoder(
            vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors, embedding=embedding
        )
        self.norm = LocalNorm(norm, dim)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return unit(self.words(ids, lengths))


class Adapt(Matcher):
    """direction="t2i": the caption adapts the regions; "i2t": the image adapts the words.

    scale="one_plus"   V⊙(1 + γ) + β as the authors' code has it; "plain" is the paper's V⊙γ + β
    pooling="mean"     as the paper says; the code takes the "max" for i2t, which is the default there
    fovea=False        no softmax: the adapted features are pooled as they are
    learn_smoothing    λ is a parameter that starts at `smoothing`
    norm               of the adapted features: batch, instance, l2 or none
    embedding          WordEmbedding's uses; "both" where there are vectors, else "trained"
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        embedding: str | None = None,
        direction: str = "t2i",
        smoothing: float = 10.0,
        learn_smoothing: bool = False,
        fovea: bool = True,
        scale: str = "one_plus",
        pooling: str | None = None,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        pooling = pooling or ("mean" if direction == "t2i" else "max")
        choices = {
            "direction": (direction, DIRECTIONS),
            "scale": (scale, SCALES),
            "pooling": (pooling, POOLINGS),
        }
        for name, (found, expected) in choices.items():
            if found not in expected:
                raise InputError(f"{name}={found!r}, expected one of {', '.join(expected)}")
        self.dim, self.direction, self.fovea, self.scale, self.pooling = dim, direction, fovea, scale, pooling
        adapted = direction == "t2i"
        self.image = AdaptImage(region_dim=region_dim, dim=dim, norm=norm if adapted else "none")
        self.text = AdaptText(
            vocab_size=vocab_size,
            word_dim=word_dim,
            dim=dim,
            vectors=vectors,
            embedding=embedding or ("trained" if vectors is None else "both"),
            norm="none" if adapted else norm,
        )
        self.gamma = nn.Linear(dim, dim)
        self.beta = nn.Linear(dim, dim)
        start = torch.tensor(float(smoothing))
        if learn_smoothing and fovea:
            self.smoothing: Tensor = nn.Parameter(start)
        else:
            self.register_buffer("smoothing", start)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        local = self.image(regions)  # (n, R, d)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        if self.direction == "t2i":
            return self._adapted(self.image.norm(local, mask), mask)
        return self._adapting(local, mask)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        local = self.text(ids, lengths)  # (n, N, d)
        mask = word_mask(lengths.to(local.device), local.shape[1])
        if self.direction == "i2t":
            return self._adapted(self.text.norm(local, mask), mask)
        return self._adapting(local, mask)

    def _adapting(self, local: Tensor, mask: Tensor) -> Encoded:
        """Its mean as a unit vector, and the scale and shift that it asks for, Eq. 2."""
        mean = masked_mean(local, mask)  # (n, d)
        scale = self.gamma(mean) + 1 if self.scale == "one_plus" else self.gamma(mean)
        pooled = {"scale": scale, "shift": self.beta(mean)}
        return Encoded(local=local.new_empty(*mask.shape, 0), mask=mask, glob=unit(mean), pooled=pooled)

    def _adapted(self, local: Tensor, mask: Tensor) -> Encoded:
        """Local features, and per channel the extremes and the mean of the real ones."""
        absent = ~mask.unsqueeze(-1)
        # max over an axis, not amax, which would share a tie's gradient.
        pooled = {
            "highest": local.masked_fill(absent, float("-inf")).max(dim=1).values,
            "lowest": local.masked_fill(absent, float("inf")).min(dim=1).values,
            "mean": masked_mean(local, mask),
        }
        return Encoded(local=local, mask=mask, glob=local.new_empty(len(local), 0), pooled=pooled)

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        adapted, adapting = (images, texts) if self.direction == "t2i" else (texts, images)
        scale, shift = (adapting.pooled[name].unsqueeze(1) for name in ("scale", "shift"))  # (m, 1, d)
        if not self.fovea:
            vectors = self._without_fovea(scale, shift, adapted)
        elif torch.is_grad_enabled():
            local, mask = adapted.local.unsqueeze(0), adapted.mask.unsqueeze(0)
            vectors = self._with_fovea(scale.unsqueeze(2), shift.unsqueeze(2), local, mask)
        else:
            vectors = self._walk(scale, shift, adapted)
        scores = (unit(vectors) * adapting.glob.unsqueeze(1)).sum(dim=-1)  # (m, n)
        return scores.T if self.direction == "t2i" else scores

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        adapted, adapting = (images, texts) if self.direction == "t2i" else (texts, images)
        scale, shift = adapting.pooled["scale"], adapting.pooled["shift"]  # (n, d)
        if self.fovea:
            vectors = self._with_fovea(scale.unsqueeze(1), shift.unsqueeze(1), adapted.local, adapted.mask)
        else:
            vectors = self._without_fovea(scale, shift, adapted)
        return (unit(vectors) * adapting.glob).sum(dim=-1)

    def _masks(self, scale: Tensor, local: Tensor, mask: Tensor) -> Tensor:
        """Eq. 4 with λ inside, as in Eq. 7: a softmax over the regions for every channel."""
        logits = self.smoothing * scale * local
        return logits.masked_fill(~mask.unsqueeze(-1), torch.finfo(logits.dtype).min).softmax(dim=-2)

    def _with_fovea(self, scale: Tensor, shift: Tensor, local: Tensor, mask: Tensor) -> Tensor:
        """Scale and shift (…, 1, d), local (…, L, d) -> adapted vectors (…, d), Eq. 6–7 or 8–9."""
        masks = self._masks(scale, local, mask)
        if self.pooling == "mean":
            return scale.squeeze(-2) * (masks * local).sum(dim=-2) + shift.squeeze(-2)
        values = masks * (scale * local + shift)
        return values.masked_fill(~mask.unsqueeze(-1), float("-inf")).max(dim=-2).values

    def _without_fovea(self, scale: Tensor, shift: Tensor, adapted: Encoded) -> Tensor:
        if self.pooling == "mean":
            return scale * adapted.pooled["mean"] + shift
        return torch.maximum(scale * adapted.pooled["highest"], scale * adapted.pooled["lowest"]) + shift

    def _walk(self, scale: Tensor, shift: Tensor, adapted: Encoded) -> Tensor:
        """_with_fovea for a block: scale and shift (m, 1, d), n adapted items -> (m, n, d)."""
        base2 = scale * (self.smoothing * log2(e))
        largest = torch.maximum(base2 * adapted.pooled["highest"], base2 * adapted.pooled["lowest"])
        offset = largest.neg_()  # (m, n, d)
        total = torch.zeros_like(offset)
        found = torch.zeros_like(offset) if self.pooling == "mean" else torch.full_like(offset, float("-inf"))
        weight, value = torch.empty_like(offset), torch.empty_like(offset)
        all_real = bool(adapted.mask.all())
        for local, real in zip(adapted.local.unbind(1), adapted.mask.unbind(1), strict=True):  # (n, d), (n,)
            torch.addcmul(offset, base2, local, out=weight).exp2_()
            if not all_real:
                weight.mul_(real.unsqueeze(-1))
            total.add_(weight)
            if self.pooling == "mean":
                found.addcmul_(weight, local)
                continue
            torch.addcmul(shift, scale, local, out=value).mul_(weight)
            if not all_real:
                value.masked_fill_(~real.unsqueeze(-1), float("-inf"))
            torch.maximum(found, value, out=found)
        found.div_(total)
        return found.mul_(scale).add_(shift) if self.pooling == "mean" else found

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        """The fovea: the norm of each region's (or word's) mask over the channels, by the largest."""
        if not self.fovea:
            return {}
        adapted, adapting = (images, texts) if self.direction == "t2i" else (texts, images)
        masks = self._masks(adapting.pooled["scale"].unsqueeze(1), adapted.local, adapted.mask)
        norms = masks.norm(dim=-1)  # (n, L)
        name = "region_fovea" if self.direction == "t2i" else "word_fovea"
        return {name: norms / norms.amax(dim=-1, keepdim=True)}

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        local = regions if self.direction == "t2i" else words
        return (5 * local if gradient else 10) * self.dim
