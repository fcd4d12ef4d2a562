"""A feature map and boxes -> each box's feature: pooled, through res5, averaged, so many boxes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torchvision.ops import roi_pool

from ..errors import InputError
from .proposals import STRIDE
from .roi_max_pool import CELLS, SIDE, RangeMaxima
from .winograd_head import WinogradHead

# Both divide the usual 300 boxes. A CPU likes what fits its cache (60 take 10% longer), a GPU likes many.
CPU_CHUNK, GPU_CHUNK = 20, 100

RegionHead = Callable[[Tensor, Tensor], Tensor]
"""Feature map (1, C, h, w) and boxes (R, 4) in pixels of the image -> features (R, D)."""


class ConvolutionHead:
    """res5 as it is written: on a GPU, and as the yardstick of everything faster."""

    def __init__(
        self, res5: nn.Module, *, chunk: int = GPU_CHUNK, pad: bool = False, channels_last: bool = True
    ) -> None:
        self._res5, self._chunk, self._pad = res5, chunk, pad
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, feature_map: Tensor, boxes: Tensor) -> Tensor:
        # Once, not in every chunk; and in float32, because coordinates do not fit float16.
        feature_map = feature_map.float().contiguous()
        features = []
        for part, count in _chunks(boxes, self._chunk, pad=self._pad):
            pooled = roi_pool(feature_map, [part], SIDE, 1 / STRIDE)  # (n, C, 14, 14)
            features.append(self._res5(pooled.contiguous(memory_format=self._format)).mean((2, 3))[:count])
        return torch.cat(features)


class MatrixHead:
    """The same function as matrix products: on a CPU."""

    def __init__(
        self, products: Callable[[Tensor], Tensor], *, chunk: int = CPU_CHUNK, pad: bool = False
    ) -> None:
        self._products, self._chunk, self._pad = products, chunk, pad

    def __call__(self, feature_map: Tensor, boxes: Tensor) -> Tensor:
        maxima = RangeMaxima(feature_map)
        chunks = _chunks(boxes, self._chunk, pad=self._pad)
        return torch.cat([self._products(maxima.pool(part))[:count] for part, count in chunks])


def fast_head(
    res5: nn.Sequential, *, device: torch.device, compile: bool, chunk: int | None = None
) -> RegionHead:
    """A folded res5 -> its fastest form on the device. Compiling happens here, not in the first image."""
    chunk = chunk or (CPU_CHUNK if device.type == "cpu" else GPU_CHUNK)
    channels = next(res5.parameters()).shape[1]
    if device.type == "cpu":
        products: nn.Module = WinogradHead(res5)
        if compile:
            products = _compiled(products, torch.zeros(CELLS, 4 * chunk, channels), freeze=True)
        return MatrixHead(products, chunk=chunk, pad=compile)
    blocks: nn.Module = res5.to(memory_format=torch.channels_last)
    if compile:
        example = torch.zeros(chunk, channels, SIDE, SIDE, device=device)
        blocks = _compiled(blocks, example.contiguous(memory_format=torch.channels_last), freeze=False)
    return ConvolutionHead(blocks, chunk=chunk, pad=compile)


def _chunks(boxes: Tensor, size: int, *, pad: bool) -> Iterator[tuple[Tensor, int]]:
    """Boxes (R, 4) -> chunks, and how many boxes of each are real.

    pad gives all chunks one size, as graphs are compiled by shape. No boxes are one chunk without a real one.
    """
    for start in range(0, max(len(boxes), 1), size):
        part = boxes[start : start + size]
        padding = size - len(part) if pad else int(len(part) == 0)
        yield torch.cat([part, part.new_zeros(padding, 4)]) if padding else part, len(part)


def _compiled(module: nn.Module, example: Tensor, *, freeze: bool) -> nn.Module:
    compiled: nn.Module = torch.compile(module, dynamic=False, options={"freezing": freeze})  # type: ignore[assignment]
    try:
        with torch.inference_mode():
            compiled(example)
    except Exception as error:  # of whatever compiler torch found, or did not
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"--compile: torch could not compile the network ({first[:160]}); "
            "install a C++ compiler, or run without --compile"
        ) from error
    return compiled
