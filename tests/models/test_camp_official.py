"""The released architecture in its published, expanded form against ours, pair by pair."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from camp.models.camp_official import CampOfficial

State = dict[str, Tensor]


def unit(x: Tensor) -> Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-8)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / sqrt(query.shape[-1])).softmax(-1) @ value


def literal_side(own: Tensor, other: Tensor, state: State, name: str, source: str) -> Tensor:
    """Messages, their attention to one another, gate, concatenation, residual, four heads: written out."""
    query, key = own @ state[f"{name}.query.weight"].T, other @ state[f"{source}.key.weight"].T
    messages = attend(query, key, other)
    messages = attend(
        messages @ state[f"{source}.message_query.weight"].T,
        messages @ state[f"{source}.message_key.weight"].T,
        messages,
    )
    messages = unit(messages)
    gate = torch.sigmoid((own * messages).sum(-1, keepdim=True))
    joined = torch.cat([own, messages], dim=-1) * gate
    fused = torch.relu(joined @ state[f"{name}.fuse.weight"].T) + own
    hidden = torch.relu(fused @ state[f"{name}.pool.0.weight"].T + state[f"{name}.pool.0.bias"])
    heads = (hidden @ state[f"{name}.pool.2.weight"].T + state[f"{name}.pool.2.bias"]).T.softmax(-1)
    return unit((heads @ fused).mean(0))


def literal_score(V: Tensor, T: Tensor, state: State) -> Tensor:
    v = literal_side(V, T, state, "side_image", "side_text")
    t = literal_side(T, V, state, "side_text", "side_image")
    hidden = torch.relu(state["match.0.weight"] @ torch.cat([v, t]) + state["match.0.bias"])
    return (state["match.2.weight"] @ hidden + state["match.2.bias"])[0]


def test_scores_are_the_published_form(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("camp_official"), make_batch()
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    scores = model.score_block(images, texts).detach()
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for i in range(4):
        for j in range(6):
            V = images.local[i, batch.region_mask[i]].detach()
            T = texts.local[j, : int(batch.lengths[j])].detach()
            torch.testing.assert_close(scores[i, j], literal_score(V, T, state), rtol=0, atol=1e-10)


def test_the_gate_is_one_number_per_region_and_word(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("camp_official"), make_batch(4, 4)
    images = model.encode_image(batch.regions, batch.region_mask)
    texts = model.encode_text(batch.tokens, batch.lengths)
    found = model.explain(images, texts)
    assert found["region_gate"].shape == (4, 5, 1)
    assert found["word_gate"].shape == (*texts.mask.shape, 1)


def test_the_head_has_the_released_number_of_parameters() -> None:
    model = CampOfficial(vocab_size=4)
    head = [p.numel() for name, p in model.named_parameters() if not name.startswith(("image.", "text."))]
    assert sum(head) == 16_789_513


def test_initial_weights_follow_the_released_code() -> None:
    model = CampOfficial(vocab_size=4, region_dim=6, word_dim=3, dim=64).requires_grad_(False)
    bound = sqrt(6 / 128)
    for layer in (model.side_image.key, model.side_text.key, model.side_image.fuse, model.side_text.fuse):
        assert 0.9 * bound < float(layer.weight.abs().max()) <= bound
    hidden, out = model.match[0], model.match[2]
    assert isinstance(hidden, nn.Linear)
    assert isinstance(out, nn.Linear)
    assert 0.9 * bound < float(hidden.weight.abs().max()) <= bound
    assert float(hidden.bias.abs().max()) == float(out.bias.abs().max()) == 0
    default = sqrt(1 / 64)
    assert float(model.side_image.query.weight.abs().max()) <= default < bound
