"""The papers' tables -> rows to set beside a run's own, each with its source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

COLUMNS = (
    "caption_retrieval r@1",
    "caption_retrieval r@5",
    "caption_retrieval r@10",
    "image_retrieval r@1",
    "image_retrieval r@5",
    "image_retrieval r@10",
    "rsum",
)


@dataclass(frozen=True)
class PublishedRow:
    """One method's line; None where the table has a dash."""

    method: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class PublishedTable:
    """A table as printed. Recall tables have COLUMNS, rsum filled in where possible; others their own."""

    paper: str
    table: str
    kind: str
    dataset: str  # flickr30k | coco | several
    protocol: str  # 1k | 5k | labels
    split: str
    note: str | None
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def source(self) -> str:
        return f"{self.paper}, {self.table}"


def published_tables() -> list[PublishedTable]:
    """Every table of the data file, in its order."""
    content = json.loads((files(__package__) / "published.json").read_text(encoding="utf-8"))
    return [
        PublishedTable(
            **{name: entry[name] for name in ("paper", "table", "kind", "dataset", "protocol", "split")},
            note=entry["note"],
            columns=COLUMNS if entry["kind"] == "recall" else tuple(entry["columns"]),
            rows=tuple(_row(line, entry["kind"]) for line in entry["rows"]),
        )
        for entry in content["tables"]
    ]


def _row(line: Sequence[str | float | None], kind: str) -> PublishedRow:
    method, *values = line
    numbers = [None if value is None else float(value) for value in values]
    if kind == "recall" and len(numbers) < len(COLUMNS):
        recalls = [value for value in numbers if value is not None]
        numbers.append(round(sum(recalls), 1) if len(recalls) == len(numbers) else None)
    return PublishedRow(method=str(method), values=tuple(numbers))


def protocol_of(dataset: str, *, split: str, images: int, folds: int) -> tuple[str, str] | None:
    """A test set -> (dataset, protocol) as the papers call it, or None where nobody published on it."""
    name = dataset.lower()
    if split != "test":
        return None
    if ("flickr30k" in name or "f30k" in name) and (images, folds) == (1000, 1):
        return "flickr30k", "1k"
    if "coco" in name and images == 5000:
        return {1: ("coco", "5k"), 5: ("coco", "1k")}.get(folds)
    return None


def comparable_tables(dataset: str, *, split: str, images: int, folds: int) -> list[PublishedTable]:
    """The recall tables measured as this run was; none for a data set of one's own."""
    wanted = protocol_of(dataset, split=split, images=images, folds=folds)
    return [
        table
        for table in published_tables()
        if table.kind == "recall" and (table.dataset, table.protocol) == wanted and table.split == split
    ]
