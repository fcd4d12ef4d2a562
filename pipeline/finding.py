"""Something wrong with an artifact -> one line that names the file and the row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MAX_ROWS = 20  # named of one shard; the rest are counted


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where."""

    file: str  # relative to the data set
    problem: str
    row: int | None = None
    image_id: int | None = None

    def __str__(self) -> str:
        row = "" if self.row is None else f", row {self.row}"
        image = "" if self.image_id is None else f" (image {self.image_id})"
        return f"{self.file}{row}{image}: {self.problem}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}
