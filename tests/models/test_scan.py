"""SCAN and BFAN with contexts formed and cosines taken, query by query, against the Gram form."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.errors import InputError
from camp.models.build import build_model
from camp.models.cross_attention import focal


def literal_attention(queries: Tensor, contexts: Tensor, smoothing: float) -> list[list[float]]:
    """Leaky ReLU, length 1 over the queries, softmax over the contexts: one row per query."""
    s = [[float(q @ c) for c in contexts] for q in queries]
    s = [[x if x > 0 else 0.1 * x for x in row] for row in s]
    for j in range(len(contexts)):
        length = sqrt(sum(row[j] ** 2 for row in s)) + 1e-8
        for row in s:
            row[j] /= length
    rows = []
    for row in s:
        total = sum(exp(smoothing * x) for x in row)
        rows.append([exp(smoothing * x) / total for x in row])
    return rows


def literal_cosine(query: Tensor, weights: list[float], contexts: Tensor) -> float:
    context = torch.tensor(weights, dtype=torch.float64) @ contexts
    return float(query @ context / (query.norm() * context.norm()))


def literal_scan(queries: Tensor, contexts: Tensor, *, smoothing: float, lse: float | None) -> float:
    attention = literal_attention(queries, contexts, smoothing)
    cosines = [literal_cosine(q, w, contexts) for q, w in zip(queries, attention, strict=True)]
    if lse is None:
        return sum(cosines) / len(cosines)
    return log(sum(exp(lse * r) for r in cosines)) / lse


def literal_focal(weights: list[float], focus: str) -> list[float]:
    if focus == "equal":
        F = [sum(a - b for b in weights) for a in weights]
    else:
        F = [sum((a - b) * sqrt(b) for b in weights) for a in weights]
    kept = [a if f > 0 else 0.0 for a, f in zip(weights, F, strict=True)]
    kept = kept if len(weights) > 1 else weights
    return [a / sum(kept) for a in kept]


def literal_bfan(V: Tensor, T: Tensor, focus: str) -> float:
    total = 0.0
    for queries, contexts in ((T, V), (V, T)):
        cosines = [
            literal_cosine(q, literal_focal(w, focus), contexts)
            for q, w in zip(queries, literal_attention(queries, contexts, 20.0), strict=True)
        ]
        total += sum(cosines) / len(cosines)
    return total


def real_features(model: Any, batch: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    scores = model.score_block(images, texts).detach()
    V = [images.local[i, batch.region_mask[i]].detach() for i in range(len(images))]
    T = [texts.local[j, : int(batch.lengths[j])].detach() for j in range(len(texts))]
    return V, T, scores


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("pooling", ["avg", "lse"])
def test_scan_is_its_literal_form(direction: str, pooling: str, make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("scan", direction=direction, pooling=pooling), make_batch()
    smoothing, lse = {"t2i": (9.0, 6.0), "i2t": (4.0, 5.0)}[direction]
    V, T, scores = real_features(model, batch)
    for i in range(4):
        for j in range(6):
            queries, contexts = (T[j], V[i]) if direction == "t2i" else (V[i], T[j])
            sharpness = lse if pooling == "lse" else None
            expected = literal_scan(queries, contexts, smoothing=smoothing, lse=sharpness)
            assert float(scores[i, j]) == pytest.approx(expected, rel=0, abs=1e-10)


@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_bfan_is_its_literal_form(focus: str, make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("bfan", focus=focus), make_batch()
    assert 1 in batch.lengths, "a caption of one word is the case that could divide by 0"
    V, T, scores = real_features(model, batch)
    for i in range(4):
        for j in range(6):
            assert float(scores[i, j]) == pytest.approx(literal_bfan(V[i], T[j], focus), rel=0, abs=1e-10)


@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_focus_keeps_all_where_none_stands_out(focus: str) -> None:
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    weights = torch.tensor([[[0.25] * 4], [[1.0, 0, 0, 0]]], dtype=torch.float64)
    assert torch.equal(focal(weights, mask, focus), weights)


def test_focus_passes_no_gradient_through_its_choice() -> None:
    weights = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]], dtype=torch.float64, requires_grad=True)
    kept = focal(weights, torch.ones(1, 4, dtype=torch.bool), "equal")
    assert kept.flatten().tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0])
    torch.autograd.backward(kept[0, 0, 0])
    assert weights.grad is not None
    assert weights.grad[0, 0, 2:].tolist() == [0.0, 0.0]


def test_bad_options_are_named() -> None:
    with pytest.raises(InputError, match="direction='both', expected one of t2i, i2t"):
        build_model("scan", vocab_size=3, options={"direction": "both"})
    with pytest.raises(InputError, match="pooling='max', expected one of avg, lse"):
        build_model("scan", vocab_size=3, options={"pooling": "max"})
    with pytest.raises(InputError, match="focus='sharp', expected one of equal, prob"):
        build_model("bfan", vocab_size=3, options={"focus": "sharp"})
