"""Samples of one step -> the arrays of a batch in host memory, each image once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
    negative_image: Integers | None  # (C,)
    negative_caption: Integers | None  # (C,)

    def tensors(self) -> dict[str, Tensor | None]:
        """The fields of a Batch that need no features, without a copy."""
        arrays = {name: getattr(self, name) for name in _FIELDS}
        return {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}


_FIELDS = tuple(field.name for field in fields(HostBatch) if field.name != "positions")


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
        one_each: bool = False,  # no two captions of an image are ever asked for
    ) -> None:
        self.samples, self.tokens, self._one_each = samples, tokens, one_each
        self._num_regions = num_regions[samples.positions]  # (I,)
        self._region = np.arange(regions)
        self._labels = labels  # (I, L)

    def make(self, captions: Integers, *, negatives: tuple[Integers, Integers] | None = None) -> HostBatch:
        """Captions by their number in the table -> their batch.

        `negatives` are an image and a caption for each of them, -1 for none: they join the batch, and so do
        the images of those captions.
        """
        samples, count = self.samples, len(captions)
        images, negative_image, negative_caption = samples.caption_image[captions], None, None
        if negatives is not None:
            others_image, others = negatives
            # Those asked for stay in front: no caption is asked for twice.
            captions, rows = _distinct(np.concatenate([captions, others[others >= 0]]))
            negative_caption = np.full(len(captions), -1)
            negative_caption[:count][others >= 0] = rows[count:]
            images = np.concatenate([samples.caption_image[captions], others_image[others_image >= 0]])
        if self._one_each and negatives is None:
            numbers, row_of = images, np.arange(count)
        else:
            numbers, row_of = _distinct(images)  # in the order of their first caption
        if negatives is not None:
            negative_image = np.full(len(captions), -1)
            negative_image[:count][others_image >= 0] = row_of[len(captions) :]
        tokens, lengths = self.tokens.pad(samples.captions[captions])
        return HostBatch(
            positions=samples.positions[numbers],
            region_mask=self._region < self._num_regions[numbers, None],
            tokens=tokens,
            lengths=lengths,
            image_ids=samples.image_ids[numbers],
            caption_ids=samples.caption_ids[captions],
            caption_image=row_of[: len(captions)],
            labels=None if self._labels is None else self._labels[numbers].astype(np.float32),
            negative_image=negative_image,
            negative_caption=negative_caption,
        )


def _distinct(values: Integers) -> tuple[Integers, Integers]:
    """Values -> each once, by first appearance, and where among these every one is.

    A dict: three times as fast as sorting for the hundreds of values of a batch.
    """
    place: dict[int, int] = {}
    row_of = [place.setdefault(value, len(place)) for value in values.tolist()]
    return np.fromiter(place, np.int64, len(place)), np.array(row_of, np.int64)
