"""Two passes: memory by the tile, no work where the loss is flat, auxiliary losses, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from camp.errors import InputError
from camp.models.camp_paper import CampPaper
from camp.models.encoded import Encoded
from camp.models.losses import Pairs, build_loss
from camp.models.matcher import Matcher
from camp.models.two_pass import one_pass_step, training_step, two_pass_step
from camp.schema import Batch


def gradients(model: Matcher) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that any operation inside made at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return out


def test_memory_is_bounded_by_the_tile_not_by_the_matrix(make_model: Any, make_batch: Any) -> None:
    model, loss = make_model("camp"), build_loss("bce_hardest")
    one, two = {}, {}
    for size in (8, 24):
        batch = make_batch(size, size)
        with LargestTensor() as seen:
            two_pass_step(model, batch, loss=loss, tile_bytes=9000, chunk_bytes=36_000)
        two[size] = seen.bytes
        with LargestTensor() as seen:
            one_pass_step(model, batch, loss=loss)
        one[size] = seen.bytes
    assert one[24] > 8 * one[8]
    assert two[24] <= 3 * two[8]  # what grows is linear in the batch: the encodings and their gradients
    assert one[24] > 8 * two[24]


def test_only_the_pairs_of_the_loss_are_scored_again(make_model: Any, make_batch: Any) -> None:
    batch = make_batch(10, 10)
    step = two_pass_step(make_model("camp"), batch, loss=build_loss("bce_hardest"))
    assert 10 < step.scored_again <= 30
    assert two_pass_step(make_model("camp"), batch, loss=build_loss("bce_all")).scored_again == 100


def test_a_flat_loss_leaves_zeros_as_one_pass_does(make_model: Any, make_batch: Any) -> None:
    def satisfied(scores: Tensor, pairs: Pairs, step: int) -> Tensor:
        return (scores - scores.detach() - 1).relu().sum()

    model, batch = make_model("camp"), make_batch()
    one_pass_step(model, batch, loss=satisfied)
    expected = gradients(model)
    model.zero_grad()
    assert two_pass_step(model, batch, loss=satisfied).loss == 0
    assert set(gradients(model)) == set(expected)
    assert all(float(value.abs().sum()) == 0 for value in gradients(model).values())


class Shifted(CampPaper):
    """With a loss on its encodings."""

    def aux_losses(self, batch: Batch, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        return {"length": images.local.square().mean(), "words": texts.local.abs().mean()}


@pytest.mark.parametrize("loss_name", ["bce_hardest", "annealed"])
def test_auxiliary_losses_and_scale(loss_name: str, make_batch: Any) -> None:
    torch.manual_seed(0)
    model = Shifted(vocab_size=23, region_dim=10, word_dim=5, dim=8, affinity_dim=3).double()
    batch, loss = make_batch(), build_loss(loss_name, reduction="mean")
    one = one_pass_step(model, batch, loss=loss, step=9, scale=0.25)
    expected = gradients(model)
    model.zero_grad()
    two = two_pass_step(model, batch, loss=loss, step=9, scale=0.25, chunk_bytes=9000)
    assert two.aux == one.aux
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_gradients_accumulate_over_steps(make_model: Any, make_batch: Any) -> None:
    model, loss = make_model("camp"), build_loss("bce_hardest")
    total: dict[str, Tensor] = {}
    for seed in (1, 2):
        model.zero_grad()
        two_pass_step(model, make_batch(seed=seed), loss=loss)
        total = {name: value + total.get(name, 0) for name, value in gradients(model).items()}
    model.zero_grad()
    for seed in (1, 2):
        two_pass_step(model, make_batch(seed=seed), loss=loss)
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, total[name])


def test_a_scorer_with_dropout_is_refused_and_encoders_may_have_it(make_model: Any, make_batch: Any) -> None:
    model, batch, loss = make_model("camp"), make_batch(), build_loss("bce_hardest")
    model.mlp.insert(1, nn.Dropout(0.5))
    with pytest.raises(InputError, match=r"mlp\.1 \(Dropout\) gives a pair another score"):
        two_pass_step(model, batch, loss=loss)
    model.mlp[1].p = 0.0
    model.image.fc = nn.Sequential(nn.Dropout(0.5), model.image.fc)
    model.image.forward = lambda regions: model.image.fc(regions)
    two_pass_step(model, batch, loss=loss)


def test_training_step_takes_two_passes_where_one_does_not_fit(make_model: Any, make_batch: Any) -> None:
    batch, loss = make_batch(10, 10), build_loss("ranking_hardest")
    assert training_step(make_model("camp"), batch, loss=loss).scored_again == 100  # one pass has them all
    assert training_step(make_model("camp"), batch, loss=loss, chunk_bytes=50_000).scored_again <= 30
    assert training_step(make_model("base"), batch, loss=loss, chunk_bytes=50_000).scored_again == 100


@pytest.mark.parametrize("name", ["camp", "camp_official"])
def test_a_feature_that_is_no_number_reaches_the_loss(make_model: Any, make_batch: Any, name: str) -> None:
    """In single precision, where the first pass goes through another library than the second."""
    model, batch = make_model(name).float(), make_batch()
    regions = batch.regions.float()
    regions[0] = float("nan")
    batch = dataclasses.replace(batch, regions=regions, boxes=batch.boxes.float())
    step = two_pass_step(model, batch, loss=build_loss("bce_hardest"))
    assert not math.isfinite(float(step.loss))
