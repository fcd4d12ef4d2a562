"""Encoded images and captions -> their whole score matrix, in tiles that fit the cache.

Captions are bucketed by length, so that no tile computes padding; the tile's size bounds the memory, whatever
the size of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from .encoded import Encoded
from .matcher import Matcher

CPU_TILE_BYTES = 20 << 20  # measured: a tile's rows stay in the last-level cache between the steps of a score
GPU_TILE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of the score matrix: some images with some captions of one length."""

    rows: slice
    columns: Tensor  # (width,)
    texts: Encoded  # the captions of those columns, without padding


def tile_pairs(
    model: Matcher, images: Encoded, words: int, *, tile_bytes: int | None = None, gradient: bool = False
) -> int:
    """How many pairs of these images with captions of so many words may be scored at once."""
    if tile_bytes is None:
        tile_bytes = CPU_TILE_BYTES if images.mask.device.type == "cpu" else GPU_TILE_BYTES
    floats = model.pair_floats(images.mask.shape[1], words, gradient=gradient)
    return max(1, tile_bytes // (floats * images.local.element_size()))


def length_buckets(lengths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Lengths (n,) -> (length, the rows that have it), shortest first."""
    for length in sorted(set(lengths.tolist())):
        yield length, (lengths == length).nonzero().flatten()


def tiles(
    model: Matcher,
    images: Encoded,
    texts: Encoded,
    *,
    tile_bytes: int | None = None,
    gradient: bool = False,
) -> Iterator[Tile]:
    """Every pair of the matrix in exactly one tile."""
    for length, columns in length_buckets(texts.lengths):
        bucket = texts.index(columns).trim(length)
        pairs = tile_pairs(model, images, length, tile_bytes=tile_bytes, gradient=gradient)
        width = _even(len(bucket), max(1, isqrt(pairs)))
        height = _even(len(images), max(1, pairs // width))
        for left in range(0, len(bucket), width):
            across = slice(left, left + width)
            for top in range(0, len(images), height):
                yield Tile(slice(top, top + height), columns[across], bucket.index(across))


def _even(count: int, most: int) -> int:
    """The size of nearly equal parts, none larger than `most`: a thin last one would waste its products."""
    return -(-count // -(-count // most)) if count else 1


@torch.no_grad()
def score_matrix(model: Matcher, images: Encoded, texts: Encoded, *, tile_bytes: int | None = None) -> Tensor:
    """Every image with every caption, without gradient -> (nI, nT), at least single precision."""
    precision = torch.promote_types(images.local.dtype, torch.float32)
    scores = images.local.new_empty(len(images), len(texts), dtype=precision)
    for tile in tiles(model, images, texts, tile_bytes=tile_bytes):
        block = model.score_block(images.index(tile.rows), tile.texts)
        scores[tile.rows, tile.columns] = block.to(precision)
    return scores
