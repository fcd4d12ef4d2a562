"""What every model keeps: blocks equal pairs, no pair sees another or padding, gradients reach everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from camp.models.build import MODELS, TABLE_3
from camp.models.encoded import cat
from camp.models.losses import build_loss
from camp.models.matcher import Matcher
from camp.models.tiles import score_matrix
from camp.models.two_pass import one_pass_step, two_pass_step
from camp.schema import Batch

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in MODELS}
VARIANTS |= {
    "scan t2i lse": ("scan", {"pooling": "lse"}),
    "scan i2t avg": ("scan", {"direction": "i2t"}),
    "scan i2t lse": ("scan", {"direction": "i2t", "pooling": "lse"}),
    "bfan equal": ("bfan", {"focus": "equal"}),
    "vsrn f30k": ("vsrn", {"final_norm": True, "compat": True}),
    "adapt i2t": ("adapt", {"direction": "i2t"}),
    "adapt i2t mean": ("adapt", {"direction": "i2t", "pooling": "mean", "norm": "instance"}),
    "adapt t2i max": ("adapt", {"pooling": "max", "scale": "plain", "norm": "l2"}),
    "adapt no fovea": ("adapt", {"fovea": False, "norm": "none"}),
    "adapt i2t no fovea": ("adapt", {"fovea": False, "direction": "i2t"}),
    "adapt learned": ("adapt", {"learn_smoothing": True}),
    "labelwise apart": ("labelwise", {"share": False, "consistency": 0.1, "mask_weight": 0.0}),
}
VARIANTS |= {f"camp {row}": (kind.model, dict(kind.options)) for row, kind in TABLE_3.items() if kind.options}


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest, make_model: Any) -> Matcher:
    name, options = VARIANTS[request.param]
    made: Matcher = make_model(name, **options)
    return made


@pytest.fixture
def batch(make_batch: Any) -> Batch:
    made: Batch = make_batch()
    return made


def encode(model: Matcher, batch: Batch) -> Any:
    images = model.encode_image(batch.regions, batch.region_mask, batch.boxes)
    return images, model.encode_text(batch.tokens, batch.lengths)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_block_equals_pairs(model: Matcher, batch: Batch) -> None:
    images, texts = encode(model.eval(), batch)
    block = model.score_block(images, texts)
    assert block.shape == (4, 6)
    for i in range(4):
        rows = torch.full((6,), i)
        close(model.score_pairs(images.index(rows), texts), block[i])
    assert block.std() > 1e-3, "a model that gives every pair the same score proves nothing"


def test_without_gradient_the_scores_are_the_same(model: Matcher, batch: Batch) -> None:
    images, texts = encode(model.eval(), batch)
    with torch.no_grad():
        before = [tensor.clone() for tensor in (*images.floats(), *texts.floats())]
        fast = model.score_block(images, texts)
        after = [*images.floats(), *texts.floats()]
    close(fast, model.score_block(images, texts))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "scoring changed the encodings"


@pytest.mark.parametrize("tile_bytes", [1, 4000, None])
def test_tiles_equal_the_block(model: Matcher, batch: Batch, tile_bytes: int | None) -> None:
    images, texts = encode(model.eval(), batch)
    close(score_matrix(model, images, texts, tile_bytes=tile_bytes), model.score_block(images, texts))


def test_a_score_does_not_depend_on_its_neighbours(model: Matcher, batch: Batch) -> None:
    model.eval()
    images, texts = encode(model, batch)
    block = model.score_block(images, texts)
    for i in range(4):
        only = slice(i, i + 1)
        image = model.encode_image(batch.regions[only], batch.region_mask[only], batch.boxes[only])
        text = model.encode_text(batch.tokens[only], batch.lengths[only])
        close(model.score_block(image, text)[0, 0], block[i, i])


def test_a_score_does_not_depend_on_padding(model: Matcher, batch: Batch) -> None:
    model.eval()
    images, texts = encode(model, batch)
    noise = batch.regions.masked_fill(~batch.region_mask.unsqueeze(-1), 9.0)
    boxes = batch.boxes.masked_fill(~batch.region_mask.unsqueeze(-1), 9.0)
    real = torch.arange(7) < batch.lengths.unsqueeze(1)
    noisy_images = model.encode_image(noise, batch.region_mask, boxes).pad(9)
    noisy_texts = model.encode_text(batch.tokens.masked_fill(~real, 3), batch.lengths).pad(11)
    close(model.score_block(noisy_images, noisy_texts), model.score_block(images, texts))
    pairs = (images.index(slice(0, 4)), texts.index(slice(0, 4)))
    noisy_pairs = (noisy_images.index(slice(0, 4)), noisy_texts.index(slice(0, 4)))
    close(model.score_pairs(*noisy_pairs), model.score_pairs(*pairs))


def test_encodings_joined_from_parts_score_the_same(model: Matcher, batch: Batch) -> None:
    model.eval()
    images, texts = encode(model, batch)
    short = model.encode_text(batch.tokens[1:], batch.lengths[1:])
    joined = cat([model.encode_text(batch.tokens[:1], batch.lengths[:1]), short])
    close(model.score_block(images, joined), model.score_block(images, texts))
    assert joined.trim().mask.shape[1] == 7


def test_gradients_reach_both_encoders_and_every_parameter(model: Matcher, batch: Batch) -> None:
    one_pass_step(model, batch, loss=build_loss("bce_all"))  # a margin would not see a bias on the score
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.abs().sum() > 0, f"{name} has gradient 0"


@pytest.mark.parametrize(
    "loss_name", ["bce_hardest", "bce_all", "bce_annealed", "ranking_hardest", "ranking_all", "annealed"]
)
def test_two_passes_equal_one(model: Matcher, batch: Batch, loss_name: str) -> None:
    loss = build_loss(loss_name)
    torch.manual_seed(5)  # VSRN's captioner drops out, once per step
    one = one_pass_step(model, batch, loss=loss, step=40)
    expected = {
        name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    torch.manual_seed(5)
    two = two_pass_step(model, batch, loss=loss, step=40, tile_bytes=4000, chunk_bytes=20_000)
    close(two.loss, one.loss)
    close(two.scores, one.scores)
    assert {name for name, value in model.named_parameters() if value.grad is not None} == set(expected)
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_round_trip_through_a_state_dict(model: Matcher, batch: Batch, make_model: Any, request: Any) -> None:
    name, options = VARIANTS[request.node.callspec.params["model"]]
    other = make_model(name, seed=1, **options)
    other.load_state_dict(model.state_dict())
    close(other.eval().score_block(*encode(other, batch)), model.eval().score_block(*encode(model, batch)))


def test_explanations_are_weights(model: Matcher, batch: Batch) -> None:
    images, texts = encode(model.eval(), batch)
    pairs = images.index(slice(0, 4)), texts.index(slice(0, 4))
    found = model.explain(*pairs)
    masks = {"region": pairs[0].mask, "word": pairs[1].mask}
    for kind, mask in masks.items():
        for name in (f"{kind}_attention", f"{kind}_weight"):
            if name not in found:
                continue
            weights = found[name] if found[name].dim() == 3 else found[name].unsqueeze(1)
            assert weights.masked_select(~mask.unsqueeze(1)).abs().sum() == 0, f"{name} on padding"
            close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
        if (gate := found.get(f"{kind}_gate")) is not None:
            assert gate.shape[:2] == mask.shape
            assert bool(((gate >= 0) & (gate <= 1)).all())


def test_half_precision_features_are_accepted(model: Matcher, batch: Batch) -> None:
    half = model.eval().float().encode_image(batch.regions.half(), batch.region_mask, batch.boxes.float())
    assert torch.isfinite(half.local).all()
    assert torch.isfinite(half.glob).all()


def test_bfloat16_autocast_trains_and_scores(model: Matcher, batch: Batch) -> None:
    model.float()
    step = two_pass_step(
        model,
        batch,
        loss=build_loss("annealed"),
        step=40,
        autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        chunk_bytes=20_000,
    )
    assert step.scores.dtype == torch.float32
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert bool(torch.isfinite(parameter.grad).all()), name
