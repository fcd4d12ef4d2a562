"""CAMP as its authors' released weights compute it (`gate_fusion_new`), in a cheaper but equal form.

It differs from the paper: queries and keys of their own, a second attention among the messages, one scalar
gate per region or word, concatenation, a pooling of four heads.

Messages are averages of the other modality's features, and so are averages of messages; only their
coefficients C (R×N) depend on the pair. So nothing d wide that is linear in them is computed per pair:
second-stage affinities  (A T)WqᵀWk(A T)ᵀ = A (T WqᵀWk Tᵀ) Aᵀ     an N×N matrix per caption
their length             ‖C T‖² = C (T Tᵀ) Cᵀ                      the Gram matrix of a caption
fusion, scalar gate g    W[g v; g m] = g (W₁ v + C (W₂ T))         projections of each modality
One d×d product per region and word remains, in the pooling. The published form has five.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import masked_softmax
from .encoded import Encoded, word_mask
from .encoders import NORM_EPSILON, RegionEncoder, WordEncoder
from .matcher import Matcher
from .relu_layer import perceptron
from .scratch import may_overwrite, row_chunks, scratch

HEADS = 4


class OfficialSide(nn.Module):
    """What one modality does: it receives messages (query, fuse, pool) and sends them (key, second stage)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.message_query = nn.Linear(dim, dim, bias=False)
        self.message_key = nn.Linear(dim, dim, bias=False)
        self.fuse = nn.Linear(2 * dim, dim, bias=False)
        self.pool = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, HEADS))
        for layer in (self.key, self.fuse):
            init_uniform(layer, dim)

    def encoded(self, local: Tensor, mask: Tensor, *, receiver: OfficialSide) -> Encoded:
        """Local features (n, L, d) -> what the scores need of them."""
        return Encoded(
            local=local,
            mask=mask,
            glob=local.new_empty(len(local), 0),
            cached={
                "query": self.query(local),
                "key": self.key(local),
                "fused_own": F.linear(local, self.fuse.weight[:, : self.dim]),  # W₁ v
                "fused_other": F.linear(local, receiver.fuse.weight[:, self.dim :]),  # W₂ t
            },
            grams={
                "plain": torch.bmm(local, local.mT),
                "messages": torch.bmm(self.message_query(local), self.message_key(local).mT) / sqrt(self.dim),
            },
        )

    def coefficients(self, attention: Tensor, own_mask: Tensor, context: Encoded) -> Tensor:
        """First-stage weights (g, m, L') -> C (g, m, L'): which averages of the context the messages are once
        they attended to one another. Own mask: (1 or g, items, L)."""
        groups, _, length = attention.shape
        items = own_mask.shape[1]
        rows = attention.view(groups * items, -1, length)  # one item's rows attend to one another only
        asked = torch.bmm(attention, context.grams["messages"]).view_as(rows)
        affinity = torch.bmm(asked, rows.mT)  # (g·items, L, L)
        keep = own_mask.expand(groups, -1, -1).reshape(groups * items, 1, -1)
        return torch.bmm(masked_softmax(affinity, keep), rows).view_as(attention)

    def fused_rows(
        self, own: Encoded, dots: Tensor, coefficients: Tensor, context: Encoded, *, block: bool
    ) -> Tensor:
        """Own features ⊕ gated messages, with the residual: (g, m, d), without gradient until the next call.

        dots = own·context, (g, m, L').
        """
        scaled, gate = self.unit_messages(dots, coefficients, context)
        projected, local = _rows(own.cached["fused_own"], block), _rows(own.local, block)
        other = context.cached["fused_other"]
        if not may_overwrite(local):
            fused = torch.baddbmm(projected, scaled, other).relu_()
            return fused * gate.unsqueeze(-1) + local  # g > 0, so ReLU(g·x) = g·ReLU(x)
        gate = gate.unsqueeze(-1)
        fused = scratch("fused", (*scaled.shape[:2], self.dim), like=local)
        # ReLU(g·x) + v = max(g·x + v, v): three walks over the rows instead of five.
        torch.addcmul(local, projected, gate, out=fused).baddbmm_(scaled * gate, other)
        return torch.maximum(fused, local, out=fused)

    def unit_messages(self, dots: Tensor, coefficients: Tensor, context: Encoded) -> tuple[Tensor, Tensor]:
        """Coefficients of messages of length 1, and the scalar gates σ(v·message): (g, m, L'), (g, m)."""
        squared = (torch.bmm(coefficients, context.grams["plain"]) * coefficients).sum(dim=-1)
        length = squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt() + NORM_EPSILON
        scaled = coefficients / length.unsqueeze(-1)
        return scaled, (scaled * dots).sum(dim=-1).sigmoid()

    def weights(self, fused: Tensor, own_mask: Tensor) -> Tensor:
        """Fused rows (g, items, L, d), mask (1 or g, items, L) -> mean share over the heads (g, items, L)."""
        heads = perceptron(self.pool, fused).mT  # (g, items, heads, L)
        return masked_softmax(heads, own_mask.unsqueeze(-2)).mean(dim=-2)

    def forward(
        self, own: Encoded, attention: Tensor, dots: Tensor, context: Encoded, *, block: bool
    ) -> Tensor:
        """own (n, L), context (g, L'), attention and dots (g, m, L') -> unit vectors (g, items, d)."""
        if torch.is_grad_enabled():
            return self.pooled(own, attention, dots, context, block=block)
        # Some groups at a time, so that their rows stay in the cache from step to step.
        parts = [
            self.pooled(
                own if block else own.index(some),
                attention[some],
                dots[some],
                context.index(some),
                block=block,
            )
            for some in row_chunks(attention)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pooled(
        self, own: Encoded, attention: Tensor, dots: Tensor, context: Encoded, *, block: bool
    ) -> Tensor:
        """The same at once."""
        mask = own.mask.unsqueeze(0) if block else own.mask.unsqueeze(1)
        coefficients = self.coefficients(attention, mask, context)
        fused = self.fused_rows(own, dots, coefficients, context, block=block)
        length = own.mask.shape[1]
        fused = fused.view(len(fused), -1, length, self.dim)  # (g, items, L, d)
        weights = self.weights(fused, mask).reshape(-1, 1, length)
        pooled = torch.bmm(weights, fused.view(-1, length, self.dim)).view(len(fused), -1, self.dim)
        return pooled / (pooled.norm(dim=-1, keepdim=True) + NORM_EPSILON)


def init_uniform(layer: nn.Linear, dim: int) -> None:
    bound = sqrt(6 / (2 * dim))
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _rows(tensor: Tensor, block: bool) -> Tensor:
    """(n, L, …) -> (1, n·L, …) where every group sees all n items."""
    return tensor.reshape(1, -1, *tensor.shape[2:]) if block else tensor


class CampOfficial(Matcher):
    """The released architecture. camp_checkpoint.py says which of its tensors is which of theirs."""

    scores_are_logits = True

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
        self.dim = dim
        self.image = RegionEncoder(region_dim=region_dim, dim=dim)
        self.text = WordEncoder(vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors)
        self.side_image = OfficialSide(dim)
        self.side_text = OfficialSide(dim)
        hidden, out = nn.Linear(2 * dim, dim), nn.Linear(dim, 1)
        for layer in (hidden, out):
            init_uniform(layer, dim)
        self.match = nn.Sequential(hidden, nn.ReLU(inplace=True), out)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        local = self.image(regions)  # (n, R, d)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        return self.side_image.encoded(local, mask, receiver=self.side_text)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        local = self.text(ids, lengths)  # (n, N, d)
        mask = word_mask(lengths.to(local.device), local.shape[1])
        return self.side_text.encoded(local, mask, receiver=self.side_image)

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        (nI, R), (nT, N) = images.mask.shape, texts.mask.shape

        def products(a: Tensor, b: Tensor) -> Tensor:
            return (a.flatten(0, 1) @ b.flatten(0, 1).mT).view(nI, R, nT, N)

        dots = products(images.local, texts.local)
        words = products(images.cached["query"], texts.cached["key"]) / sqrt(self.dim)
        regions = products(images.cached["key"], texts.cached["query"]) / sqrt(self.dim)
        to_regions = masked_softmax(words.permute(2, 0, 1, 3), texts.mask.view(nT, 1, 1, N))
        to_words = masked_softmax(regions.permute(0, 2, 3, 1), images.mask.view(nI, 1, 1, R))
        v = self.side_image(
            images,
            to_regions.reshape(nT, nI * R, N),
            dots.permute(2, 0, 1, 3).reshape(nT, nI * R, N),
            texts,
            block=True,
        )  # (nT, nI, d)
        t = self.side_text(
            texts,
            to_words.reshape(nI, nT * N, R),
            dots.permute(0, 2, 3, 1).reshape(nI, nT * N, R),
            images,
            block=True,
        )  # (nI, nT, d)
        return self._match(v.transpose(0, 1), t)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        to_words, to_regions = self._attend_pairs(images, texts)
        dots = torch.bmm(images.local, texts.local.mT)  # (n, R, N)
        v = self.side_image(images, to_regions, dots, texts, block=False)  # (n, 1, d)
        t = self.side_text(texts, to_words, dots.mT, images, block=False)  # (n, 1, d)
        return self._match(v, t).squeeze(1)

    def _match(self, v: Tensor, t: Tensor) -> Tensor:
        """Pooled vectors (…, d) -> logits (…)."""
        return perceptron(self.match, torch.cat([v, t], dim=-1)).squeeze(-1)

    def _attend_pairs(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Pairs -> first-stage weights over regions (n, N, R) and over words (n, R, N)."""
        regions = torch.bmm(texts.cached["query"], images.cached["key"].mT) / sqrt(self.dim)
        words = torch.bmm(images.cached["query"], texts.cached["key"].mT) / sqrt(self.dim)
        return (
            masked_softmax(regions, images.mask.unsqueeze(1)),
            masked_softmax(words, texts.mask.unsqueeze(1)),
        )

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        """First-stage attention, the scalar gates and the pooling weights of each pair."""
        to_words, to_regions = self._attend_pairs(images, texts)
        dots = torch.bmm(images.local, texts.local.mT)
        found = {"region_attention": to_words, "word_attention": to_regions}
        for name, side, own, attention, products, context in (
            ("region", self.side_image, images, to_regions, dots, texts),
            ("word", self.side_text, texts, to_words, dots.mT, images),
        ):
            mask = own.mask.unsqueeze(1)
            coefficients = side.coefficients(attention, mask, context)
            found[f"{name}_gate"] = side.unit_messages(products, coefficients, context)[1].unsqueeze(-1)
            fused = side.fused_rows(own, products, coefficients, context, block=False)
            found[f"{name}_weight"] = side.weights(fused.unsqueeze(1), mask).squeeze(1)
        return found

    def compile_scores(self) -> None:
        for side in (self.side_image, self.side_text):  # where nearly all the arithmetic is
            side.pooled = torch.compile(side.pooled, dynamic=True)  # type: ignore[method-assign]

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        if gradient:
            return 8 * (regions + words) * self.dim
        return 4 * self.dim + 10 * regions * words  # the fused rows are made a few groups at a time
