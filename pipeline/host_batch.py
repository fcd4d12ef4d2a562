"""Samples of one step -> the arrays of a batch in host memory, each image once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .caption_tokens import CaptionTokens
from .sample_table import SampleTable

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HostBatch:
    """Everything of a batch but the features themselves."""

    positions: Integers  # (I,) feature rows
    region_mask: npt.NDArray[np.bool_]  # (I, R)
    tokens: Integers  # (C, N)
    lengths: Integers  # (C,)
    image_ids: Integers  # (I,)
    caption_ids: Integers  # (C,)
    caption_image: Integers  # (C,)
    labels: npt.NDArray[np.float32] | None  # (I, L)


class BatchMaker:
    """Joins captions, images and labels by number; a pure function of the captions it is given."""

    def __init__(
        self,
        samples: SampleTable,
        *,
        tokens: CaptionTokens,
        num_regions: npt.NDArray[np.int32],
        regions: int,
        labels: npt.NDArray[Any] | None = None,
    ) -> None:
        self.samples, self.tokens = samples, tokens
        self._num_regions = num_regions[samples.positions]  # (I,)
        self._region = np.arange(regions)
        self._labels = labels  # (I, L)

    def make(self, captions: Integers, *, more_images: Integers | None = None) -> HostBatch:
        """Captions by their number in the table -> their batch; `more_images` come without captions."""
        samples = self.samples
        wanted = samples.caption_image[captions]
        if more_images is not None:
            wanted = np.concatenate([wanted, more_images])
        _, first, row_of = np.unique(wanted, return_index=True, return_inverse=True)
        turn = np.argsort(first, kind="stable")  # images in the order of their first caption
        images = wanted[first[turn]]
        place = np.empty(len(turn), np.int64)
        place[turn] = np.arange(len(turn))
        tokens, lengths = self.tokens.pad(samples.captions[captions])
        return HostBatch(
            positions=samples.positions[images],
            region_mask=self._region < self._num_regions[images, None],
            tokens=tokens,
            lengths=lengths,
            image_ids=samples.image_ids[images],
            caption_ids=samples.caption_ids[captions],
            caption_image=place[row_of[: len(captions)]],
            labels=None if self._labels is None else self._labels[images].astype(np.float32),
        )
