"""Proposals against a slow reading of the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou

from camp.errors import InputError
from camp.extractors.proposals import (
    CAFFE_BOXES,
    caffe_cell_anchors,
    cell_anchors,
    clip,
    decode,
    grid_anchors,
    propose,
)


def outputs(rows: int, columns: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    objectness = torch.randn(12, rows, columns, generator=generator)
    deltas = torch.randn(48, rows, columns, generator=generator) * 0.3
    return objectness, deltas


def slow_proposals(
    objectness: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    *,
    width: int,
    height: int,
    extent: int,
    smallest: float,
    count: int,
) -> list[list[float]]:
    """One anchor after the other, in Python's own numbers."""
    candidates = []
    _, rows, columns = objectness.shape
    for row in range(rows):
        for column in range(columns):
            for a, (x1, y1, x2, y2) in enumerate(anchors.tolist()):
                dx, dy, dw, dh = deltas[4 * a : 4 * a + 4, row, column].tolist()
                w, h = x2 - x1 + extent, y2 - y1 + extent
                cx, cy = column * 16 + x1 + w / 2 + dx * w, row * 16 + y1 + h / 2 + dy * h
                w, h = w * math.exp(min(dw, math.log(62.5))), h * math.exp(min(dh, math.log(62.5)))
                box = [
                    min(max(cx - w / 2, 0), width - extent),
                    min(max(cy - h / 2, 0), height - extent),
                    min(max(cx + w / 2, 0), width - extent),
                    min(max(cy + h / 2, 0), height - extent),
                ]
                candidates.append((float(objectness[a, row, column]), box))
    candidates.sort(key=lambda candidate: -candidate[0])
    kept: list[list[float]] = []
    for _, box in candidates:
        sides = (box[2] - box[0], box[3] - box[1])
        if min(sides) <= 0 or min(sides) + extent <= smallest:
            continue
        grown = torch.tensor([[*box[:2], box[2] + extent, box[3] + extent]])
        others = torch.tensor([[*other[:2], other[2] + extent, other[3] + extent] for other in kept])
        if not kept or float(box_iou(grown, others).max()) <= 0.7:
            kept.append(box)
    return kept[:count]


@pytest.mark.parametrize("count", [300, 20])
def test_proposals_as_defined(count: int) -> None:
    objectness, deltas = outputs(4, 5)
    found = propose(objectness, deltas, anchors=cell_anchors(), width=76, height=60, count=count)
    expected = slow_proposals(
        objectness, deltas, cell_anchors(), width=76, height=60, extent=0, smallest=0, count=count
    )
    assert len(found) == len(expected) <= count
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-3)


def test_proposals_as_caffe_counts_pixels() -> None:
    objectness, deltas = outputs(5, 4, seed=1)
    found = propose(
        objectness,
        deltas,
        anchors=caffe_cell_anchors(),
        width=60,
        height=75,
        scale=2.0,
        convention=CAFFE_BOXES,
    )
    expected = slow_proposals(
        objectness, deltas, caffe_cell_anchors(), width=60, height=75, extent=1, smallest=32.0, count=300
    )
    assert len(found) == len(expected)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-3)


def test_only_the_best_6000_take_part() -> None:
    objectness, deltas = outputs(30, 30)
    deltas *= 0
    shift = torch.arange(12 * 30 * 30).view(30, 30, 12).permute(2, 0, 1)
    objectness = -shift.float()  # the anchors in their own order
    found = propose(objectness, deltas, anchors=cell_anchors(), width=480, height=480, count=10_000)
    last_row = 6000 // (12 * 30)
    assert float(found[:, 1].max()) <= last_row * 16 + 512
    assert float(found[:, 1].max()) > 0


def test_fewer_than_asked_for_is_normal() -> None:
    objectness, deltas = outputs(1, 1)
    assert 0 < len(propose(objectness, deltas, anchors=cell_anchors(), width=16, height=16)) <= 12


def test_anchors_are_size_major_around_zero() -> None:
    anchors = cell_anchors()
    sizes = (anchors[:, 2:] - anchors[:, :2]).prod(1).sqrt()
    torch.testing.assert_close(sizes, torch.tensor([64.0, 128, 256, 512]).repeat_interleave(3))
    ratio = (anchors[:, 3] - anchors[:, 1]) / (anchors[:, 2] - anchors[:, 0])
    torch.testing.assert_close(ratio, torch.tensor([0.5, 1, 2]).repeat(4))
    torch.testing.assert_close(anchors[:, :2], -anchors[:, 2:])


def test_caffe_anchors_are_the_published_ones() -> None:
    published = [
        [-84, -40, 99, 55],
        [-176, -88, 191, 103],
        [-360, -184, 375, 199],
        [-56, -56, 71, 71],
        [-120, -120, 135, 135],
        [-248, -248, 263, 263],
        [-36, -80, 51, 95],
        [-80, -168, 95, 183],
        [-168, -344, 183, 359],
    ]
    anchors = caffe_cell_anchors().view(3, 4, 4)[:, 1:].reshape(-1, 4)  # the published list starts at 128
    assert anchors.tolist() == published


def test_anchors_of_a_map_run_over_columns_first() -> None:
    anchors = grid_anchors(cell_anchors(), rows=2, columns=3).view(2, 3, 12, 4)
    torch.testing.assert_close(anchors[1, 2], cell_anchors() + torch.tensor([32.0, 16, 32, 16]))


def test_deltas_are_limited_and_boxes_stay_inside() -> None:
    boxes = torch.tensor([[10.0, 10, 26, 26]])
    grown = decode(boxes, torch.tensor([[0.0, 0, 100, 100]]), weights=(1, 1, 1, 1))
    torch.testing.assert_close(grown[0, 2] - grown[0, 0], torch.tensor(1000.0))
    assert clip(grown, width=30, height=20).tolist() == [[0, 0, 30, 20]]
    assert clip(grown, width=30, height=20, extent=1).tolist() == [[0, 0, 29, 19]]


def test_numbers_that_are_none_are_refused() -> None:
    objectness, deltas = outputs(2, 2)
    objectness[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        propose(objectness, deltas, anchors=cell_anchors(), width=32, height=32)
