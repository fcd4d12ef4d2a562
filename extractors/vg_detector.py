"""One resized image -> its Detections: Faster R-CNN on ResNet-101 for Visual Genome's 1,600 classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .detections import Detections
from .proposals import (
    ANCHOR_RATIOS,
    ANCHOR_SIZES,
    CAFFE_BOXES,
    DETECTRON2_BOXES,
    PROPOSALS,
    BoxConvention,
    cell_anchors,
    clip,
    decode,
    propose,
)
from .region_head import ConvolutionHead, RegionHead, fast_head
from .resnet_c4 import BLOCKS, ResNetC4, fold, res5

REGRESSION_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
ANCHORS_PER_POSITION = len(ANCHOR_SIZES) * len(ANCHOR_RATIOS)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the layers measure: the published model's, or a test's smaller ones."""

    blocks: tuple[int, int, int] = BLOCKS
    width: int = 64
    hidden: int = 512  # of the proposal network
    classes: int = 1600
    attributes: int = 400  # 0 in the files without them

    @property
    def dim(self) -> int:
        return 32 * self.width


@dataclass(frozen=True, slots=True)
class Port:
    """What differs between the model's public ports and is not in the shapes of their weights."""

    boxes: BoxConvention
    attribute_or_none: bool  # 'no attribute' has its share of the probability


PORTS = {
    "detectron2": Port(boxes=DETECTRON2_BOXES, attribute_or_none=False),
    "milvlg": Port(boxes=CAFFE_BOXES, attribute_or_none=True),
}


class ProposalHead(nn.Module):
    """(1, C, h, w) -> objectness (A, h, w) and deltas (4A, h, w)."""

    def __init__(self, channels: int, *, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, hidden, 3, padding=1)
        self.objectness_logits = nn.Conv2d(hidden, ANCHORS_PER_POSITION, 1)
        self.anchor_deltas = nn.Conv2d(hidden, 4 * ANCHORS_PER_POSITION, 1)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu_(self.conv(feature_map))
        return self.objectness_logits(hidden)[0].float(), self.anchor_deltas(hidden)[0].float()


class BoxPredictor(nn.Module):
    """Features (R, D) -> class logits with the background last, box deltas of a class, attribute logits."""

    def __init__(self, dim: int, *, classes: int, attributes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(dim, classes + 1)
        self.bbox_pred = nn.Linear(dim, 4 * classes)
        if attributes:
            self.cls_embedding = nn.Embedding(classes + 1, dim // 8)
            self.fc_attr = nn.Linear(dim + dim // 8, dim // 4)
            self.attr_score = nn.Linear(dim // 4, attributes + 1)

    def deltas(self, features: Tensor, classes: Tensor) -> Tensor:
        """Features (R, D) and a class each (R,) -> that class's deltas (R, 4)."""
        every = self.bbox_pred(features).float().view(len(features), -1, 4)
        return every[torch.arange(len(features), device=features.device), classes]

    def attribute_scores(self, features: Tensor, logits: Tensor, *, or_none: bool) -> Tensor:
        """Features (R, D) and class logits (R, C + 1) -> probabilities of the attributes (R, A)."""
        embedded = self.cls_embedding(logits.argmax(1))
        scores = self.attr_score(F.relu(self.fc_attr(torch.cat([features, embedded], 1)))).float()
        return scores.softmax(1)[:, :-1] if or_none else scores[:, :-1].softmax(1)  # 'none' is last


class _ProposalGenerator(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rpn_head = ProposalHead(16 * sizes.width, hidden=sizes.hidden)


class _RoiHeads(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.res5 = res5(width=sizes.width)
        self.box_predictor = BoxPredictor(sizes.dim, classes=sizes.classes, attributes=sizes.attributes)


class VgDetector(nn.Module):
    """The whole network, its parameters named as in detectron2. `optimise` it before use."""

    anchors: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        anchors: Tensor | None = None,
        port: Port = PORTS["detectron2"],
        proposals: int = PROPOSALS,
    ) -> None:
        super().__init__()
        self.sizes, self.port, self.proposals = sizes, port, proposals
        self.backbone = ResNetC4(blocks=sizes.blocks, width=sizes.width)
        self.proposal_generator = _ProposalGenerator(sizes)
        self.roi_heads = _RoiHeads(sizes)
        self.register_buffer("anchors", cell_anchors() if anchors is None else anchors, persistent=False)
        self.region_head: RegionHead = ConvolutionHead(self.roi_heads.res5, channels_last=False)

    def optimise(self, *, device: torch.device, compile: bool = False, chunk: int | None = None) -> None:
        """Fold the norms, choose layouts, move to the device: the same function, sooner."""
        fold(self)
        self.requires_grad_(False)
        self.to(device)
        self.backbone.to(memory_format=torch.channels_last)
        self.region_head = fast_head(self.roi_heads.res5, device=device, compile=compile, chunk=chunk)
        self.roi_heads.res5 = nn.Sequential()  # its weights live on in the head's own layout

    def detect(self, image: Tensor, *, scale: float = 1.0, attributes: bool = False) -> Detections:
        """(1, 3, H, W), BGR with the mean taken off, resized by `scale` -> everything seen in it."""
        height, width = image.shape[2:]
        feature_map = self.backbone(image)
        objectness, deltas = self.proposal_generator.rpn_head(feature_map)
        boxes = propose(
            objectness,
            deltas,
            anchors=self.anchors,
            width=width,
            height=height,
            scale=scale,
            convention=self.port.boxes,
            count=self.proposals,
        )
        features = self.region_head(feature_map, boxes)
        predictor, extent = self.roi_heads.box_predictor, self.port.boxes.extent
        logits = predictor.cls_score(features).float()
        scores = logits.softmax(1)[:, :-1]
        regressed = decode(
            boxes,
            predictor.deltas(features, scores.argmax(1)),
            weights=REGRESSION_WEIGHTS,
            extent=extent,
        )
        attribute_scores = None
        if attributes and self.sizes.attributes:
            attribute_scores = predictor.attribute_scores(
                features, logits, or_none=self.port.attribute_or_none
            )
        return Detections(
            proposals=boxes,
            features=features,
            scores=scores,
            regressed=clip(regressed, width=width, height=height, extent=extent),
            attribute_scores=attribute_scores,
        )
