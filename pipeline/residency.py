"""The rows of an epoch in their order -> advice to the operating system: what to read ahead, what to drop."""

from __future__ import annotations

import resource
from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_STEPS_AHEAD = 2
_COLD_STEPS = 16  # rows are asked for until so many steps went by without a read


class Advisable(Protocol):
    """Rows whose pages can be asked for and given back."""

    def will_need(self, positions: Integers) -> None: ...

    def let_go(self, positions: Integers) -> None: ...

    def keep(self, positions: Integers) -> None:
        """These are needed now and next, in this order; told anew when it changes."""


class DiskWatch:
    """Whether rows come from the disk at present, told by what the system counts for this process."""

    def __init__(self) -> None:
        self._reads = (-1, -1)
        self._quiet = 0

    def reading(self) -> bool:
        """Ask once a step. True at first, and until nothing was read for a while."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        reads = (usage.ru_majflt, usage.ru_inblock)  # pages waited for; blocks read, also when asked for
        self._quiet = 0 if reads != self._reads else self._quiet + 1
        self._reads = reads
        return self._quiet < _COLD_STEPS


class Residency:
    """Called before every step, in order.

    With windows, the next window is read while the present one is used, a step's worth at a time, and windows
    that are done are dropped: never more than the present window, the next one and, for a few steps, the last
    are in memory. Without windows, rows are asked for a few steps ahead, but only while
    reads really go to the disk: where all is cached, the asking would cost as much as the copying.
    """

    def __init__(
        self,
        rows: Advisable,
        *,
        positions: Integers,  # (n,) feature rows of this rank's samples in the order of the epoch
        bounds: Integers,  # (steps + 1,) step s has the samples bounds[s]..bounds[s + 1]
        window_of: Integers | None = None,  # (n,) ascending
        drop_behind: bool = True,
        watch: DiskWatch | None = None,  # that of the epoch before, which knows what is cached
        behind: int = 4,  # steps that other threads may still be gathering when a later one begins
    ) -> None:
        self._rows, self._positions, self._bounds = rows, positions, bounds
        self._window_of, self._drop_behind = window_of, drop_behind
        self._asked_step = -1  # the last step whose rows were asked for one by one
        self._watch = watch or DiskWatch()
        self._oldest: deque[int] = deque(maxlen=behind + 1)
        self._kept = (-1, -1)  # the windows that were told to be needed
        self._begun = False
        if window_of is not None:
            windows = int(window_of.max(initial=-1)) + 1
            # Samples of window w, in the order they lie on disk: ends[w]..ends[w + 1].
            self._ends = np.searchsorted(window_of, np.arange(windows + 1))
            self._on_disk = positions[np.lexsort((positions, window_of))]
            self._read = self._dropped = -1  # how far, in that order, rows were asked for and let go of

    def before(self, step: int) -> None:
        """Advice for a step that is about to be gathered."""
        if self._window_of is not None:
            self._follow_windows(step, self._window_of)
        elif not self._begun:
            self._rows.keep(self._positions)
        self._begun = True
        self._ask_for_steps(step)

    def _follow_windows(self, step: int, window_of: Integers) -> None:
        first, last = int(self._bounds[step]), int(self._bounds[step + 1])
        if first == last:
            return
        self._oldest.append(int(window_of[first]))
        oldest, newest = self._oldest[0], int(window_of[last - 1])
        start, stop = int(self._ends[newest]), int(self._ends[newest + 1])
        done = int(self._ends[oldest])
        if (oldest, newest) != self._kept:
            self._kept = (oldest, newest)
            self._rows.keep(self._on_disk[done : self._ends[min(newest + 2, len(self._ends) - 1)]])
        if self._read < 0:
            self._read, self._dropped = stop, done
        wanted = stop
        if newest + 2 < len(self._ends):
            # As far through the next window as this step brings us through the present one.
            size = int(self._ends[newest + 2]) - stop
            wanted += -(-size * (last - start) // (stop - start))
        if wanted > self._read:
            self._rows.will_need(self._on_disk[self._read : wanted])
            self._read = wanted
        if self._drop_behind and done > self._dropped:
            self._rows.let_go(self._on_disk[self._dropped : done])
            self._dropped = done

    def finish(self) -> None:
        """The epoch is over, or was left: drop what is still in memory of it."""
        if self._window_of is not None and self._drop_behind and self._read >= 0:
            self._rows.let_go(self._on_disk[self._dropped : self._read])

    def _ask_for_steps(self, step: int) -> None:
        if not self._watch.reading():
            return
        begin, last = max(self._asked_step + 1, step), min(step + _STEPS_AHEAD, len(self._bounds) - 2)
        if begin <= last:
            self._rows.will_need(self._positions[self._bounds[begin] : self._bounds[last + 1]])
            self._asked_step = last
