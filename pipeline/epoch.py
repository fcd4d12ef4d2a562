"""Samples, a shuffle and a key -> one epoch: its captions in order, and this rank's steps through them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .batch_plan import BatchPlan
from .sample_order import EpochKey, Shuffle, draw, sample_order, sample_windows
from .sample_table import SampleTable

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Epoch:
    """The order over all ranks."""

    captions: Integers  # (n,) numbers in the sample table
    window_of: Integers | None = None  # (n,) ascending

    def own(self, plan: BatchPlan) -> OwnSteps:
        """This rank's part."""
        slices = [plan.slice(step) for step in range(plan.steps)]
        places = np.concatenate([np.arange(0), *(np.arange(part.start, part.stop) for part in slices)])
        return OwnSteps(
            captions=self.captions[places],
            bounds=np.cumsum([0, *(part.stop - part.start for part in slices)]),
            window_of=None if self.window_of is None else self.window_of[places],
        )


@dataclass(frozen=True)
class OwnSteps:
    """What one rank goes through."""

    captions: Integers  # (m,)
    bounds: Integers  # (steps + 1,) step s has the captions bounds[s]..bounds[s + 1]
    window_of: Integers | None  # (m,)

    def step(self, number: int) -> Integers:
        return self.captions[self.bounds[number] : self.bounds[number + 1]]


def shuffled_epoch(
    samples: SampleTable,
    *,
    unit: str,
    shuffle: Shuffle,
    key: EpochKey,
    bounds: Integers,
    by_shard: bool = False,
) -> Epoch:
    """Every image once with a caption drawn for it, or every caption; `bounds` are those of the shards.

    `by_shard` makes each shard a window where nothing is shuffled, so that they are fetched one by one.
    """
    block_of: Integers | None = None
    if shuffle.kind == "window":
        block_of = samples.blocks(block=shuffle.block, bounds=bounds)
        if unit == "caption":
            block_of = block_of[samples.caption_image]
    count = len(samples.captions if unit == "caption" else samples.positions)
    order = sample_order(count, key=key, shuffle=shuffle, block_of=block_of)
    window_of = None if block_of is None else sample_windows(block_of, key=key, shuffle=shuffle)[order]
    if shuffle.kind == "none" and by_shard:
        images = samples.caption_image if unit == "caption" else np.arange(count)
        shards = np.searchsorted(bounds, samples.positions[images], side="right")
        window_of = np.unique(shards, return_inverse=True)[1].astype(np.int64)
    if unit == "caption":
        return Epoch(order, window_of)
    chosen: Integers = samples.first[:-1] + draw(np.diff(samples.first), key=key)
    return Epoch(chosen[order], window_of)


def bucketed_epoch(lengths: Integers) -> Epoch:
    """Every caption, the short ones first."""
    return Epoch(np.argsort(lengths, kind="stable"))
