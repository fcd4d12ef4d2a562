"""An image -> its stride-16 feature map (ResNet-101 up to res4); regions of that map -> res5.

Names and shapes of the parameters are those of detectron2's R_101_C4, so that its files load as they are.
Batch norm is frozen: `fold` turns every convolution with its norm into one convolution with a bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = (3, 4, 23)  # of res2, res3, res4
HEAD_BLOCKS = 3
_EPSILON = 1e-5


class FrozenNorm(nn.Module):
    """Batch norm by stored statistics."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=_EPSILON
        )


class NormedConv(nn.Conv2d):
    """A convolution without bias, followed by its frozen norm."""

    def __init__(
        self, channels_in: int, channels_out: int, size: int, *, stride: int = 1, dilation: int = 1
    ) -> None:
        geometry: dict[str, Any] = {
            "stride": stride,
            "padding": dilation * (size // 2),
            "dilation": dilation,
        }
        super().__init__(channels_in, channels_out, size, bias=False, **geometry)
        self.geometry = geometry
        self.norm = FrozenNorm(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))

    def folded(self) -> nn.Conv2d:
        """The same function as one convolution."""
        conv = nn.Conv2d(self.in_channels, self.out_channels, self.kernel_size[0], **self.geometry)
        norm = self.norm
        # In double precision: what is rounded once here is rounded in every image otherwise.
        scale = norm.weight.double() / (norm.running_var.double() + _EPSILON).sqrt()
        shift = norm.bias.double() - norm.running_mean.double() * scale
        conv.weight.data = (self.weight.double() * scale[:, None, None, None]).to(self.weight.dtype)
        conv.bias = nn.Parameter(shift.to(self.weight.dtype))
        return conv


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 around a shortcut; the stride is in the first 1x1, as in the original ResNet."""

    def __init__(
        self, channels_in: int, width: int, channels_out: int, *, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.shortcut: nn.Module | None = None
        if channels_in != channels_out:
            self.shortcut = NormedConv(channels_in, channels_out, 1, stride=stride)
        self.conv1: nn.Module = NormedConv(channels_in, width, 1, stride=stride)
        self.conv2: nn.Module = NormedConv(width, width, 3, dilation=dilation)
        self.conv3: nn.Module = NormedConv(width, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu_(self.conv1(x))
        y = F.relu_(self.conv2(y))
        y = self.conv3(y)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu_(y)


def stage(
    blocks: int, *, channels_in: int, width: int, channels_out: int, stride: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Bottlenecks in a row; the first one changes size and channels."""
    first = Bottleneck(channels_in, width, channels_out, stride=stride, dilation=dilation)
    others = [Bottleneck(channels_out, width, channels_out, dilation=dilation) for _ in range(blocks - 1)]
    return nn.Sequential(first, *others)


class Stem(nn.Module):
    """7x7 and a max pool as Caffe has it: no padding, but a last window that may hang over the edge."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1: nn.Module = NormedConv(3, channels, 7, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        return F.max_pool2d(F.relu_(self.conv1(image)), 3, stride=2, padding=0, ceil_mode=True)


class ResNetC4(nn.Module):
    """(N, 3, H, W) -> (N, 16 * width, h, w): a position for every 16 pixels, with Caffe's rounding."""

    def __init__(self, *, blocks: tuple[int, int, int] = BLOCKS, width: int = 64) -> None:
        super().__init__()
        self.stem = Stem(width)
        self.res2 = stage(blocks[0], channels_in=width, width=width, channels_out=4 * width)
        self.res3 = stage(blocks[1], channels_in=4 * width, width=2 * width, channels_out=8 * width, stride=2)
        self.res4 = stage(
            blocks[2], channels_in=8 * width, width=4 * width, channels_out=16 * width, stride=2
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.res4(self.res3(self.res2(self.stem(image))))


def res5(*, width: int = 64) -> nn.Sequential:
    """(R, 16 * width, 14, 14) -> (R, 32 * width, 14, 14): dilation instead of a stride, so the size stays."""
    return stage(HEAD_BLOCKS, channels_in=16 * width, width=8 * width, channels_out=32 * width, dilation=2)


def fold(module: nn.Module) -> None:
    """Replace every convolution-with-norm below a module by one convolution, in place."""
    for parent, name, conv in list(_normed(module)):
        setattr(parent, name, conv.folded())


def _normed(module: nn.Module) -> Iterator[tuple[nn.Module, str, NormedConv]]:
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, NormedConv):
                yield parent, name, child
