"""Rows and a linear layer -> what ReLU leaves of its outputs: most of the time of a score."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import onednn
from .scratch import may_overwrite, scratch


def relu_layer(layer: nn.Linear, rows: Tensor) -> Tensor:
    """(…, in) -> (…, out); without gradient, memory that is valid until this thread asks again."""
    if not may_overwrite(rows):
        return layer(rows).relu_()
    if onednn.usable(rows):
        return onednn.linear(rows, layer.weight, layer.bias).relu_()
    out = scratch("relu_layer", (*rows.shape[:-1], layer.out_features), like=rows)
    flat = rows.reshape(-1, layer.in_features)
    torch.addmm(layer.bias, flat, layer.weight.mT, out=out.view(-1, layer.out_features))
    return out.relu_()


def perceptron(layers: nn.Sequential, rows: Tensor) -> Tensor:
    """Linear, ReLU, linear: (…, in) -> (…, out)."""
    first, second, *rest = layers
    if not isinstance(first, nn.Linear) or not isinstance(second, nn.ReLU):
        return layers(rows)
    out = relu_layer(first, rows)
    for layer in rest:
        out = layer(out)
    return out
