"""The one record that every foreign layout is read into and written from."""

from __future__ import annotations

from dataclasses import dataclass

from ...schema import Regions


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One image's regions as a foreign file holds them, with the id that file gives it."""

    image_id: str  # as written: a number, a COCO id, a file stem
    regions: Regions
