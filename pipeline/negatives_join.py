"""Mined negatives and a split's samples -> one negative image and caption for every caption, by epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .sample_order import EpochKey, draw
from .sample_table import SampleTable

Integers = npt.NDArray[np.int64]


DRAWS = ("uniform", "normal")


@dataclass(frozen=True)
class Negatives:
    """What was drawn for some captions, by number in the table; -1 for none."""

    images: Integers  # (n,) an image that does not belong to the caption
    captions: Integers  # (n,) a caption that does not belong to its image
    partners: Integers | None = None  # (n,) a caption of that first image, where asked for

    def of(self, captions: Integers) -> Negatives:
        partners = None if self.partners is None else self.partners[captions]
        return Negatives(self.images[captions], self.captions[captions], partners)


@dataclass(frozen=True)
class OfflineNegatives:
    """Lists of ids, hardest first; -1 where a list is shorter.

    draw: 'uniform', or 'normal' around the middle of a list, which seldom takes the very hardest: those may
    be right answers that nobody marked. partners: also draw a caption of every drawn image, for quintuplets.
    """

    caption_ids: Integers  # (C,)
    images: Integers  # (C, h) images that do not belong to the caption
    image_ids: Integers  # (I,)
    captions: Integers  # (I, k) captions that do not belong to the image
    draw: str = "uniform"
    partners: bool = False

    def __post_init__(self) -> None:
        if self.draw not in DRAWS:
            raise InputError(f"negatives: draw {self.draw!r}, expected one of {', '.join(DRAWS)}")
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
        self._samples, self._draw, self._partners = samples, negatives.draw, negatives.partners
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

    def draw(self, key: EpochKey) -> Negatives:
        """For every caption of the table (C,)."""
        samples = self._samples
        image_choice = self._choice(self._image_counts, key=key, purpose="negative images")
        caption_counts = self._caption_counts[samples.caption_image]
        caption_choice = self._choice(caption_counts, key=key, purpose="negative captions")
        every = np.arange(len(samples.captions))
        images = np.where(self._image_counts > 0, self._images[every, image_choice], -1)
        captions = np.where(caption_counts > 0, self._captions[samples.caption_image, caption_choice], -1)
        if not self._partners:
            return Negatives(images, captions)
        counts = np.where(images >= 0, np.diff(samples.first)[images], 0)
        choice = draw(counts, key=key, purpose="captions of negative images")
        return Negatives(images, captions, np.where(images >= 0, samples.first[images] + choice, -1))

    def _choice(self, counts: Integers, *, key: EpochKey, purpose: str) -> Integers:
        if self._draw == "uniform":
            return draw(counts, key=key, purpose=purpose)
        # The mean of three even draws: a bell over the whole list, a sixth of it wide.
        bits = [key.bits(len(counts), purpose=f"{purpose} {turn}") >> np.uint64(32) for turn in range(3)]
        share = np.sum(bits, axis=0, dtype=np.float64) / (3 * 2.0**32)
        return np.minimum((share * counts).astype(np.int64), np.maximum(counts - 1, 0))


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
