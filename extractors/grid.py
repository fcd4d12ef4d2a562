"""A photograph -> the cells of a backbone's last feature map: regions without a detector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision import models
from torchvision.ops import Permute

from ..errors import InputError
from ..schema import Regions
from .extractor import Extractor, Photograph, RegionPolicy
from .torchvision_weights import torchvision_model

STRIDE = 32  # of every supported backbone
SHORT_SIDE = 384
MAX_ASPECT = 2.0  # longer pictures are squeezed: a 1x5000 strip still gives 6x6 cells
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what torchvision's classifiers are trained with
_NO_TRUNK = ("googlenet", "inception_v3")  # branches and auxiliary heads instead of one stack
_HEADS = ("fc", "classifier", "head", "avgpool")


class Grid:
    """The last feature map of a classifier, averaged over side x side equal cells."""

    def __init__(
        self, trunk: nn.Module, *, side: int, device: str, short_side: int, config: Mapping[str, Any]
    ) -> None:
        # Sides are multiples of side x stride, so that each cell is the mean of whole map positions.
        self._unit = side * STRIDE
        self._short_side = max(round(short_side / self._unit), 1) * self._unit
        self._side, self._device = side, torch.device(device)
        self._trunk = trunk.to(self._device).to(memory_format=torch.channels_last)
        self._mean = torch.tensor(_MEAN, device=self._device).view(3, 1, 1) * 255
        self._std = torch.tensor(_STD, device=self._device).view(3, 1, 1) * 255
        self._config = {
            **config,
            "short_side": self._short_side,
            "max_aspect": MAX_ASPECT,
            "cells": [side, side],
        }
        blank = np.zeros((self._unit, self._unit, 3), np.uint8)
        self._dim = self._cells(blank).shape[1]

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def class_names(self) -> None:
        return None

    @property
    def attribute_names(self) -> None:
        return None

    def prepare(self, photograph: Photograph) -> npt.NDArray[np.uint8]:
        """Resize to the nearest multiples of the unit: five shapes in all, so nothing is ever padded."""
        aspect = min(max(photograph.width / photograph.height, 1 / MAX_ASPECT), MAX_ASPECT)
        long = round(self._short_side * max(aspect, 1 / aspect) / self._unit) * self._unit
        size = (long, self._short_side) if aspect >= 1 else (self._short_side, long)
        resized = Image.fromarray(photograph.pixels).resize(size, Image.Resampling.BILINEAR)
        return np.asarray(resized)

    def extract(
        self, prepared: Sequence[npt.NDArray[np.uint8]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        return [
            Regions(
                boxes=cell_boxes(width, height, side=self._side),
                features=self._cells(pixels).cpu().numpy(),
                width=width,
                height=height,
            )
            for pixels, (width, height) in zip(prepared, photographs, strict=True)
        ]

    def _cells(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        # One image at a time: convolutions pick their algorithm by batch size, and the last bits with it.
        with torch.inference_mode():
            image = torch.from_numpy(np.array(pixels)).to(self._device).permute(2, 0, 1)
            image = (image - self._mean) / self._std  # (3, h, w)
            grid = self._trunk(image[None].contiguous(memory_format=torch.channels_last))
            cells = F.adaptive_avg_pool2d(grid, self._side)  # (1, D, h/32, w/32) -> (1, D, side, side)
            return cells[0].flatten(1).T.contiguous().float()  # (side * side, D)


def cell_boxes(width: int, height: int, *, side: int) -> npt.NDArray[np.float32]:
    """An image's size -> its cells row by row, (side * side, 4) xyxy."""
    x = np.linspace(0, width, side + 1)
    y = np.linspace(0, height, side + 1)
    boxes = [[x[j], y[i], x[j + 1], y[i + 1]] for i in range(side) for j in range(side)]
    return np.array(boxes, np.float32)


def feature_map(model: nn.Module) -> nn.Module | None:
    """A torchvision classifier -> its part up to the last feature map (N, D, h, w), if it has one."""
    parts = dict(model.named_children())
    if {"features", "norm", "permute"} <= parts.keys():  # Swin: channels last inside
        return nn.Sequential(parts["features"], parts["norm"], Permute([0, 3, 1, 2]))
    if "features" in parts:
        after = [nn.ReLU()] if isinstance(model, models.DenseNet) else []
        return nn.Sequential(parts["features"], *after)
    if "trunk_output" in parts:
        return nn.Sequential(parts["stem"], parts["trunk_output"])
    if "layer4" in parts:
        stem = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
        return nn.Sequential(*(parts[name] for name in stem))
    return None


def build(
    *,
    variant: str,
    weights: str | None,
    sha256: str | None,
    policy: RegionPolicy,
    device: str,
    compile: bool,
    short_side: int = SHORT_SIDE,
) -> Extractor:
    """grid:<backbone> -> its extractor; side x side cells with side² = the number of regions asked for."""
    side = math.isqrt(policy.max_regions)
    if side * side != policy.max_regions or policy.min_regions != policy.max_regions:
        raise InputError(
            f"grid:{variant}: {policy.min_regions} to {policy.max_regions} regions asked for, but a grid has "
            "a square number of cells in every image; use --regions 36 (6x6) or 49 (7x7)"
        )
    if policy.boxes == "regressed" or policy.with_both_boxes:
        raise InputError(f"grid:{variant}: cells are not regressed; use --boxes proposal")
    model, identity, _ = torchvision_model(
        variant,
        family="grid",
        known=[name for name in models.list_models(module=models) if name not in _NO_TRUNK],
        weights=weights,
        sha256=sha256,
        build=lambda _: _headless(variant),
        ignore=_HEADS,
    )
    trunk = feature_map(model)
    assert trunk is not None
    return Grid(
        cast(nn.Module, torch.compile(trunk)) if compile else trunk,
        side=side,
        device=device,
        short_side=short_side,
        config={"model": f"grid:{variant}", "weights": identity, "mean": _MEAN, "std": _STD},
    )


def _headless(name: str) -> nn.Module:
    """The empty classifier up to its feature map, so that the file of any fine-tuned head fits."""
    model: nn.Module = models.get_model(name, weights=None)
    if feature_map(model) is None:
        raise InputError(
            f"grid:{name}: this model has no feature map of stride {STRIDE}; "
            "use a ResNet, ResNeXt, RegNet, DenseNet, ConvNeXt, EfficientNet, MobileNet, VGG or Swin"
        )
    for head in _HEADS:
        if hasattr(model, head):
            setattr(model, head, nn.Identity())
    return model
