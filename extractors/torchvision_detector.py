"""A photograph -> the box-head features of a torchvision Faster R-CNN or one of its relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models
from torchvision.ops import clip_boxes_to_image

from ..errors import InputError
from ..schema import Regions
from .detections import Detections, choose_regions
from .extractor import Extractor, Photograph, RegionPolicy
from .torchvision_weights import torchvision_model

PROPOSALS = 300  # torchvision's own 1,000 cost three times as much and change little below the first hundred
MAX_ASPECT = 8.0  # longer pictures are squeezed: torchvision would scale their short side to nothing
_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"
_ZERO_EPS = ("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn")


class TorchvisionDetector:
    """Any torchvision detection model with RoI heads."""

    def __init__(
        self,
        model: Any,
        *,
        policy: RegionPolicy,
        device: str,
        class_names: Sequence[str] | None,
        config: Mapping[str, Any],
    ) -> None:
        model.to(device).eval()
        self._model = model
        self._policy, self._device, self._class_names = policy, torch.device(device), class_names
        transform = self._model.transform
        self._config = {
            **config,
            "min_size": list(transform.min_size),
            "max_size": transform.max_size,
            "max_aspect": MAX_ASPECT,
            "select": policy.select,
            "boxes": policy.boxes,
            "regions": [policy.min_regions, policy.max_regions],
        }
        self._dim = int(self._model.roi_heads.box_predictor.cls_score.in_features)

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def class_names(self) -> Sequence[str] | None:
        return self._class_names

    @property
    def attribute_names(self) -> None:
        return None

    def prepare(self, photograph: Photograph) -> npt.NDArray[np.uint8]:
        """The pixels themselves: torchvision's own transform resizes them, so that its numbers come out."""
        width, height = photograph.width, photograph.height
        longest = int(MAX_ASPECT * min(width, height))
        if max(width, height) <= longest:
            return photograph.pixels
        size = (min(width, longest), min(height, longest))
        return np.asarray(Image.fromarray(photograph.pixels).resize(size, Image.Resampling.BOX))

    def extract(
        self, prepared: Sequence[npt.NDArray[np.uint8]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        # One image at a time: torchvision pads a batch to its largest, which changes the others' features.
        return [self._regions(pixels, size) for pixels, size in zip(prepared, photographs, strict=True)]

    def _regions(self, pixels: npt.NDArray[np.uint8], original: tuple[int, int]) -> Regions:
        with torch.inference_mode():
            image = torch.from_numpy(np.array(pixels)).to(self._device).permute(2, 0, 1).float() / 255
            images, _ = self._model.transform([image])
            maps = self._model.backbone(images.tensors)
            maps = maps if isinstance(maps, dict) else {"0": maps}
            proposals = self._model.rpn(images, maps)[0]  # one (R, 4)
            heads = self._model.roi_heads
            features = heads.box_head(heads.box_roi_pool(maps, proposals, images.image_sizes))  # (R, D)
            logits, deltas = heads.box_predictor(features)  # (R, 1 + C), (R, 4 * (1 + C))
            scores = logits.softmax(1)[:, 1:]  # torchvision's background comes first
            height, width = images.image_sizes[0]
            boxes = heads.box_coder.decode(deltas, proposals)[:, 1:]  # (R, C, 4)
            found = Detections(
                proposals=proposals[0],
                features=features,
                scores=scores,
                regressed=clip_boxes_to_image(_of_best_class(boxes, scores), (height, width)),
            )
            return choose_regions(found, self._policy, original=original, resized=(width, height))


def _of_best_class(boxes: Tensor, scores: Tensor) -> Tensor:
    """(R, C, 4) and (R, C) -> (R, 4)."""
    return boxes[torch.arange(len(boxes), device=boxes.device), scores.argmax(1)]


def build(
    *,
    variant: str,
    weights: str | None,
    sha256: str | None,
    policy: RegionPolicy,
    device: str,
    compile: bool,
    proposals: int = PROPOSALS,
    min_size: int | None = None,
    max_size: int | None = None,
) -> Extractor:
    """torchvision:<detector> -> its extractor; the number of classes is read from the weights."""
    sizes = {"min_size": min_size, "max_size": max_size}
    settings = {name: size for name, size in sizes.items() if size is not None}

    def empty(state: Mapping[str, Tensor]) -> nn.Module:
        classes = {"num_classes": len(state[_CLASSIFIER])} if _CLASSIFIER in state else {}
        model: nn.Module = models.get_model(
            variant,
            weights=None,
            weights_backbone=None,
            rpn_post_nms_top_n_test=proposals,
            rpn_score_thresh=0.0,  # the small models drop doubtful proposals: too few would be left
            **classes,
            **settings,
        )
        return model

    known = models.list_models(module=models.detection)
    if variant in known and "rcnn" not in variant:
        with_heads = ", ".join(name for name in known if "rcnn" in name)
        raise InputError(
            f"torchvision:{variant}: has no regions of its own to describe; use one of {with_heads}"
        )
    model, identity, entry = torchvision_model(
        variant, family="torchvision", known=known, weights=weights, sha256=sha256, build=empty
    )
    if variant in _ZERO_EPS and entry is not None and entry.name in ("COCO_V1", "COCO_LEGACY"):
        _zero_eps(model)
    names = _class_names(variant, int(cast(Any, model).roi_heads.box_predictor.cls_score.out_features))
    if compile:
        cast(Any, model).backbone = torch.compile(cast(nn.Module, model.backbone))
    return TorchvisionDetector(
        model,
        policy=policy,
        device=device,
        class_names=names,
        config={"model": f"torchvision:{variant}", "weights": identity, "proposals": proposals},
    )


def _zero_eps(model: nn.Module) -> None:
    """These files were trained with a batch norm that adds nothing to the variance, as torchvision knows."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0


def _class_names(variant: str, outputs: int) -> Sequence[str] | None:
    """The names of torchvision's own training set, where the weights have as many classes."""
    for entry in models.get_model_weights(variant):
        categories = entry.meta.get("categories", [])
        if len(categories) == outputs:
            return tuple(categories[1:])
    return None
