"""CAMP as its paper writes it: messages across modalities, gated fusion, pooling, an MLP that matches.

Wang et al., "CAMP: Cross-Modal Adaptive Message Passing for Text-Image Retrieval", ICCV 2019; equations are
cited at the line. The rows of its Table 3 that change the model are arguments of `CampPaper`.

Cost per pair: the vector gate is not linear, so one d×d product per region and word remains, (R + N)·d²
multiplications. The affinity projections, and without gates the whole fusion layer, are linear in one
modality: once per image or caption.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from .attention import masked_mean_weights, masked_softmax
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, unit
from .matcher import Matcher
from .relu_layer import perceptron, relu_layer
from .scratch import may_overwrite, row_chunks, scratch

MESSAGES = ("attention", "mean")
FUSIONS = ("sum", "concat", "product", "none")
AGGREGATIONS = ("attention", "mean")
MATCHINGS = ("mlp", "cosine")


class Fusion(nn.Module):
    """One modality's own features and the messages it received -> one fused vector per image or caption.

    Rows come as (g, m, d): g groups that share a context, m rows in each. Scoring pairs, a group is a pair;
    scoring a block, a group is one item of the other modality and its rows are those of every own item, so
    that one product makes the messages for all of them. `own` tensors with g = 1 serve every group.
    """

    def __init__(self, *, dim: int, fusion: str, gates: bool, residual: bool, aggregation: str) -> None:
        super().__init__()
        self.dim, self.fusion, self.gates, self.residual, self.aggregation = (
            dim,
            fusion,
            gates,
            residual,
            aggregation,
        )
        if fusion != "none":
            self.transform = nn.Linear(2 * dim if fusion == "concat" else dim, dim)
            nn.init.xavier_uniform_(self.transform.weight)
            nn.init.zeros_(self.transform.bias)
        if aggregation == "attention":
            self.pool = nn.Linear(dim, 1, bias=False)
            nn.init.xavier_uniform_(self.pool.weight)

    @property
    def linear(self) -> bool:
        """Whether the transform of own ⊕ message splits into a part of each."""
        return not self.gates and self.fusion in ("sum", "concat")

    def project_own(self, own: Tensor) -> Tensor:
        """W₁·own + b, where the transform splits."""
        return F.linear(own, self.transform.weight[:, : self.dim], self.transform.bias)

    def project_other(self, other: Tensor) -> Tensor:
        """W₂·other, where the transform splits: the messages are averages of these."""
        return F.linear(other, self.transform.weight[:, -self.dim :])

    def gate(self, own: Tensor, message: Tensor) -> Tensor:
        # In place on a fresh product: autograd keeps the factors and the sigmoid's result, not the product.
        return (own * message).sigmoid_()  # Eq. 5, 7

    def fuse(self, own: Tensor, message: Tensor) -> Tensor:
        """F(G ⊙ (own ⊕ message)) + own, Eq. 6 and 9."""
        gate = self.gate(own, message) if self.gates else None
        if self.fusion == "concat":
            assert gate is not None, "without gates the concatenation is linear"
            joined = torch.cat([own * gate, message * gate], dim=-1)
        else:
            joined = own + message if self.fusion == "sum" else own * message
            joined = joined if gate is None else joined * gate
        return self.add_own(relu_layer(self.transform, joined), own)

    def fuse_over(self, own: Tensor, message: Tensor) -> Tensor:
        """The same without gradient, in memory that is used again: `message` is overwritten."""
        assert self.fusion in ("sum", "product"), self.fusion
        gate = None
        if self.gates:
            gate = torch.mul(own, message, out=scratch("gate", message.shape, like=message)).sigmoid_()
        joined = message.add_(own) if self.fusion == "sum" else message.mul_(own)
        joined = joined if gate is None else joined.mul_(gate)
        return self.add_own(relu_layer(self.transform, joined), own)

    def add_own(self, fused: Tensor, own: Tensor) -> Tensor:
        if not self.residual:
            return fused
        return fused.add_(own) if may_overwrite(own) else fused + own

    def weights(self, fused: Tensor, mask: Tensor) -> Tensor:
        """Fused rows (g, items, L, d), mask (…, items, L) -> each row's share (g, items, L), Eq. 10–11."""
        if self.aggregation == "mean":
            return masked_mean_weights(mask, fused.dtype).expand(fused.shape[:-1])
        logits = fused @ self.pool.weight.squeeze(0) / sqrt(self.dim)
        return masked_softmax(logits, mask)

    def forward(self, own: Encoded, attention: Tensor, context: Encoded, *, block: bool) -> Tensor:
        """own (n, L), context (g, L'), attention (g, m, L') -> (g, items, d); items: n in a block, else 1."""
        if torch.is_grad_enabled():
            return self.pooled(own, attention, context, block=block)
        # Some groups at a time, so that their rows stay in the cache from step to step.
        parts = [
            self.pooled(own if block else own.index(some), attention[some], context.index(some), block=block)
            for some in row_chunks(attention)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pooled(self, own: Encoded, attention: Tensor, context: Encoded, *, block: bool) -> Tensor:
        """The same at once."""
        fused = self.fused_rows(own, attention, context, block=block)
        groups, length = fused.shape[0], own.mask.shape[1]
        fused = fused.view(groups, -1, length, self.dim)
        weights = self.weights(fused, own.mask if block else own.mask.unsqueeze(1))
        pooled = torch.bmm(weights.reshape(-1, 1, length), fused.view(-1, length, self.dim))
        return pooled.view(groups, -1, self.dim)

    def fused_rows(self, own: Encoded, attention: Tensor, context: Encoded, *, block: bool) -> Tensor:
        """The fused region or word features, (g, m, d); without gradient until the next call."""
        local = _rows(own.local, block)
        if self.fusion == "none":
            return torch.bmm(attention, context.local)  # supplementary 1.3: the messages alone
        if self.linear:
            projected = _rows(own.cached["fused_own"], block)
            fused = torch.baddbmm(projected, attention, context.cached["fused_other"]).relu_()
            return self.add_own(fused, local)
        if self.fusion == "concat" or not may_overwrite(local):
            return self.fuse(local, torch.bmm(attention, context.local))
        message = scratch("message", (*attention.shape[:2], self.dim), like=local)
        return self.fuse_over(local, torch.bmm(attention, context.local, out=message))


def _rows(tensor: Tensor, block: bool) -> Tensor:
    """(n, L, …) -> (1, n·L, …) where every group sees all n items."""
    return tensor.reshape(1, -1, *tensor.shape[2:]) if block else tensor


class CampPaper(Matcher):
    """The paper's CAMP and the ablations of its Table 3 (`TABLE_3` in build.py names the rows).

    messages="mean"        w/o cross-attn: the mean of the other modality is every message
    fusion="none"          w/o fusion: the messages are pooled and compared; needs matching="cosine"
    gates=False            fusion w/o gates
    residual=False         fusion w/o residual
    aggregation="mean"     w/o attention-based aggregation
    fusion="concat", "product"
    matching="cosine"      joint embedding
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        affinity_dim: int = 256,
        vectors: Tensor | None = None,
        messages: str = "attention",
        fusion: str = "sum",
        gates: bool = True,
        residual: bool = True,
        aggregation: str = "attention",
        matching: str = "mlp",
    ) -> None:
        super().__init__()
        _check(
            messages=(messages, MESSAGES), fusion=(fusion, FUSIONS), aggregation=(aggregation, AGGREGATIONS)
        )
        _check(matching=(matching, MATCHINGS))
        if fusion == "none" and matching != "cosine":
            raise InputError(
                f"fusion='none' with matching={matching!r}; pooled messages need matching='cosine'"
            )
        self.dim, self.affinity_dim, self.messages, self.matching = dim, affinity_dim, messages, matching
        self.scores_are_logits = matching == "mlp"
        self.image = RegionEncoder(region_dim=region_dim, dim=dim)
        self.text = WordEncoder(vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors)
        if messages == "attention":
            self.affinity_image = nn.Linear(dim, affinity_dim, bias=False)
            self.affinity_text = nn.Linear(dim, affinity_dim, bias=False)
            nn.init.xavier_uniform_(self.affinity_image.weight)
            nn.init.xavier_uniform_(self.affinity_text.weight)
        self.fusion_image = Fusion(
            dim=dim, fusion=fusion, gates=gates, residual=residual, aggregation=aggregation
        )
        self.fusion_text = Fusion(
            dim=dim, fusion=fusion, gates=gates, residual=residual, aggregation=aggregation
        )
        if matching == "mlp":
            hidden, out = nn.Linear(dim, dim), nn.Linear(dim, 1)
            for layer in (hidden, out):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            self.mlp = nn.Sequential(hidden, nn.ReLU(inplace=True), out)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        local = self.image(regions)  # (n, R, d)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        return self._encoded(
            local, mask, own=self.fusion_image, other=self.fusion_text, affinity="affinity_image"
        )

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        local = self.text(ids, lengths)  # (n, N, d)
        mask = word_mask(lengths.to(local.device), local.shape[1])
        return self._encoded(
            local, mask, own=self.fusion_text, other=self.fusion_image, affinity="affinity_text"
        )

    def _encoded(self, local: Tensor, mask: Tensor, *, own: Fusion, other: Fusion, affinity: str) -> Encoded:
        cached = {}
        if self.messages == "attention":
            cached["affinity"] = self.get_submodule(affinity)(local)  # (n, L, d_h)
        if own.linear:
            cached["fused_own"] = own.project_own(local)  # (n, L, d)
            cached["fused_other"] = other.project_other(local)  # (n, L, d)
        return Encoded(local=local, mask=mask, glob=local.new_empty(len(local), 0), cached=cached)

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        (nI, R), (nT, N) = images.mask.shape, texts.mask.shape
        if self.messages == "attention":
            q, k = images.cached["affinity"].flatten(0, 1), texts.cached["affinity"].flatten(0, 1)
            affinity = (q @ k.mT / sqrt(self.affinity_dim)).view(nI, R, nT, N)  # Eq. 1
            to_words = masked_softmax(affinity.permute(0, 2, 3, 1), images.mask.view(nI, 1, 1, R))  # Eq. 2
            to_regions = masked_softmax(affinity.permute(2, 0, 1, 3), texts.mask.view(nT, 1, 1, N))  # Eq. 4
        else:
            to_words = self._mean_messages(images, rows=nT * N)
            to_regions = self._mean_messages(texts, rows=nI * R)
        v = self.fusion_image(images, to_regions.reshape(nT, nI * R, N), texts, block=True)  # (nT, nI, d)
        t = self.fusion_text(texts, to_words.reshape(nI, nT * N, R), images, block=True)  # (nI, nT, d)
        return self._match(v.transpose(0, 1), t)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        to_words, to_regions = self._attend_pairs(images, texts)
        v = self.fusion_image(images, to_regions, texts, block=False)  # (n, 1, d)
        t = self.fusion_text(texts, to_words, images, block=False)  # (n, 1, d)
        return self._match(v, t).squeeze(1)

    def _attend_pairs(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Pairs -> Ãv (n, N, R), Ãt (n, R, N)."""
        if self.messages == "mean":  # supplementary, Eq. 3
            words, regions = texts.mask.shape[1], images.mask.shape[1]
            return self._mean_messages(images, rows=words), self._mean_messages(texts, rows=regions)
        affinity = torch.bmm(images.cached["affinity"], texts.cached["affinity"].mT) / sqrt(self.affinity_dim)
        to_words = masked_softmax(affinity.mT, images.mask.unsqueeze(1))  # Eq. 2
        return to_words, masked_softmax(affinity, texts.mask.unsqueeze(1))  # Eq. 4

    def _mean_messages(self, context: Encoded, *, rows: int) -> Tensor:
        weights = masked_mean_weights(context.mask, context.local.dtype)  # (g, L)
        return weights.unsqueeze(1).expand(-1, rows, -1)  # (g, rows, L)

    def _match(self, v: Tensor, t: Tensor) -> Tensor:
        """Pooled vectors (…, d) -> logits (Eq. 13 before its sigmoid) or cosines (…)."""
        if self.matching == "mlp":
            return perceptron(self.mlp, v + t).squeeze(-1)
        return (unit(v) * unit(t)).sum(dim=-1)

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        """Attention Ãv and Ãt, the vector gates, and the pooling weights of each pair."""
        to_words, to_regions = self._attend_pairs(images, texts)
        found = {"region_attention": to_words, "word_attention": to_regions}
        for name, side, own, attention, context in (
            ("region", self.fusion_image, images, to_regions, texts),
            ("word", self.fusion_text, texts, to_words, images),
        ):
            if side.gates and side.fusion != "none":
                found[f"{name}_gate"] = side.gate(own.local, torch.bmm(attention, context.local))
            fused = side.fused_rows(own, attention, context, block=False)
            found[f"{name}_weight"] = side.weights(fused.unsqueeze(1), own.mask.unsqueeze(1)).squeeze(1)
        return found

    def compile_scores(self) -> None:
        for side in (self.fusion_image, self.fusion_text):  # where nearly all the arithmetic is
            side.pooled = torch.compile(side.pooled, dynamic=True)  # type: ignore[method-assign]

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        if gradient:
            return 8 * (regions + words) * self.dim
        return 4 * self.dim + 4 * regions * words  # the fused rows are made a few groups at a time


def _check(**choices: tuple[str, tuple[str, ...]]) -> None:
    for name, (found, expected) in choices.items():
        if found not in expected:
            raise InputError(f"{name}={found!r}, expected one of {', '.join(expected)}")
