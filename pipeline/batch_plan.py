"""An epoch's order -> which samples each rank has in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchPlan:
    """Global batch g is order[g·G:(g+1)·G] and a rank takes its slice of it: no rank has a step more.

    Without drop_last the last batch is shorter; a rank's share may then be empty, but the step is there.
    """

    samples: int
    global_batch: int  # G, over all ranks
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank {self.rank} of {self.world_size}; expected 0 to {self.world_size - 1}")
        if self.global_batch < self.world_size:
            raise InputError(
                f"batch_size {self.global_batch} is over all ranks, expected at least one sample "
                f"for each of {self.world_size}"
            )

    @property
    def steps(self) -> int:
        """Batches per epoch, the same on every rank."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole + (1 if rest and not self.drop_last else 0)

    def slice(self, step: int) -> slice:
        """This rank's part of a step, as places in the order."""
        first = step * self.global_batch
        size = min(self.global_batch, self.samples - first)
        return slice(
            first + size * self.rank // self.world_size, first + size * (self.rank + 1) // self.world_size
        )

    def share(self, order: Integers, step: int) -> Integers:
        """The samples of this rank in a step."""
        return order[self.slice(step)]

    def done(self, step: int) -> int:
        """Samples, over all ranks, in the first `step` steps."""
        return min(step * self.global_batch, self.samples)

    def step_of(self, samples_done: int) -> int:
        """The step that comes after so many samples."""
        step, rest = divmod(samples_done, self.global_batch)
        return step + (1 if rest else 0)

    @property
    def largest(self) -> int:
        """The most samples this rank ever has in a batch."""
        return -(-self.global_batch // self.world_size)
