"""ADAPT with adapted features and masks formed, channel by channel, against the form without them."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.errors import InputError
from camp.models.build import build_model
from camp.models.encoders import unit


def literal_vector(local: Tensor, gamma: Tensor, beta: Tensor, options: dict[str, Any]) -> Tensor:
    """Eq. 3–5 (as Eq. 7 places λ): one item's normalised local features, adapted, masked and pooled."""
    scale = 1 + gamma if options["scale"] == "one_plus" else gamma
    out = []
    for channel in range(local.shape[1]):
        adapted = [float(row[channel] * scale[channel] + beta[channel]) for row in local]
        if options["fovea"]:
            top = max(options["smoothing"] * x for x in adapted)
            weights = [exp(options["smoothing"] * x - top) for x in adapted]
            adapted = [w / sum(weights) * x for w, x in zip(weights, adapted, strict=True)]
        out.append(max(adapted) if options["pooling"] == "max" else sum(adapted) / len(adapted))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"direction": "i2t"},
        {"direction": "i2t", "pooling": "mean"},
        {"pooling": "max", "norm": "l2"},
        {"scale": "plain", "norm": "instance"},
        {"fovea": False},
        {"fovea": False, "direction": "i2t", "norm": "none"},
        {"smoothing": 1.0},
        {"learn_smoothing": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [False, True])
def test_adapt_is_its_literal_form(
    options: dict[str, Any], training: bool, make_model: Any, make_batch: Any
) -> None:
    model, batch = make_model("adapt", **options).train(training), make_batch()
    t2i = model.direction == "t2i"
    with torch.no_grad():
        scores = model.score_block(
            model.encode_image(batch.regions, batch.region_mask),
            model.encode_text(batch.tokens, batch.lengths),
        )
        V, T = model.image(batch.regions), model.text(batch.tokens, batch.lengths)
        word_mask = torch.arange(T.shape[1]) < batch.lengths.unsqueeze(1)
        sides = ((V, batch.region_mask), (T, word_mask))
        (adapted, adapted_mask), (adapting, adapting_mask) = sides if t2i else sides[::-1]
        encoder = model.image if t2i else model.text
        adapted = encoder.norm(adapted, adapted_mask)
        full = {
            "scale": model.scale,
            "fovea": model.fovea,
            "pooling": model.pooling,
            "smoothing": float(model.smoothing),
        }
        for a in range(len(adapting)):
            c = adapting[a, adapting_mask[a]].mean(dim=0)
            for b in range(len(adapted)):
                vector = literal_vector(adapted[b, adapted_mask[b]], model.gamma(c), model.beta(c), full)
                expected = float(unit(vector) @ unit(c))
                found = scores[b, a] if t2i else scores[a, b]
                assert float(found) == pytest.approx(expected, rel=0, abs=1e-10)


def test_batch_norm_sees_real_regions_alone(make_model: Any, make_batch: Any) -> None:
    model, batch = make_model("adapt"), make_batch()
    images = model.encode_image(batch.regions, batch.region_mask)
    real = images.local[batch.region_mask]
    torch.testing.assert_close(real.mean(dim=0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_fovea_is_a_map_over_real_regions(make_model: Any, make_batch: Any) -> None:
    for direction, name in (("t2i", "region_fovea"), ("i2t", "word_fovea")):
        model, batch = make_model("adapt", direction=direction).eval(), make_batch(4, 4)
        images = model.encode_image(batch.regions, batch.region_mask)
        texts = model.encode_text(batch.tokens, batch.lengths)
        fovea = model.explain(images, texts)[name]
        mask = images.mask if direction == "t2i" else texts.mask
        assert fovea.amax(dim=-1).tolist() == [1.0] * 4
        assert float(fovea.detach()[~mask].abs().sum()) == 0


def test_vectors_stand_beside_trained_ones_by_default() -> None:
    vectors = torch.randn(9, 6)
    options: dict[str, Any] = {"region_dim": 5, "word_dim": 6, "dim": 4}
    with_vectors = build_model("adapt", vocab_size=9, vectors=vectors, options=options)
    tables = [p for name, p in with_vectors.named_parameters() if "embed.tables" in name]
    assert [table.requires_grad for table in tables] == [True, False]
    assert torch.equal(tables[1], vectors)
    without = build_model("adapt", vocab_size=9, options=options)
    assert len([name for name, _ in without.named_parameters() if "embed.tables" in name]) == 1


def test_bad_options_are_named() -> None:
    with pytest.raises(InputError, match="norm='layer', expected one of batch, instance, l2, none"):
        build_model("adapt", vocab_size=3, options={"norm": "layer"})
    with pytest.raises(InputError, match="scale='twice', expected one of one_plus, plain"):
        build_model("adapt", vocab_size=3, options={"scale": "twice"})
