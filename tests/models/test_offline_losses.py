"""Losses with mined negatives against loops over pairs, and exact gradients in two passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.errors import InputError
from camp.models.losses import Pairs, build_loss
from camp.models.matcher import Matcher
from camp.models.offline_losses import OfflineTerms, build_offline_loss
from camp.models.two_pass import one_pass_step, training_step, two_pass_step
from camp.schema import Batch

ANCHORS = 5  # captions 0..4 of images 0..3; then what joined


@pytest.fixture
def batch(make_batch: Callable[..., Batch]) -> Batch:
    """Five captions of four images; three images and four captions came as negatives.

    Caption 0's mined pair (I₃, T₃) belongs together; caption 1 has no mined image, caption 2 no mined
    caption; caption 3's mined caption is one of the batch's own.
    """
    made = make_batch(7, 9)
    caption_image = torch.tensor([0, 1, 2, 3, 0, 4, 5, 5, 6])
    return replace(
        made,
        caption_image=caption_image,
        negative_image=torch.tensor([4, -1, 5, 6, 4, -1, -1, -1, -1]),
        negative_caption=torch.tensor([5, 6, -1, 1, 7, -1, -1, -1, -1]),
        partner_caption=torch.tensor([5, -1, 6, 8, 5, -1, -1, -1, -1]),
        joined=torch.arange(9) >= ANCHORS,
    )


def _value(score: Tensor) -> float:
    return float(score.detach())


def naive(S: Tensor, batch: Batch, *, terms: str, gamma1: float, gamma2: float, compat: bool) -> Tensor:
    """Word for word: sums over captions of max(0, …)."""
    image_of, total = batch.caption_image.tolist(), torch.zeros((), dtype=S.dtype)
    zero = torch.zeros((), dtype=S.dtype)
    assert batch.negative_image is not None
    assert batch.negative_caption is not None
    assert batch.partner_caption is not None
    for t in range(ANCHORS):
        i = image_of[t]
        own = S[i, t]
        i3, t3, t4 = (
            int(part[t]) for part in (batch.negative_image, batch.negative_caption, batch.partner_caption)
        )
        on_caption = max((S[i, c] for c in range(ANCHORS) if image_of[c] != i), key=_value)
        on_image = max((S[r, t] for r in range(4) if r != i), key=_value)
        weights = [torch.ones((), dtype=S.dtype)] * 2
        if terms == "adaptive":
            for way, (off, on) in enumerate(
                ((S[i, t3] if t3 >= 0 else None, on_caption), (S[i3, t] if i3 >= 0 else None, on_image))
            ):
                if off is not None:
                    weight = 1.5 - (off - on) / 0.3
                    weights[way] = weight if compat else torch.max(weight.detach(), zero)
        total = total + weights[0] * torch.max(gamma1 + on_caption - own, zero)
        total = total + weights[1] * torch.max(gamma1 + on_image - own, zero)
        offline = []
        if t3 >= 0:
            offline.append((i, t3))
        if i3 >= 0:
            offline.append((i3, t))
        if terms != "triplet":
            if i3 >= 0 and t3 >= 0 and image_of[t3] != i3:
                offline.append((i3, t3))
            if t3 >= 0 and t4 >= 0 and image_of[t3] != image_of[t4]:
                offline.append((image_of[t3], t4))
        for row, column in offline:
            total = total + torch.max(gamma2 + S[row, column] - own, zero)
    return total


@pytest.mark.parametrize("terms", ["triplet", "quintuplet", "adaptive"])
@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_value_and_gradient_equal_the_loop(batch: Batch, terms: str, compat: bool, seed: int) -> None:
    scores = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 3
    offline = OfflineTerms(terms, margin=0.05, compat=compat)
    loss = build_offline_loss("ranking_hardest", offline, margin=0.3)
    fast, slow = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    value = loss(fast, Pairs.of(batch), 0)
    expected = naive(slow, batch, terms=terms, gamma1=0.3, gamma2=0.05, compat=compat)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(value, fast), torch.autograd.grad(expected, slow)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_the_online_loss_sees_only_the_batchs_own_pairs(batch: Batch) -> None:
    scores = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = replace(
        batch,
        image_ids=batch.image_ids[:4],
        caption_ids=batch.caption_ids[:ANCHORS],
        caption_image=batch.caption_image[:ANCHORS],
        joined=None,
    )
    for name in ("bce_hardest", "bce_all", "ranking_all", "annealed"):
        loss = build_loss(name, reduction="mean")
        both = loss(scores, Pairs.of(batch), 7), loss(scores[:4, :ANCHORS], Pairs.of(alone), 7)
        torch.testing.assert_close(*both)


@pytest.mark.parametrize("name", ["vsepp", "scan", "camp", "vsrn", "adapt"])
@pytest.mark.parametrize(
    ("online", "terms"),
    [
        ("ranking_hardest", "triplet"),
        ("ranking_hardest", "quintuplet"),
        ("ranking_hardest", "adaptive"),
        ("annealed", "quintuplet"),
        ("bce_hardest", "triplet"),
    ],
)
def test_two_passes_equal_one(batch: Batch, make_model: Any, name: str, online: str, terms: str) -> None:
    model: Matcher = make_model(name)
    loss = build_offline_loss(online, OfflineTerms(terms, margin=0.1), reduction="mean")
    torch.manual_seed(5)
    one = one_pass_step(model, batch, loss=loss, step=40)
    expected = {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    torch.manual_seed(5)
    two = two_pass_step(model, batch, loss=loss, step=40, tile_bytes=4000, chunk_bytes=20_000)
    torch.testing.assert_close(two.loss, one.loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(two.scores, one.scores, rtol=0, atol=1e-10)
    for key, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, expected[key], rtol=1e-10, atol=1e-10, msg=key)
    model.zero_grad()
    torch.manual_seed(5)
    torch.testing.assert_close(training_step(model, batch, loss=loss, step=40).loss, one.loss)


def test_only_pairs_that_count_are_scored(batch: Batch, make_model: Any) -> None:
    model = make_model("scan")
    step = one_pass_step(model, batch, loss=build_offline_loss("ranking_hardest", OfflineTerms()))
    scored = step.scores != 0
    assert bool(scored[:4, :ANCHORS].all())
    assert int(scored.sum()) == step.scored < 4 * ANCHORS + 4 * ANCHORS


def test_wrong_settings_are_told() -> None:
    with pytest.raises(InputError, match="loss.name is 'annealed'; choose that, or terms 'quintuplet'"):
        build_offline_loss("annealed", OfflineTerms("adaptive"))
    with pytest.raises(InputError, match="negatives.terms 'pairs', expected one of triplet"):
        build_offline_loss("annealed", OfflineTerms("pairs"))
