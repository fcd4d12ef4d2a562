"""The paper's equations, written out region by region and word by word, against the model."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.errors import InputError
from camp.models.build import TABLE_3, build_model

State = dict[str, Tensor]


def softmax(values: list[float]) -> list[float]:
    total = sum(exp(value) for value in values)
    return [exp(value) / total for value in values]


def weighted(weights: list[float], vectors: list[Tensor]) -> Tensor:
    return sum((w * v for w, v in zip(weights, vectors, strict=True)), torch.zeros_like(vectors[0]))


def literal_side(
    own: list[Tensor], messages: list[Tensor], state: State, side: str, options: dict[str, Any]
) -> Tensor:
    """Eq. 5–11 for one modality: own features and the message to each -> one vector."""
    d = len(own[0])
    fused = []
    for vector, message in zip(own, messages, strict=True):
        if options["fusion"] == "none":
            fused.append(message)
            continue
        gate = torch.sigmoid(vector * message) if options["gates"] else torch.ones(d).double()
        if options["fusion"] == "concat":
            joined, gate = torch.cat([vector, message]), torch.cat([gate, gate])
        else:
            joined = vector + message if options["fusion"] == "sum" else vector * message
        weight, bias = state[f"{side}.transform.weight"], state[f"{side}.transform.bias"]
        out = torch.relu(weight @ (gate * joined) + bias)
        fused.append(out + vector if options["residual"] else out)
    if options["aggregation"] == "mean":
        return weighted([1 / len(fused)] * len(fused), fused)
    pool = state[f"{side}.pool.weight"][0]
    return weighted(softmax([float(pool @ vector) / sqrt(d) for vector in fused]), fused)


def literal_score(V: list[Tensor], T: list[Tensor], state: State, options: dict[str, Any]) -> Tensor:
    """Eq. 1–13 for one image (its real regions) and one caption (its real words)."""
    if options["messages"] == "attention":
        h = state["affinity_image.weight"].shape[0]
        A = [
            [float((state["affinity_image.weight"] @ v) @ (state["affinity_text.weight"] @ t)) for t in T]
            for v in V
        ]
        to_words = [
            weighted(softmax([A[i][j] / sqrt(h) for i in range(len(V))]), V) for j in range(len(T))
        ]  # Eq. 2–3
        to_regions = [
            weighted(softmax([A[i][j] / sqrt(h) for j in range(len(T))]), T) for i in range(len(V))
        ]  # Eq. 4
    else:
        to_words = [weighted([1 / len(V)] * len(V), V)] * len(T)
        to_regions = [weighted([1 / len(T)] * len(T), T)] * len(V)
    v = literal_side(V, to_regions, state, "fusion_image", options)
    t = literal_side(T, to_words, state, "fusion_text", options)
    if options["matching"] == "cosine":
        return torch.dot(v, t) / torch.sqrt(torch.dot(v, v) * torch.dot(t, t))
    hidden = torch.relu(state["mlp.0.weight"] @ (v + t) + state["mlp.0.bias"])
    return (state["mlp.2.weight"] @ hidden + state["mlp.2.bias"])[0]  # Eq. 13 before its sigmoid


DEFAULTS = {
    "messages": "attention",
    "fusion": "sum",
    "gates": True,
    "residual": True,
    "aggregation": "attention",
    "matching": "mlp",
}
CAMP_ROWS = [row for row, kind in TABLE_3.items() if kind.model == "camp"]


@pytest.mark.parametrize("row", CAMP_ROWS)
def test_scores_are_the_equations(row: str, make_model: Any, make_batch: Any) -> None:
    options = DEFAULTS | dict(TABLE_3[row].options)
    model, batch = make_model("camp", **TABLE_3[row].options), make_batch()
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    scores = model.score_block(images, texts).detach()
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for i in range(4):
        V = [v for v, real in zip(images.local[i].detach(), batch.region_mask[i], strict=True) if real]
        for j in range(6):
            T = list(texts.local[j, : int(batch.lengths[j])].detach())
            expected = literal_score(V, T, state, options)
            torch.testing.assert_close(scores[i, j], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", CAMP_ROWS)
def test_a_row_of_table_3_differs_from_camp_in_what_it_names_alone(row: str, make_model: Any) -> None:
    changed = dict(TABLE_3[row].options)
    camp = {name: tensor.shape for name, tensor in make_model("camp").state_dict().items()}
    other = {name: tensor.shape for name, tensor in make_model("camp", **changed).state_dict().items()}
    gone = {name.rsplit(".", 1)[0] for name in camp if name not in other}
    resized = {name for name in other if camp[name] != other[name]}
    expected_gone = {
        "w/o cross-attn": {"affinity_image", "affinity_text"},
        "w/o fusion": {"fusion_image.transform", "fusion_text.transform", "mlp.0", "mlp.2"},
        "w/o attn-based agg": {"fusion_image.pool", "fusion_text.pool"},
        "Joint embedding": {"mlp.0", "mlp.2"},
    }.get(row, set())
    assert gone == expected_gone
    assert resized == (
        {"fusion_image.transform.weight", "fusion_text.transform.weight"} if row == "Concat fusion" else set()
    )


@pytest.mark.parametrize(
    "options",
    [
        {"gates": False},
        {"residual": False},
        {"fusion": "product"},
        {"messages": "mean"},
        {"aggregation": "mean"},
    ],
)
def test_with_the_same_weights_every_switch_changes_the_scores(
    options: dict[str, Any], make_model: Any, make_batch: Any
) -> None:
    batch, camp, other = make_batch(), make_model("camp"), make_model("camp", **options)
    other.load_state_dict({name: camp.state_dict()[name] for name in other.state_dict()})

    def scores(model: Any) -> Any:
        images = model.encode_image(batch.regions, batch.region_mask)
        return model.score_block(images, model.encode_text(batch.tokens, batch.lengths))

    assert float((scores(camp) - scores(other)).detach().abs().min()) > 1e-6


def test_explanations_are_what_the_score_used(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("camp"), make_batch(4, 4)
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    found = model.explain(images, texts)
    A = model.affinity_image(images.local) @ model.affinity_text(texts.local).mT / sqrt(3)
    words = int(batch.lengths[1])
    torch.testing.assert_close(found["word_attention"][1, 0, :words], A[1, 0, :words].softmax(-1))
    message = found["word_attention"][1, 0, :words] @ texts.local[1, :words]
    torch.testing.assert_close(found["region_gate"][1, 0], torch.sigmoid(images.local[1, 0] * message))
    assert found["region_gate"].shape == (4, 5, 8)
    assert found["word_gate"].shape == (4, texts.mask.shape[1], 8)


def test_bad_switches_are_named() -> None:
    with pytest.raises(InputError, match=r"fusion='none' with matching='mlp'"):
        build_model("camp", vocab_size=5, options={"fusion": "none"})
    with pytest.raises(InputError, match=r"messages='max', expected one of attention, mean"):
        build_model("camp", vocab_size=5, options={"messages": "max"})
