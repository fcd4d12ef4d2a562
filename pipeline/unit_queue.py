"""Units of work -> who does which next, and what becomes of those whose worker dies.

A unit is tried again when its worker died; from the third time on carefully, one image at a time, so that a
picture which kills the worker is found and left out. What still fails is quarantined; the rest goes on.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .plan import Unit

MAX_ERRORS = 3  # exceptions in one unit
MAX_LOSSES = 5  # deaths of its worker
CAREFUL_AFTER = 2  # losses
BLAME = 2  # deaths on the same image until it is left out
STRAGGLER = 2.0  # times the median duration


@dataclass(frozen=True, slots=True)
class Assignment:
    """One unit for one worker."""

    unit: Unit
    careful: bool = False
    skip: Mapping[int, str] = field(default_factory=dict)  # image id -> why it is left out


@dataclass(slots=True)
class _History:
    """What happened to a unit that did not end well at once."""

    errors: int = 0
    losses: int = 0
    blame: dict[int, int] = field(default_factory=dict)
    skip: dict[int, str] = field(default_factory=dict)


class UnitQueue:
    """Hands out units until each is finished or quarantined."""

    def __init__(
        self,
        units: Iterable[Unit],
        *,
        speculate: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pending = deque(units)
        self.total = len(self._pending)
        self._running: dict[str, dict[str, float]] = {}  # shard -> worker -> since when
        self._units: dict[str, Unit] = {}  # those running
        self._history: dict[str, _History] = {}
        self._durations: list[float] = []
        self._speculate, self._clock = speculate, clock
        self.quarantined: dict[str, tuple[Unit, str]] = {}
        self.done = 0

    @property
    def finished(self) -> bool:
        return not self._pending and not self._running

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def take(self, worker: str) -> Assignment | None:
        """The next unit for a worker; None when there is none for it now."""
        if self._pending:
            unit = self._pending.popleft()
        else:
            straggler = self._straggler(worker) if self._speculate else None
            if straggler is None:
                return None
            unit = straggler
        self._units[unit.shard] = unit
        self._running.setdefault(unit.shard, {})[worker] = self._clock()
        history = self._history.get(unit.shard)
        if history is None:
            return Assignment(unit)
        return Assignment(unit, careful=history.losses >= CAREFUL_AFTER, skip=dict(history.skip))

    def finish(self, worker: str, shard: str) -> bool:
        """A worker committed a unit; False when another one had done so before."""
        since = self._running.get(shard, {}).get(worker)
        if since is None:
            return False
        bisect.insort(self._durations, self._clock() - since)
        self._forget(shard)
        self._history.pop(shard, None)
        self.done += 1
        return True

    def give_back(self, worker: str, shard: str) -> None:
        """A worker could not do a unit for reasons that are not the unit's."""
        if self._release(worker, shard):
            self._pending.appendleft(self._units.pop(shard))

    def fail(self, worker: str, shard: str, reason: str) -> bool:
        """A unit ended in an exception; True when it is quarantined for it."""
        if not self._release(worker, shard):
            return False
        history = self._history.setdefault(shard, _History())
        history.errors += 1
        return self._again(shard, reason, given_up=history.errors >= MAX_ERRORS)

    def lose(self, worker: str, shard: str, reason: str, *, suspect: int | None = None) -> bool:
        """A worker died on a unit, when careful on a known image; True when the unit is quarantined."""
        if not self._release(worker, shard):
            return False
        history = self._history.setdefault(shard, _History())
        history.losses += 1
        if suspect is not None and history.losses > CAREFUL_AFTER:
            history.blame[suspect] = history.blame.get(suspect, 0) + 1
            if history.blame[suspect] >= BLAME:
                history.skip[suspect] = reason
                history.losses = CAREFUL_AFTER
        return self._again(shard, reason, given_up=history.losses >= MAX_LOSSES)

    def _release(self, worker: str, shard: str) -> bool:
        """Take a unit from a worker; True when nobody else is working on it."""
        runners = self._running.get(shard)
        if runners is None or runners.pop(worker, None) is None:
            return False
        if runners:
            return False
        del self._running[shard]
        return True

    def _again(self, shard: str, reason: str, *, given_up: bool) -> bool:
        unit = self._units.pop(shard)
        if given_up:
            self.quarantined[shard] = (unit, reason)
        else:
            # At once: its further attempts follow each other, and at the end everybody would wait for them.
            self._pending.appendleft(unit)
        return given_up

    def _forget(self, shard: str) -> None:
        del self._running[shard], self._units[shard]

    def _straggler(self, worker: str) -> Unit | None:
        """The unit that has been running longest, if that is suspiciously long and only one is at it."""
        if not self._durations:
            return None
        limit = STRAGGLER * self._durations[len(self._durations) // 2]
        now = self._clock()
        slow = [
            (since, shard)
            for shard, runners in self._running.items()
            for runner, since in runners.items()
            if len(runners) == 1 and runner != worker and now - since > limit
        ]
        return self._units[min(slow)[1]] if slow else None
