"""Scores computed in memory that is used again, a few groups at a time: equal to those that autograd sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from camp.models import scratch as scratch_module
from camp.models.bfan import Bfan
from camp.models.camp_official import CampOfficial
from camp.models.camp_paper import CampPaper
from camp.models.encoded import Encoded
from camp.models.matcher import Matcher
from camp.models.scan import Scan
from camp.models.scratch import may_overwrite, scratch
from camp.models.tiles import score_matrix

SIZES: dict[str, Any] = {"vocab_size": 20, "region_dim": 6, "word_dim": 5, "dim": 8}


def encoded(model: Matcher) -> tuple[Encoded, Encoded]:
    lengths = torch.tensor([3, 5, 2, 5, 4])
    ids = torch.randint(1, 20, (5, 5))
    mask = torch.arange(4) < torch.tensor([[4], [2], [3], [4], [1], [4]])
    return (
        model.encode_image(torch.randn(6, 4, 6, dtype=torch.float64), mask),
        model.encode_text(ids, lengths),
    )


@pytest.mark.parametrize("rows", [1, 9, 512])
@pytest.mark.parametrize(
    "build",
    [
        lambda: CampPaper(**SIZES, affinity_dim=4),
        lambda: CampPaper(**SIZES, affinity_dim=4, fusion="product", residual=False),
        lambda: CampPaper(**SIZES, affinity_dim=4, fusion="concat"),
        lambda: CampPaper(**SIZES, affinity_dim=4, gates=False),
        lambda: CampPaper(**SIZES, affinity_dim=4, fusion="product", gates=False, aggregation="mean"),
        lambda: CampOfficial(**SIZES),
        lambda: Scan(**SIZES),
        lambda: Scan(**SIZES, direction="i2t", pooling="lse"),
        lambda: Bfan(**SIZES),
    ],
)
def test_scores_are_those_that_autograd_sees(
    build: Callable[[], Matcher], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_module, "CPU_ROWS", rows)
    torch.manual_seed(0)
    model = build().double()
    images, texts = encoded(model)
    kept = [tensor.clone() for side in (images, texts) for tensor in side.floats()]
    expected = model.score_block(images, texts)
    assert expected.requires_grad
    found = score_matrix(model, images, texts)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
    with torch.inference_mode():
        inferred = score_matrix(model, images, texts)
        pairs = model.score_pairs(images.index(torch.arange(5)), texts)
    with torch.no_grad():  # what inference mode left behind can be written again
        torch.testing.assert_close(score_matrix(model, images, texts), inferred)
    torch.testing.assert_close(pairs, expected.detach()[range(5), range(5)], rtol=1e-12, atol=1e-12)
    for before, after in zip(kept, [t for side in (images, texts) for t in side.floats()], strict=True):
        assert torch.equal(before, after)


def test_memory_is_handed_out_again_unless_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1)

    def address(name: str, *shape: int) -> int:
        return scratch(name, shape, like=like).data_ptr()

    first = address("test", 4, 5)
    assert address("test", 2, 3) == first
    assert address("other", 4, 5) != first
    assert scratch("test", (2,), like=like.double()).dtype == torch.float64
    monkeypatch.setattr(scratch_module, "KEPT_BYTES", 8)
    kept: list[Tensor] = [scratch("test", (4, 5), like=like) for _ in range(2)]
    assert kept[0].data_ptr() != kept[1].data_ptr()


def test_nothing_is_overwritten_that_somebody_needs() -> None:
    like = torch.zeros(1)
    assert not may_overwrite(like)
    with torch.no_grad():
        assert may_overwrite(like)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not may_overwrite(like)
