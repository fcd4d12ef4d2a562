"""Pooled regions -> 2048 numbers each: res5 on the CPU as matrix products, its 3x3 convolutions by Winograd.

With dilation 2 the 14x14 positions fall into four interleaved 7x7 quarters that never see each other, and
each quarter is an ordinary 3x3 convolution with padding 1. Two 4-wide tiles cover 7 positions, so F(4x4, 3x3)
needs 2x2 tiles of 36 products instead of 49 x 9 = 441: a third of the arithmetic in half of the network.

Activations stay in one layout from the pooling to the mean: (49 positions, 4 quarters of each region,
channels). A 1x1 convolution is one product with it, and both Winograd transforms are products from the left,
because a transform of positions does not care how many channels it is applied to. See Lavin & Gray, 2016.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .resnet_c4 import Bottleneck
from .roi_max_pool import CELLS, SIDE

_HALF = SIDE // 2  # 7
_TILE, _TAPS = 4, 3
_POINTS = _TILE + _TAPS - 1  # 6
_TILES = -(-_HALF // _TILE)  # 2 per axis
_AT = (0.0, 1.0, -1.0, 2.0, -2.0)  # and infinity: where the polynomials are evaluated


def _evaluation(terms: int) -> Tensor:
    """Polynomials of so many terms -> their values at the six points, (6, terms)."""
    points = torch.tensor(_AT, dtype=torch.float64)
    at_infinity = torch.zeros(1, terms, dtype=torch.float64)
    at_infinity[0, -1] = 1
    return torch.cat([points[:, None] ** torch.arange(terms), at_infinity])


def transforms() -> tuple[Tensor, Tensor, Tensor]:
    """-> inputs (36 * 4, 49), filters (6, 3), outputs (49, 36 * 4), in double precision.

    Rows of the first and columns of the last are ordered (6, 6 points, 2, 2 tiles).
    """
    from_tile = torch.linalg.inv(_evaluation(_POINTS)).T  # (6, 6): correlation is convolution's adjoint
    to_tile = _evaluation(_TILE).T  # (4, 6)
    inputs = torch.zeros(_POINTS, _TILES, _HALF, dtype=torch.float64)
    outputs = torch.zeros(_HALF, _POINTS, _TILES, dtype=torch.float64)
    for tile in range(_TILES):
        for k in range(_POINTS):
            position = tile * _TILE + k - 1  # one of padding in front
            if 0 <= position < _HALF:
                inputs[:, tile, position] = from_tile[:, k]
        for k in range(min(_TILE, _HALF - tile * _TILE)):
            outputs[tile * _TILE + k, :, tile] = to_tile[k]
    both_in = torch.einsum("ati,bsj->abtsij", inputs, inputs)
    both_out = torch.einsum("iat,jbs->ijabts", outputs, outputs)
    tiles = _POINTS**2 * _TILES**2
    return both_in.reshape(tiles, CELLS), _evaluation(_TAPS), both_out.reshape(CELLS, tiles)


class WinogradBlock(nn.Module):
    """A folded bottleneck of dilation 2, on (49, S, C) instead of (N, C, 14, 14)."""

    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        conv1, conv2, conv3, shortcut = block.conv1, block.conv2, block.conv3, block.shortcut
        assert isinstance(conv1, nn.Conv2d)
        assert isinstance(conv2, nn.Conv2d)
        assert isinstance(conv3, nn.Conv2d)
        assert conv2.dilation == (2, 2)
        _, taps, _ = transforms()
        filters = torch.einsum("ak,bl,oikl->abio", taps, taps, conv2.weight.double().cpu())
        self.reduce, self.reduce_bias = _product(conv1)
        self.spatial = _parameter(filters.flatten(0, 1).float())  # (36, C, C)
        self.spatial_bias = _bias(conv2)
        self.expand, expand_bias = _product(conv3)
        self.project: nn.Parameter | None = None
        if shortcut is not None:
            assert isinstance(shortcut, nn.Conv2d)
            self.project, project_bias = _product(shortcut)
            expand_bias = _parameter(expand_bias + project_bias)
        self.expand_bias = expand_bias

    def forward(self, x: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        quarters = x.shape[1]  # S
        x = x.flatten(0, 1)  # (49 S, C)
        y = F.relu_(torch.addmm(self.reduce_bias, x, self.reduce))
        width = y.shape[1]
        y = inputs @ y.view(CELLS, quarters * width)  # (144, 49) x (49, S w)
        y = torch.bmm(y.view(_POINTS**2, _TILES**2 * quarters, width), self.spatial)  # (36, 4 S, w)
        y = outputs @ y.view(-1, quarters * width)  # (49, 144) x (144, S w)
        y = F.relu_(y.view(-1, width).add_(self.spatial_bias))
        if self.project is None:
            x.add_(self.expand_bias)  # of the block before, which nobody else reads
        else:
            x = torch.addmm(self.expand_bias, x, self.project)
        return F.relu_(x.addmm_(y, self.expand)).view(CELLS, quarters, -1)


class WinogradHead(nn.Module):
    """(49, 4n, C) from RangeMaxima.pool -> features (n, 2 C)."""

    inputs: Tensor
    outputs: Tensor

    def __init__(self, res5: nn.Sequential) -> None:
        super().__init__()
        inputs, _, outputs = transforms()
        self.register_buffer("inputs", inputs.float())
        self.register_buffer("outputs", outputs.float())
        blocks = []
        for block in res5:
            assert isinstance(block, Bottleneck)
            blocks.append(WinogradBlock(block))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, pooled: Tensor) -> Tensor:
        x = pooled
        for block in self.blocks:
            x = block(x, self.inputs, self.outputs)
        return x.view(CELLS, -1, 4, x.shape[2]).mean((0, 2))


def _parameter(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().contiguous(), requires_grad=False)


def _bias(conv: nn.Conv2d) -> nn.Parameter:
    assert conv.bias is not None
    return _parameter(conv.bias)


def _product(conv: nn.Conv2d) -> tuple[nn.Parameter, nn.Parameter]:
    """A 1x1 convolution -> its matrix (in, out) and bias."""
    assert conv.kernel_size == (1, 1)
    return _parameter(conv.weight[:, :, 0, 0].T), _bias(conv)
