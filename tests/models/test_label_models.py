"""Label-wise sharing and DSCMR: their losses word for word, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch

from camp.errors import InputError, MismatchError
from camp.schema import Batch

MakeBatch = Callable[..., Batch]


def encode(model: Any, batch: Batch) -> Any:
    images = model.encode_image(batch.regions, batch.region_mask, batch.boxes)
    return images, model.encode_text(batch.tokens, batch.lengths)


def test_labelwise_losses_are_their_equations(make_batch: MakeBatch, make_model: Any) -> None:
    batch = make_batch()
    model = make_model("labelwise", consistency=0.1, mask_weight=0.0, dropout=0.0)
    images, texts = encode(model, batch)
    losses = model.aux_losses(batch, images, texts)
    assert batch.labels is not None
    guesses = [model.predict_labels(part).tolist() for part in (images, texts)]
    y, owner = batch.labels.tolist(), batch.caption_image.tolist()
    by_image = [log(1 + exp(-sum(a * b for a, b in zip(guesses[0][i], y[i], strict=True)))) for i in range(4)]
    by_text = [
        log(1 + exp(-sum(a * b for a, b in zip(guesses[1][c], y[owner[c]], strict=True)))) for c in range(6)
    ]
    assert float(losses["labels"].detach()) == pytest.approx(sum(by_image) / 4 + sum(by_text) / 6, abs=1e-12)
    apart = [
        sum((a - b) ** 2 for a, b in zip(guesses[0][owner[c]], guesses[1][c], strict=True)) ** 0.5
        for c in range(6)
    ]
    assert float(losses["consistency"].detach()) == pytest.approx(0.1 * sum(apart) / 6, abs=1e-12)
    assert set(losses) == {"labels", "consistency"}


def test_a_guess_is_the_mean_of_unit_vectors(make_batch: MakeBatch, make_model: Any) -> None:
    batch = make_batch()
    model = make_model("labelwise").eval()
    image = slice(1, 2)
    encoded = model.encode_image(batch.regions[image], batch.region_mask[image], batch.boxes[image])
    hidden = model.shared[0](
        model.image(batch.regions[image], batch.region_mask[image], batch.boxes[image]),
        batch.region_mask[image],
    )[0]
    total = torch.zeros(6, dtype=torch.float64)
    count = int(batch.region_mask[1].sum())
    for row in range(count):
        probability = 1 / (1 + torch.exp(-(model.label_head.weight @ hidden[row] + model.label_head.bias)))
        total += probability / probability.norm()
    torch.testing.assert_close(model.predict_labels(encoded)[0], total / count, rtol=0, atol=1e-10)


def test_hidden_words_and_regions_are_guessed(make_batch: MakeBatch, make_model: Any) -> None:
    batch = make_batch()
    model = make_model("labelwise")
    losses = model.aux_losses(batch, *encode(model, batch))
    assert set(losses) == {"labels", "words", "regions"}
    assert all(float(value.detach()) > 0 for value in losses.values())
    without = replace(batch, region_classes=None)
    assert set(model.aux_losses(without, *encode(model, without))) == {"labels", "words"}
    assert model.eval().aux_losses(batch, *encode(model, batch)) == {}


def test_dscmr_losses_are_their_equations(make_batch: MakeBatch, make_model: Any) -> None:
    batch = make_batch()
    model = make_model("dscmr")
    images, texts = encode(model, batch)
    losses = model.aux_losses(batch, images, texts)
    assert batch.labels is not None
    owner = batch.caption_image
    u, v = images.pooled["point"][owner], texts.pooled["point"]
    y = batch.labels[owner]
    guesses = model.predict_labels(images)[owner], model.predict_labels(texts)
    classes = sum((guess[c] - y[c]).norm() for guess in guesses for c in range(6)) / 6
    similarity = torch.zeros((), dtype=torch.float64)
    for a, b in ((u, u), (u, v), (v, v)):
        for i in range(6):
            for j in range(6):
                theta = a[i] @ b[j] / (a[i].norm() * b[j].norm()) / 2
                same = float((y[i] * y[j]).sum() > 0)
                similarity = similarity + (torch.log(1 + torch.exp(theta)) - same * theta) / 36
    pairs = sum((u[c] - v[c]).norm() for c in range(6)) / 6
    for name, expected in (("classes", classes), ("similarity", 1e-3 * similarity), ("pairs", 0.1 * pairs)):
        torch.testing.assert_close(losses[name], torch.as_tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["labelwise", "dscmr"])
def test_labels_are_needed(make_batch: MakeBatch, make_model: Any, name: str) -> None:
    batch = make_batch()
    model = make_model(name)
    encoded = encode(model, batch)
    with pytest.raises(InputError, match="the data set has no labels"):
        model.aux_losses(replace(batch, labels=None), *encoded)
    with pytest.raises(MismatchError, match="2 labels in the batch, the model has 6"):
        model.aux_losses(replace(batch, labels=torch.ones(4, 2)), *encoded)


def test_heads_must_share_the_width(make_model: Any) -> None:
    with pytest.raises(InputError, match="dim 8 cannot be shared by 3 heads"):
        make_model("labelwise", heads=3)
