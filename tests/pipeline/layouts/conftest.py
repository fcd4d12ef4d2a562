"""Rows to write and to find again: random, but the same every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from camp.pipeline.layouts.record import ExportShape, ForeignRow
from camp.schema import Regions

MakeRows = Callable[..., list[ForeignRow]]


@pytest.fixture
def make_rows() -> MakeRows:
    """(regions of each image) -> rows with all columns, boxes inside their images."""

    def make(
        counts: Sequence[int] = (3, 3, 3, 3), *, dim: int = 8, ids: Sequence[str] | None = None, seed: int = 0
    ) -> list[ForeignRow]:
        random = np.random.default_rng(seed)
        rows = []
        for number, count in enumerate(counts):
            width, height = 640 + number, 480 + 2 * number
            corner = random.random((count, 2), np.float32) * np.array([width / 2, height / 2], np.float32)
            boxes = np.concatenate([corner, corner * 2], axis=1).astype(np.float32)
            regions = Regions(
                boxes=boxes,
                features=random.standard_normal((count, dim), np.float32),
                width=width,
                height=height,
                classes=random.integers(0, 1600, count).astype(np.int32),
                class_scores=random.random(count, np.float32),
                attributes=random.integers(0, 400, count).astype(np.int32),
                attribute_scores=random.random(count, np.float32),
            )
            rows.append(ForeignRow(ids[number] if ids else str(500_000 + number), regions))
        return rows

    return make


@pytest.fixture
def shape_of() -> Callable[[Sequence[ForeignRow]], ExportShape]:
    """Rows -> what a writer wants to know about them."""

    def shape(rows: Sequence[ForeignRow]) -> ExportShape:
        counts = [len(row.regions.features) for row in rows]
        return ExportShape(
            images=len(rows),
            regions=max(counts),
            dim=rows[0].regions.features.shape[1],
            total_regions=sum(counts),
            columns=("classes", "class_scores", "attributes", "attribute_scores"),
        )

    return shape
