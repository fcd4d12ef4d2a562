"""The record that every foreign layout is read into and written from; what its reader and writer offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...manifests.source import Findings
from ...schema import Regions


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One image's regions as a foreign file holds them, with the id that file gives it."""

    image_id: str  # as written: a number, a COCO id, a file stem
    regions: Regions


class Layout(Protocol):
    """A foreign feature set, opened: its ids in the order of the file, and any row by its position.

    A row that cannot be read is an InputError from `read` which names the file (without its folder, so that
    the message is the same on every machine) and the line or key; the rows around it stay readable.
    """

    @property
    def ids(self) -> Sequence[str]:
        """No id twice."""

    @property
    def findings(self) -> Findings:
        """Truncated, repeated or unreadable rows."""

    @property
    def has_boxes(self) -> bool: ...

    def read(self, row: int) -> ForeignRow: ...

    def mark(self, row: int) -> str:
        """A text that changes when the row's content or place does; far cheaper than reading the row."""

    def max_regions(self, rows: Sequence[int]) -> int:
        """The most regions that one of these rows has, from headers alone."""

    def will_need(self, rows: Sequence[int]) -> None:
        """Let the disk begin to read these rows."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ExportShape:
    """What a writer must know before its first row."""

    images: int
    regions: int  # R, the most that an image has
    dim: int  # D
    total_regions: int  # of all images together
    columns: tuple[str, ...]  # the optional ones that the feature set has


Writer = Callable[[Iterable[ForeignRow], Path, ExportShape], None]
"""(rows, destination, shape) -> the whole file or folder, or nothing."""
