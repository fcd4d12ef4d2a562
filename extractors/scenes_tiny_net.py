"""Images of one shape -> proposals -> 2048-d regions: a small Faster R-CNN on torchvision's parts.

The region feature is one ReLU layer below every prediction (kind, colour, texture, size, setting, box), so
each of these can be read from it linearly. Besides the pooled pixels it sees where the region lies and the
mean of the whole picture, which is how a region of bare sky still says 'beach'.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import AnchorGenerator, RegionProposalNetwork, RPNHead
from torchvision.ops import clip_boxes_to_image, roi_align

from ..manifests.scenes.scene import BACKGROUNDS, COLOURS, KINDS, SIZES, TEXTURES

DIM = 2048
STRIDE = 8
SHORT_SIDE = 224
LONG_SIDES = (224, 288, 336)  # every picture is brought to one of five shapes: nothing is ever padded
PROPOSALS = 64
PIXEL_MEAN, PIXEL_SCALE = 127.5, 63.75

_WIDTHS = (24, 48, 96)
_POOL = 7  # RoIAlign's side
_ANCHOR_SIZES = (38, 60, 92, 150)  # small, medium and large things, and what real photographs may hold
_ANCHOR_RATIOS = (0.7, 1.0, 1.4)
BOX_CODER = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))


class Predictions(NamedTuple):
    """What the heads say of n regions."""

    kinds: Tensor  # (n, 17), 'nothing' last
    colours: Tensor  # (n, 10)
    textures: Tensor  # (n, 4)
    sizes: Tensor  # (n, 3)
    settings: Tensor  # (n, 8), of the picture the region is in
    deltas: Tensor  # (n, 4), the same for every kind


def network_size(width: int, height: int) -> tuple[int, int]:
    """An image's size -> the (width, height) nearest in shape that the network is trained for."""
    aspect = max(width, height) / min(width, height)
    long = min(LONG_SIDES, key=lambda side: abs(side / SHORT_SIDE - aspect))
    return (long, SHORT_SIDE) if width >= height else (SHORT_SIDE, long)


class ScenesTinyNet(nn.Module):
    """norm=True has batch norm and is for training; `fold` turns its state into that of norm=False."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        first, second, third = _WIDTHS
        self.trunk = nn.Sequential(
            ConvBlock(3, first, stride=2, norm=norm),
            ConvBlock(first, second, stride=2, norm=norm),
            ConvBlock(second, second, norm=norm),
            ConvBlock(second, third, stride=2, norm=norm),
            Residual(third, norm=norm),
            Residual(third, norm=norm),
        )
        # Confident proposals crowd around few things: of 500 sometimes only 40 are left, of 1,000 always 64.
        candidates = 500 if norm else 1000
        anchors = AnchorGenerator(sizes=(_ANCHOR_SIZES,), aspect_ratios=(_ANCHOR_RATIOS,))
        self.rpn = RegionProposalNetwork(
            anchors,
            RPNHead(third, anchors.num_anchors_per_location()[0]),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=128,
            positive_fraction=0.5,
            pre_nms_top_n={"training": candidates, "testing": candidates},
            post_nms_top_n={"training": 100, "testing": PROPOSALS},
            nms_thresh=0.7,
        )
        self.shrink = ConvBlock(third, 128, stride=2, padding=0, norm=norm)  # 7x7 -> 3x3
        self.surroundings = nn.Sequential(nn.Linear(third, 64), nn.ReLU())
        self.place = nn.Sequential(nn.Linear(7, 32), nn.ReLU())
        self.feature = nn.Sequential(nn.Linear(128 * 9 + 64 + 32, DIM), nn.ReLU())
        self.heads = nn.ModuleDict(
            {
                "kinds": nn.Linear(DIM, len(KINDS) + 1),
                "colours": nn.Linear(DIM, len(COLOURS)),
                "textures": nn.Linear(DIM, len(TEXTURES)),
                "sizes": nn.Linear(DIM, len(SIZES)),
                "settings": nn.Linear(DIM, len(BACKGROUNDS)),
                "deltas": nn.Linear(DIM, 4),
            }
        )

    def see(self, images: Tensor) -> Tensor:
        """(B, 3, h, w) pixels 0..255 -> the feature map (B, 96, h/8, w/8)."""
        images = (images - PIXEL_MEAN) / PIXEL_SCALE
        grid: Tensor = self.trunk(images.contiguous(memory_format=torch.channels_last))
        return grid.contiguous()  # RoIAlign and the RPN's reshapes are faster on it

    def propose(
        self, grid: Tensor, *, targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """A feature map -> the proposals of each image, best first, and in training the RPN's losses."""
        height, width = grid.shape[2] * STRIDE, grid.shape[3] * STRIDE
        canvas = torch.empty(len(grid), 3, height, width, device="meta")
        images = ImageList(canvas, [(height, width)] * len(grid))
        proposals, losses = self.rpn(images, OrderedDict([("0", grid)]), targets)
        return proposals, losses

    def describe(self, grid: Tensor, boxes: list[Tensor]) -> Tensor:
        """A feature map and the boxes of each image -> (n, 2048), image after image."""
        pooled = roi_align(grid, boxes, _POOL, spatial_scale=1 / STRIDE, sampling_ratio=2, aligned=True)
        pixels = self.shrink(pooled).flatten(1)  # (n, 96, 7, 7) -> (n, 128 * 9)
        around = self.surroundings(grid.mean((2, 3)))  # (B, 64)
        counts = torch.tensor([len(each) for each in boxes], device=grid.device)
        around = around.repeat_interleave(counts, dim=0)  # (n, 64)
        size = grid.new_tensor([grid.shape[3], grid.shape[2]]) * STRIDE
        place = self.place(_place(torch.cat(boxes), size))  # (n, 32)
        feature: Tensor = self.feature(torch.cat([pixels, around, place], dim=1))
        return feature

    def predict(self, features: Tensor) -> Predictions:
        """(n, 2048) -> what the heads say."""
        return Predictions(**{name: head(features) for name, head in self.heads.items()})

    def regress(self, deltas: Tensor, boxes: Tensor, *, height: int, width: int) -> Tensor:
        """Proposals and their deltas -> tighter boxes, (n, 4)."""
        tight = BOX_CODER.decode_single(deltas, boxes)
        clipped: Tensor = clip_boxes_to_image(tight, (height, width))
        return clipped


