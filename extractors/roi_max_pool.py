"""A feature map and boxes -> each box's 14x14 bins of maxima, from tables of range maxima.

torchvision's roi_pool looks at every pixel of every bin, channel by channel, on one thread. Here the maxima
of all windows of 1, 2, 4... rows and columns are computed once for the whole map; any bin is then the maximum
of four entries, each a contiguous row of channels. The numbers are the same to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 14  # bins per axis
CELLS = (SIDE // 2) ** 2  # positions of one of the four interleaved quarters
_SCALE = 1 / 16


class RangeMaxima:
    """The feature map of one image (1, C, h, w), ready to be pooled."""

    def __init__(self, feature_map: Tensor) -> None:
        _, channels, height, width = feature_map.shape
        self.height, self.width = height, width
        grid = feature_map[0].permute(1, 2, 0).contiguous()  # (h, w, C)
        self._row_levels, self._column_levels = _levels(height), _levels(width)
        # The last row is what an empty bin has.
        rows = self._row_levels * self._column_levels * height * width
        self._table = grid.new_zeros(rows + 1, channels)
        tables = self._table[:rows].view(self._row_levels, self._column_levels, height, width, channels)
        tables[0, 0] = grid
        for level in range(1, self._row_levels):
            _doubled(tables[level - 1, 0], tables[level, 0], by=1 << (level - 1), dim=0)
        for level in range(1, self._column_levels):
            for rows_level in range(self._row_levels):
                _doubled(tables[rows_level, level - 1], tables[rows_level, level], by=1 << (level - 1), dim=1)

    def pool(self, boxes: Tensor) -> Tensor:
        """Boxes (n, 4) in pixels of the image -> (49, 4n, C).

        The 14x14 bins are four interleaved 7x7 quarters: bin (2i + a, 2j + b) of box k is row
        [7i + j, 4k + 2a + b].
        """
        top, bottom, row_level = _bins(boxes[:, 1], boxes[:, 3], size=self.height)  # (n, 14)
        left, right, column_level = _bins(boxes[:, 0], boxes[:, 2], size=self.width)
        level = row_level[:, :, None] * self._column_levels + column_level[:, None, :]  # (n, 14, 14)
        base = level * (self.height * self.width)
        empty = (row_level < 0)[:, :, None] | (column_level < 0)[:, None, :]
        best: Tensor | None = None
        for row in (top, bottom):
            for column in (left, right):
                index = base + row[:, :, None] * self.width + column[:, None, :]
                index = _quartered(index.masked_fill(empty, len(self._table) - 1))
                entries = self._table.index_select(0, index)  # (49 * 4n, C)
                best = entries if best is None else torch.maximum(best, entries, out=best)
        assert best is not None
        return best.view(CELLS, 4 * len(boxes), -1)


def _levels(size: int) -> int:
    """How many powers of two fit into the longest bin of a map of that size."""
    longest = min(-(-size // SIDE) + 1, size)
    return longest.bit_length()


def _doubled(half: Tensor, full: Tensor, *, by: int, dim: int) -> None:
    """Maxima of windows of length `by` -> those of twice the length; windows over the edge are cut off."""
    length = half.shape[dim]
    full.copy_(half)
    if by < length:
        inner = full.narrow(dim, 0, length - by)
        torch.maximum(inner, half.narrow(dim, by, length - by), out=inner)


def _bins(low: Tensor, high: Tensor, *, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """One axis of the boxes (n,) -> (n, 14) each: first and last window, and their level, -1 if empty."""
    # Halves round up, as C's round does for positive numbers; torch.round would go to the even side.
    first = (low * _SCALE + 0.5).floor()
    last = (high * _SCALE + 0.5).floor()
    step = (last - first + 1).clamp(min=1) / SIDE
    ordinal = torch.arange(SIDE, device=low.device, dtype=low.dtype)
    start = ((ordinal * step[:, None]).floor() + first[:, None]).clamp(0, size).long()
    stop = (((ordinal + 1) * step[:, None]).ceil() + first[:, None]).clamp(0, size).long()
    length = stop - start
    level = torch.full_like(length, -1)
    for power in range(_levels(size)):
        level[length >= 1 << power] = power
    window = 1 << level.clamp(min=0)
    return start.clamp(max=size - 1), (stop - window).clamp(min=0), level


def _quartered(index: Tensor) -> Tensor:
    """(n, 14, 14) -> flat, in the order of (7, 7, n, 2, 2)."""
    half = SIDE // 2
    return index.view(-1, half, 2, half, 2).permute(1, 3, 0, 2, 4).reshape(-1)
