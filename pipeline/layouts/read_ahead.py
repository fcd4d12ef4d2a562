"""A layout and the order of its rows -> the rows, read by a thread while the ones before are being stored.

Decoding keeps Python's lock, but converting, hashing, writing and syncing do not: together they take little
more than the decoding alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from .record import ForeignRow, Layout

_ROWS_AHEAD = 64  # 19 MB of 36 × 2048; enough to go on during a sync
_ROWS_ADVISED = 16  # announced to the disk together


class ReadAhead:
    """One thread over one layout; leaving the context ends it."""

    def __init__(self, layout: Layout, rows: Sequence[int]) -> None:
        self._layout, self._rows = layout, rows
        self._submitted = 0
        self._pending: deque[tuple[int, Future[ForeignRow]]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")

    def __enter__(self) -> ReadAhead:
        self._fill()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, row: int) -> ForeignRow:
        """The next row, which must be this one; what is wrong with it is raised here."""
        expected, future = self._pending.popleft()
        assert expected == row
        self._fill()
        return future.result()

    def _fill(self) -> None:
        while len(self._pending) < _ROWS_AHEAD and self._submitted < len(self._rows):
            if self._submitted % _ROWS_ADVISED == 0:
                first = self._submitted
                self._layout.will_need(self._rows[first : first + _ROWS_ADVISED])
            row = self._rows[self._submitted]
            self._pending.append((row, self._thread.submit(self._layout.read, row)))
            self._submitted += 1