def _place(boxes: Tensor, size: Tensor) -> Tensor:
    """(n, 4) xyxy and (width, height) -> (n, 7): corners, sides and area, as shares of the picture."""
    corners = boxes.view(-1, 2, 2) / size
    sides = corners[:, 1] - corners[:, 0]
    return torch.cat([corners.flatten(1), sides, sides.prod(1, keepdim=True)], dim=1)


class ConvBlock(nn.Sequential):
    """3x3 convolution, batch norm while training, ReLU."""

    def __init__(
        self, channels: int, out: int, *, norm: bool, stride: int = 1, padding: int = 1, relu: bool = True
    ) -> None:
        parts = OrderedDict[str, nn.Module]()
        parts["conv"] = nn.Conv2d(channels, out, 3, stride=stride, padding=padding, bias=not norm)
        if norm:
            parts["norm"] = nn.BatchNorm2d(out)
        if relu:
            parts["relu"] = nn.ReLU(inplace=True)
        super().__init__(parts)


class Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, channels: int, *, norm: bool) -> None:
        super().__init__()
        self.first = ConvBlock(channels, channels, norm=norm)
        self.second = ConvBlock(channels, channels, norm=norm, relu=False)

    def forward(self, grid: Tensor) -> Tensor:
        return torch.relu(grid + self.second(self.first(grid)))


def fold(net: ScenesTinyNet) -> dict[str, Tensor]:
    """A trained net -> the state of the same net without batch norm."""
    state = dict(net.state_dict())
    for name, module in net.named_modules():
        norm, conv = getattr(module, "norm", None), getattr(module, "conv", None)
        if not isinstance(norm, nn.BatchNorm2d) or not isinstance(conv, nn.Conv2d):
            continue
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)  # (out,)
        for key in [key for key in state if key.startswith(f"{name}.norm.")]:
            del state[key]
        state[f"{name}.conv.weight"] = conv.weight * scale.view(-1, 1, 1, 1)
        state[f"{name}.conv.bias"] = norm.bias - norm.running_mean * scale
    return {name: tensor.detach().clone() for name, tensor in state.items()}
