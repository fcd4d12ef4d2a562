"""Blocks of images with all captions -> the hardest negatives both ways, and never the score matrix.

Of a block of images all captions are scored, tile by tile; a tile updates the running lists of its images and
of its captions. When a block is done its images' lists are final, and the captions' lists are the only state.
Where a score is the dot product of two vectors a tile is one product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError
from ..models import onednn
from ..models.encoded import Encoded
from ..models.matcher import Matcher
from ..models.tiles import score_matrix
from .search_index import has_global_vectors
from .split_scores import ENCODE_ROWS, SplitRows, encode_captions, encode_images
from .top_lists import TopLists

Ints = npt.NDArray[np.int64]

BLOCK = 1024  # images whose lists grow together, where a tile is one product of matrices
DEAR_BLOCK = 256  # where every pair is looked at: a kill loses no more than the block under way
TILE = 1024  # captions scored with them at once: the tile stays in the cache while the lists look at it

ScoreTile = Callable[[slice], Tensor]
"""Some captions -> their scores with a block of images, (images, captions); the caller may write on them."""
ScoreBlocks = Callable[[slice], ScoreTile]
"""A block of images -> how its tiles are scored."""


@dataclass(frozen=True)
class HiddenPairs:
    """Pairs that are no negatives: (n,) image and caption rows, sorted by image."""

    images: Ints
    captions: Ints

    def of_block(self, block: slice) -> HiddenPairs:
        """Those of some images, counted from the first of them and sorted by caption."""
        low, high = np.searchsorted(self.images, [block.start, block.stop])
        order = low + np.argsort(self.captions[low:high], kind="stable")
        return HiddenPairs(self.images[order] - block.start, self.captions[order])

    def of_tile(self, tile: slice) -> tuple[Ints, Ints]:
        """Rows and columns of those of a block that fall into a tile."""
        low, high = np.searchsorted(self.captions, [tile.start, tile.stop])
        return self.images[low:high], self.captions[low:high] - tile.start


def hidden_pairs(rows: SplitRows, *, skip_identical: bool = False) -> HiddenPairs:
    """Every caption with its own image; `skip_identical`: also with the images that another caption of the
    same words belongs to.
    """
    captions = np.arange(len(rows.caption_ids))
    images = rows.caption_image
    if skip_identical:
        number: dict[bytes, int] = {}
        tokens, lengths = rows.tokens.pad(rows.caption_rows)
        texts = np.array(
            [
                number.setdefault(words[:length].tobytes(), len(number))
                for words, length in zip(tokens, lengths, strict=True)
            ]
        )
        owners = np.unique(np.stack([texts, images], axis=1), axis=0)  # (text, image), sorted by text
        first = np.searchsorted(owners[:, 0], texts, side="left")
        count = np.searchsorted(owners[:, 0], texts, side="right") - first
        captions = np.repeat(captions, count)
        within = np.arange(len(captions)) - np.repeat(np.cumsum(count) - count, count)
        images = owners[np.repeat(first, count) + within, 1]
    order = np.argsort(images, kind="stable")
    return HiddenPairs(images[order], captions[order])


def mine_block(
    score: ScoreTile,
    block: slice,
    *,
    hidden: HiddenPairs,
    captions: int,
    top: int,
    columns: TopLists,
    device: torch.device | str = "cpu",
) -> Tensor:
    """One block of images -> the keys of their hardest captions (images, top); the captions' lists grow."""
    rows = TopLists(block.stop - block.start, top=top, device=device)
    numbers = torch.arange(block.start, block.stop, device=device)
    inside = hidden.of_block(block)
    for tile in parts(captions, TILE):
        scores = score(tile)
        if not bool(torch.isfinite(scores.sum())):
            raise InputError(
                f"mining: a score of images {block.start} to {block.stop - 1} is not a number; "
                "a model that diverged cannot be mined"
            )
        own_images, own_captions = (torch.from_numpy(part).to(device) for part in inside.of_tile(tile))
        scores[own_images, own_captions] = float("-inf")
        # One way after the other: side by side, their threads would fight for the cores.
        columns.add(tile, numbers, scores.mT)
        rows.add(slice(0, len(rows)), torch.arange(tile.start, tile.stop, device=device), scores)
    return rows.sorted_keys()


def vector_blocks(image_vectors: Callable[[slice], Tensor], caption_vectors: Tensor) -> ScoreBlocks:
    """Vectors (n, d) of a block of images, and of all captions (C, d) -> one product of matrices a tile."""

    def block(images: slice) -> ScoreTile:
        vectors = image_vectors(images)
        if onednn.usable(vectors):
            return lambda tile: onednn.linear(vectors, caption_vectors[tile])
        space = vectors.new_empty(len(vectors) * TILE)  # every tile is written into the same memory

        def score(tile: slice) -> Tensor:
            some = caption_vectors[tile]
            out = space[: len(vectors) * len(some)].view(len(vectors), len(some))
            return torch.mm(vectors, some.mT, out=out)

        return score

    return block


def model_blocks(model: Matcher, rows: SplitRows, *, device: torch.device) -> tuple[ScoreBlocks, int]:
    """A run's model over a split -> scores of tiles, and how many images make a block.

    Vectors of all captions fit into memory; words of all captions would not, so that a model which looks at
    words encodes the captions again for every block of images: little beside scoring them with a block.
    """
    few = slice(0, min(ENCODE_ROWS, len(rows.image_ids)))
    first = encode_images(model, rows, few, device=device)
    some = encode_captions(model, rows, slice(0, few.stop), device=device)
    if has_global_vectors(model, first, some):
        vectors = torch.cat(
            [
                encode_captions(model, rows, part, device=device).glob.float()
                for part in parts(len(rows.caption_ids), TILE)
            ]
        )
        return vector_blocks(
            lambda images: encode_images(model, rows, images, device=device).glob.float(), vectors
        ), BLOCK

    def block(images: slice) -> ScoreTile:
        encoded: Encoded = encode_images(model, rows, images, device=device)

        def score(tile: slice) -> Tensor:
            texts = encode_captions(model, rows, tile, device=device)
            return score_matrix(model, encoded, texts).float()

        return score

    return block, DEAR_BLOCK


def parts(count: int, size: int) -> Iterator[slice]:
    """0..count-1 in slices of a size."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
