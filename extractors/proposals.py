"""Objectness and box deltas on a feature map -> proposal boxes of one image."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms

from ..errors import InputError

STRIDE = 16
ANCHOR_SIZES = (64, 128, 256, 512)
ANCHOR_RATIOS = (0.5, 1.0, 2.0)  # height / width
CANDIDATES = 6000  # of the highest objectness go into suppression
PROPOSALS = 300
PROPOSAL_IOU = 0.7
_LOG_SCALE_LIMIT = math.log(1000 / 16)  # a delta may make no more of a 16 pixel box than the longest image


@dataclass(frozen=True, slots=True)
class BoxConvention:
    """How a port counts pixels: a box from 3 to 5 covers three in Caffe (extent 1), two in detectron2 (0)."""

    extent: float = 0.0
    min_side: float = 0.0  # in pixels of the original; smaller proposals go before the best are taken


DETECTRON2_BOXES = BoxConvention()
CAFFE_BOXES = BoxConvention(extent=1.0, min_side=16.0)


def cell_anchors() -> Tensor:
    """The 12 anchors around a position (12, 4): sizes outside, ratios inside."""
    boxes = []
    for size in ANCHOR_SIZES:
        for ratio in ANCHOR_RATIOS:
            width = math.sqrt(size * size / ratio)
            height = ratio * width
            boxes.append([-width / 2, -height / 2, width / 2, height / 2])
    return torch.tensor(boxes)


def caffe_cell_anchors() -> Tensor:
    """The same 12 as Caffe's tools count them: around 7.5, sides rounded to whole pixels, ratios outside."""
    boxes = []
    for ratio in ANCHOR_RATIOS:
        width = round(math.sqrt(STRIDE * STRIDE / ratio))
        height = round(width * ratio)
        for size in ANCHOR_SIZES:
            x, y = (width * size / STRIDE - 1) / 2, (height * size / STRIDE - 1) / 2
            boxes.append([7.5 - x, 7.5 - y, 7.5 + x, 7.5 + y])
    return torch.tensor(boxes)


def grid_anchors(cell: Tensor, *, rows: int, columns: int) -> Tensor:
    """Anchors of a position (A, 4) -> those of the whole map (rows * columns * A, 4), in that order."""
    y = torch.arange(rows, device=cell.device, dtype=cell.dtype) * STRIDE
    x = torch.arange(columns, device=cell.device, dtype=cell.dtype) * STRIDE
    y, x = torch.meshgrid(y, x, indexing="ij")
    shift = torch.stack([x, y, x, y], -1)  # (rows, columns, 4)
    return (shift[:, :, None] + cell).reshape(-1, 4)


def decode(
    boxes: Tensor, deltas: Tensor, *, weights: tuple[float, float, float, float], extent: float = 0.0
) -> Tensor:
    """Boxes (n, 4) moved and scaled by deltas (n, 4) -> (n, 4)."""
    width = boxes[:, 2] - boxes[:, 0] + extent
    height = boxes[:, 3] - boxes[:, 1] + extent
    x = deltas[:, 0] / weights[0] * width + (boxes[:, 0] + 0.5 * width)
    y = deltas[:, 1] / weights[1] * height + (boxes[:, 1] + 0.5 * height)
    width = torch.exp((deltas[:, 2] / weights[2]).clamp(max=_LOG_SCALE_LIMIT)) * width
    height = torch.exp((deltas[:, 3] / weights[3]).clamp(max=_LOG_SCALE_LIMIT)) * height
    return torch.stack([x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height], 1)


def clip(boxes: Tensor, *, width: int, height: int, extent: float = 0.0) -> Tensor:
    """Boxes (n, 4) -> their parts inside the image."""
    limit = boxes.new_tensor([width, height, width, height]) - extent
    return torch.minimum(boxes.clamp(min=0), limit)


def propose(
    objectness: Tensor,
    deltas: Tensor,
    *,
    anchors: Tensor,
    width: int,
    height: int,
    scale: float = 1.0,
    convention: BoxConvention = DETECTRON2_BOXES,
    count: int = PROPOSALS,
) -> Tensor:
    """Objectness (A, h, w), deltas (4A, h, w), the image's size -> at most `count` boxes (n, 4), best first.

    `anchors` are those of one position; `scale` is what the original image was resized by.
    """
    if not bool(torch.isfinite(objectness).all() & torch.isfinite(deltas).all()):
        raise InputError("proposals are not finite numbers: the weights do not suit the model")
    A, rows, columns = objectness.shape
    boxes = grid_anchors(anchors, rows=rows, columns=columns)
    logits = objectness.permute(1, 2, 0).reshape(-1)  # (h, w, A) flat, as the anchors
    deltas = deltas.view(A, 4, rows, columns).permute(2, 3, 0, 1).reshape(-1, 4)
    if convention.min_side:
        boxes = _decoded(boxes, deltas, width=width, height=height, convention=convention)
        kept = _large_enough(boxes, convention.min_side * scale, extent=convention.extent)
        boxes, logits = boxes[kept], logits[kept]
        best = torch.argsort(logits, descending=True, stable=True)[:CANDIDATES]
        boxes, logits = boxes[best], logits[best]
    else:
        best = torch.argsort(logits, descending=True, stable=True)[:CANDIDATES]
        boxes, logits = boxes[best], logits[best]
        boxes = _decoded(boxes, deltas[best], width=width, height=height, convention=convention)
        kept = _large_enough(boxes, 0.0)
        boxes, logits = boxes[kept], logits[kept]
    # A box that covers its last pixel is one wider for suppression.
    covered = boxes + boxes.new_tensor([0, 0, convention.extent, convention.extent])
    return boxes[nms(covered, logits, PROPOSAL_IOU)[:count]]


def _decoded(
    anchors: Tensor, deltas: Tensor, *, width: int, height: int, convention: BoxConvention
) -> Tensor:
    boxes = decode(anchors, deltas, weights=(1.0, 1.0, 1.0, 1.0), extent=convention.extent)
    return clip(boxes, width=width, height=height, extent=convention.extent)


def _large_enough(boxes: Tensor, side: float, *, extent: float = 0.0) -> Tensor:
    """Which boxes are not empty and have both sides above a length."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return (sides > 0).all(1) & (sides + extent > side).all(1)
