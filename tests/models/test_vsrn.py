"""VSRN's and VSE++'s vectors written out image by image, and the caption's likelihood word by word."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.models.encoders import unit
from camp.models.vsrn import RegionReasoning


def literal_vsrn(model: Any, regions: Tensor) -> Tensor:
    """One image's real regions -> its vector, in evaluation (running statistics)."""
    X = model.image.regions.fc(regions)
    if model.image.compat:
        X = X / X.norm(dim=0)
    for step in model.image.reasoning:
        affinity = step.theta(X) @ step.phi(X).T / len(X)
        Y = step.out(affinity @ step.g(X))
        norm = step.norm.norm
        Y = (Y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        X = X + Y
    X = X / (X.norm(dim=0) if model.image.compat else X.norm(dim=1, keepdim=True))
    state = torch.zeros(X.shape[1], dtype=torch.float64)
    gru = model.image.memory
    for x in X:
        gates = gru.weight_ih_l0 @ x + gru.bias_ih_l0, gru.weight_hh_l0 @ state + gru.bias_hh_l0
        (ir, iz, i_new), (hr, hz, h_new) = (gate.chunk(3) for gate in gates)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        state = (1 - z) * torch.tanh(i_new + r * h_new) + z * state
    if (norm := model.image.final_norm) is not None:
        state = (state - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return unit(state)


@pytest.mark.parametrize("options", [{}, {"final_norm": True}, {"compat": True}], ids=str)
def test_image_vectors_are_the_written_out_ones(
    options: dict[str, Any], make_model: Any, make_batch: Any
) -> None:
    model, batch = make_model("vsrn", **options), make_batch()
    model.encode_image(batch.regions, batch.region_mask)  # so that running statistics are not 0 and 1
    model.eval()
    images = model.encode_image(batch.regions, batch.region_mask)
    for i in range(4):
        expected = literal_vsrn(model, batch.regions[i, batch.region_mask[i]])
        torch.testing.assert_close(images.glob[i], expected, rtol=0, atol=1e-10)
    assert images.local.shape == (4, 5, 0), "regions are kept for the captioner alone"


def test_reasoning_starts_as_identity() -> None:
    X = torch.randn(2, 3, 4, dtype=torch.float64)
    step = RegionReasoning(4).double()
    assert torch.equal(step(X, torch.ones(2, 3, dtype=torch.bool)), X)


def test_the_caption_loss_is_the_likelihood_of_each_next_word(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("vsrn"), make_batch()
    model.aux.dropout.p = 0.0
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    found = model.aux_losses(batch, images, texts)["caption"]
    total = torch.zeros((), dtype=torch.float64)
    for caption in range(6):
        image = int(batch.caption_image[caption])
        regions = images.local[image, batch.region_mask[image]]
        read, last = model.aux.reader(model.aux.reduce(regions).unsqueeze(0))
        state, read = last[0], read[0]
        words = batch.tokens[caption, : int(batch.lengths[caption])]
        for word, following in pairwise(words):
            hidden = torch.tanh(model.aux.attend_regions(read) + model.aux.attend_state(state))
            context = model.aux.attend(hidden).softmax(dim=0).T @ read
            state = model.aux.writer(torch.cat([context, model.aux.embed(word).unsqueeze(0)], dim=-1), state)
            total -= model.aux.out(state).log_softmax(dim=-1)[0, following]
    torch.testing.assert_close(found, total / 6, rtol=0, atol=1e-10)
    assert model.eval().aux_losses(batch, images, texts) == {}
    assert not hasattr(make_model("vsrn", caption_weight=0.0), "aux")


def test_vsepp_compares_the_mean_region_with_the_last_state(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("vsepp"), make_batch()
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    scores = model.score_block(images, texts)
    for i in range(4):
        v = unit(model.image.fc(batch.regions[i, batch.region_mask[i]].mean(dim=0)))
        for j in range(6):
            words = batch.tokens[j : j + 1, : int(batch.lengths[j])]
            _, last = model.text.rnn(model.text.embed(words))
            torch.testing.assert_close(scores[i, j], v @ unit(last[0, 0]), rtol=0, atol=1e-10)
