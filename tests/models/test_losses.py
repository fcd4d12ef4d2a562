"""Losses against loops over captions; negatives by image id; what a collapsed model's loss is."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from camp.errors import InputError
from camp.models.losses import LOSSES, Pairs, build_loss, chance_loss
from camp.schema import Batch


def pairs_of(images: int, image_of: list[int]) -> Pairs:
    rows = torch.tensor(image_of)
    return Pairs(rows, torch.arange(images).unsqueeze(1) == rows)


def literal(name: str, S: list[list[float]], image_of: list[int], *, margin: float, step: int) -> float:
    """Caption by caption, negative by negative."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + exp(-x))

    total = 0.0
    for caption, own in enumerate(image_of):
        positive = S[own][caption]
        captions = [S[own][other] for other, image in enumerate(image_of) if image != own]
        images = [S[image][caption] for image in range(len(S)) if image != own]
        hinges = [[max(0.0, margin + s - positive) for s in negatives] for negatives in (captions, images)]
        logs = [[-log(1 - sigmoid(s)) for s in negatives] for negatives in (captions, images)]
        hardest = sum(max(h) for h in hinges if h)
        everything = sum(sum(h) for h in hinges)
        tau = 1 - 0.991**step
        total += {
            "none": 0.0,
            "ranking_hardest": hardest,
            "ranking_all": everything,
            "annealed": tau * hardest + (1 - tau) * everything,
            "bce_hardest": -2 * log(sigmoid(positive)) + sum(max(x) for x in logs if x),
            "bce_all": -2 * log(sigmoid(positive)) + sum(sum(x) / len(x) for x in logs if x),
        }[name]
    return total


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "bce_annealed"])
@settings(max_examples=25)
@given(
    images=st.integers(1, 4),
    captions=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    step=st.integers(0, 300),
)
def test_losses_are_their_loops(name: str, images: int, captions: int, seed: int, step: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(images, captions, generator=generator, dtype=torch.float64)
    image_of = torch.randint(images, (captions,), generator=generator).tolist()
    value = build_loss(name)(scores, pairs_of(images, image_of), step)
    expected = literal(name, scores.tolist(), image_of, margin=0.2, step=step)
    assert float(value) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_annealed_bce_goes_from_all_negatives_to_the_hardest() -> None:
    torch.manual_seed(0)
    scores, pairs = torch.randn(4, 5, dtype=torch.float64), pairs_of(4, [0, 1, 2, 3, 0])
    annealed = LOSSES["bce_annealed"]
    assert float(annealed(scores, pairs, 10**6)) == pytest.approx(float(LOSSES["bce_hardest"](scores, pairs)))
    drawn = [float(annealed(scores, pairs, step, rate=1.0)) for step in range(500)]
    assert sum(drawn) / 500 == pytest.approx(float(LOSSES["bce_all"](scores, pairs)), rel=0.03)
    assert drawn[7] == float(annealed(scores, pairs, 7, rate=1.0))
    assert len(set(drawn)) > 10


@pytest.mark.parametrize("name", LOSSES)
def test_two_captions_of_one_image_are_not_negatives(name: str) -> None:
    """Their scores with their own image get no gradient except as positives."""
    scores = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(build_loss(name)(scores, pairs_of(2, [0, 0, 1]), 10))
    assert scores.grad is not None
    assert bool((scores.grad[0, :2] <= 0).all()), "a positive was pushed down"


def test_an_image_that_came_twice_is_not_its_own_negative(make_batch: Any) -> None:
    batch: Batch = make_batch(3, 3)
    twice = Batch(
        **{name: getattr(batch, name) for name in Batch.__dataclass_fields__}
        | {"image_ids": torch.tensor([7, 7, 9])}
    )
    assert Pairs.of(twice).positive.tolist() == [
        [True, True, False],
        [True, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize("name", ["bce_hardest", "ranking_hardest", "bce_annealed"])
def test_hardest_negatives_touch_three_pairs_per_caption_even_on_ties(name: str) -> None:
    scores = torch.zeros(9, 9, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(build_loss(name)(scores, pairs_of(9, list(range(9))), 0))
    assert scores.grad is not None
    assert int((scores.grad != 0).sum()) <= 27


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_negatives_has_a_finite_gradient(name: str) -> None:
    scores = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(build_loss(name)(scores, pairs_of(1, [0, 0]), 5))
    assert scores.grad is not None
    assert bool(torch.isfinite(scores.grad).all())


@pytest.mark.parametrize("name", ["bce_hardest", "bce_all", "bce_annealed", "ranking_hardest"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_chance_loss_is_the_loss_of_equal_scores(name: str, reduction: str) -> None:
    value = build_loss(name, margin=0.3, reduction=reduction)(
        torch.zeros(5, 5), pairs_of(5, list(range(5))), 0
    )
    expected = chance_loss(name, 5, margin=0.3, reduction=reduction)
    assert float(value) == pytest.approx(expected)


def test_saturated_logits_keep_their_gradient() -> None:
    """Clamped probabilities would give 0 here."""
    scores = torch.tensor([[-40.0, 40.0], [40.0, -40.0]], requires_grad=True)
    torch.autograd.backward(build_loss("bce_hardest")(scores, pairs_of(2, [0, 1]), 0))
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-2.0, 2.0], [2.0, -2.0]]


def test_mean_divides_by_the_captions_and_probabilities_are_sigmoids() -> None:
    scores, pairs = torch.randn(3, 6, dtype=torch.float64), pairs_of(3, [0, 1, 2, 0, 1, 2])

    def value(name: str, **options: Any) -> Tensor:
        return build_loss(name, **options)(scores, pairs, 1)

    torch.testing.assert_close(value("bce_hardest", reduction="mean"), value("bce_hardest") / 6)
    of_probabilities = build_loss("ranking_hardest", of_probabilities=True)(scores, pairs, 0)
    torch.testing.assert_close(of_probabilities, LOSSES["ranking_hardest"](scores.sigmoid(), pairs))


def test_bad_names_are_told() -> None:
    with pytest.raises(InputError, match="loss 'triplet', expected one of bce_hardest"):
        build_loss("triplet")
    with pytest.raises(InputError, match="reduction 'max', expected one of sum, mean"):
        build_loss("bce_all", reduction="max")
    with pytest.raises(InputError, match="'bce_all' works on logits"):
        build_loss("bce_all", of_probabilities=True)
