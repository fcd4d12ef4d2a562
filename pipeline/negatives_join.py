"""Mined negatives and a split's samples -> one negative image and caption for every caption, by epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .sample_order import EpochKey, draw
from .sample_table import SampleTable

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OfflineNegatives:
    """Lists of ids, hardest first; -1 where a list is shorter."""

    caption_ids: Integers  # (C,)
    images: Integers  # (C, h) images that do not belong to the caption
    image_ids: Integers  # (I,)
    captions: Integers  # (I, k) captions that do not belong to the image

    def __post_init__(self) -> None:
        for name, ids, lists in (
            ("caption", self.caption_ids, self.images),
            ("image", self.image_ids, self.captions),
        ):
            if lists.ndim != 2 or len(ids) != len(lists):
                raise InputError(
                    f"negatives: {len(ids)} {name} ids and lists {lists.shape}, expected one each"
                )


class NegativesJoin:
    """The lists of a split's own captions and images, by their numbers in its table."""

    def __init__(self, negatives: OfflineNegatives, samples: SampleTable) -> None:
        self._samples = samples
        rows = _find(negatives.caption_ids, samples.caption_ids)
        self._images = _numbers(negatives.images, rows, samples.image_ids)  # (C, h)
        rows = _find(negatives.image_ids, samples.image_ids)
        self._captions = _numbers(negatives.captions, rows, samples.caption_ids)  # (I, k)
        self._image_counts = (self._images >= 0).sum(axis=1)
        self._caption_counts = (self._captions >= 0).sum(axis=1)
        if not self._image_counts.any() and not self._caption_counts.any():
            raise InputError(
                "negatives: none of their ids is in this split; were they mined from another data set?"
            )

    def draw(self, key: EpochKey) -> tuple[Integers, Integers]:
        """For every caption, an image (C,) and a caption (C,) that do not belong to it; -1 for none."""
        samples = self._samples
        image_choice = draw(self._image_counts, key=key, purpose="negative images")
        caption_counts = self._caption_counts[samples.caption_image]
        caption_choice = draw(caption_counts, key=key, purpose="negative captions")
        every = np.arange(len(samples.captions))
        return (
            np.where(self._image_counts > 0, self._images[every, image_choice], -1),
            np.where(caption_counts > 0, self._captions[samples.caption_image, caption_choice], -1),
        )


def _find(ids: Integers, wanted: Integers) -> Integers:
    """Where each wanted id stands, -1 where it does not."""
    if not len(ids):
        return np.full(wanted.shape, -1)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[place] == wanted, place, -1)


def _numbers(lists: Integers, rows: Integers, ids: Integers) -> Integers:
    """Lists of ids -> lists of numbers for some rows, those that are found first, then -1."""
    width = max(lists.shape[1], 1)
    numbers = np.full((len(rows), width), -1, np.int64)
    known = np.flatnonzero(rows >= 0)
    if lists.shape[1]:
        numbers[known] = _find(ids, lists[rows[known]])
    absent_last = np.argsort(numbers < 0, axis=1, kind="stable")
    return np.take_along_axis(numbers, absent_last, axis=1)
