"""Samples of one step -> the arrays of a batch in host memory, each image once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .caption_tokens import CaptionTokens
from .negatives_join import Negatives
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
    region_classes: Integers | None  # (I, R)
    negative_image: Integers | None  # (C,)
    negative_caption: Integers | None  # (C,)
    partner_caption: Integers | None  # (C,)
    joined: npt.NDArray[np.bool_] | None  # (C,)

    def tensors(self) -> dict[str, Tensor | None]:
        """The fields of a Batch that need no features, without a copy."""
        arrays = {name: getattr(self, name) for name in _FIELDS}
        return {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}


_FIELDS = tuple(field.name for field in fields(HostBatch) if field.name != "positions")
_MINED = ("negative_image", "negative_caption", "partner_caption")


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
        region_classes: npt.NDArray[np.int32] | None = None,
        one_each: bool = False,  # no two captions of an image are ever asked for
    ) -> None:
        self.samples, self.tokens, self._one_each = samples, tokens, one_each
        self._num_regions = num_regions[samples.positions]  # (I,)
        self._region = np.arange(regions)
        self._labels = labels  # (I, L)
        self._classes = None if region_classes is None else region_classes[samples.positions]  # (I, R)

    def make(self, captions: Integers, *, negatives: Negatives | None = None) -> HostBatch:
        """Captions by their number in the table -> their batch.

        `negatives` join the batch, and so do the images of their captions.
        """
        samples, count = self.samples, len(captions)
        images, joined = samples.caption_image[captions], None
        mined: dict[str, Integers | None] = dict.fromkeys(_MINED)
        if negatives is not None:
            others, partners = negatives.captions, negatives.partners
            wanted = [part[part >= 0] for part in (others, partners) if part is not None]
            # Those asked for stay in front: no caption is asked for twice.
            captions, rows = _distinct(np.concatenate([captions, *wanted]))
            joined = np.arange(len(captions)) >= count
            split = count + len(wanted[0])
            mined["negative_caption"] = _spread(others, rows[count:split], len(captions))
            if partners is not None:
                mined["partner_caption"] = _spread(partners, rows[split:], len(captions))
            images = np.concatenate(
                [samples.caption_image[captions], negatives.images[negatives.images >= 0]]
            )
        if self._one_each and negatives is None:
            numbers, row_of = images, np.arange(count)
        else:
            numbers, row_of = _distinct(images)  # in the order of their first caption
        if negatives is not None:
            mined["negative_image"] = _spread(negatives.images, row_of[len(captions) :], len(captions))
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
            region_classes=None if self._classes is None else self._classes[numbers].astype(np.int64),
            joined=joined,
            **mined,
        )


def _spread(chosen: Integers, rows: Integers, captions: int) -> Integers:
    """What was chosen for the first captions (-1 for none) and the rows it got -> a row for every caption."""
    spread = np.full(captions, -1)
    spread[: len(chosen)][chosen >= 0] = rows
    return spread


def _distinct(values: Integers) -> tuple[Integers, Integers]:
    """Values -> each once, by first appearance, and where among these every one is.

    A dict: three times as fast as sorting for the hundreds of values of a batch.
    """
    place: dict[int, int] = {}
    row_of = [place.setdefault(value, len(place)) for value in values.tolist()]
    return np.fromiter(place, np.int64, len(place)), np.array(row_of, np.int64)
