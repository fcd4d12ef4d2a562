"""Average precision: known cases, and a slow rendering of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.extractors.average_precision import Found, Truth, class_average_precision, mean_average_precision


def box(x: float) -> list[float]:
    return [x, 0.0, x + 10.0, 10.0]


def found(*entries: tuple[float, int, float]) -> Found:
    """(x, class, score) each."""
    return Found(
        np.array([box(x) for x, _, _ in entries], np.float32).reshape(-1, 4),
        np.array([label for _, label, _ in entries], np.int64),
        np.array([score for _, _, score in entries], np.float32),
    )


def truth(*entries: tuple[float, int]) -> Truth:
    return Truth(
        np.array([box(x) for x, _ in entries], np.float32).reshape(-1, 4),
        np.array([label for _, label in entries], np.int64),
    )


def test_known_cases() -> None:
    two = [truth((0, 0), (50, 0))]
    assert class_average_precision([found((0, 0, 0.9), (50, 0, 0.8))], two, iou=0.5, label=0) == 1.0
    assert class_average_precision([found((0, 0, 0.9))], two, iou=0.5, label=0) == 0.5
    assert (
        class_average_precision([found((0, 0, 0.9), (1, 0, 0.8))], two, iou=0.5, label=0) == 0.5
    )  # twice the same
    late = [found((100, 0, 0.9), (0, 0, 0.8), (50, 0, 0.7))]  # a false one first
    assert class_average_precision(late, two, iou=0.5, label=0) == pytest.approx(2 / 3)
    assert class_average_precision([found()], two, iou=0.5, label=0) == 0.0
    assert class_average_precision([found((0, 1, 0.9))], two, iou=0.5, label=1) is None
    assert class_average_precision([found((2, 0, 0.9))], [truth((0, 0))], iou=0.7, label=0) == 0.0  # IoU 2/3


def test_the_mean_is_over_classes_that_occur() -> None:
    images = [truth((0, 0), (50, 2)), truth()]
    detections = [found((0, 0, 0.9), (80, 1, 0.9)), found()]
    assert mean_average_precision(detections, images, iou=0.5, classes=4) == 0.5
    assert mean_average_precision([found()], [truth()], iou=0.5, classes=4) == 0.0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 30), st.just(0), st.integers(1, 99)), max_size=6),
            st.lists(st.tuples(st.integers(0, 3), st.just(0)), max_size=3, unique=True),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_equals_the_definition(
    images: list[tuple[list[tuple[int, int, int]], list[tuple[int, int]]]],
) -> None:
    """At each true detection: the best precision from there on, summed over 1/total."""
    truths = [truth(*((12.0 * x, label) for x, label in true)) for _, true in images]
    detections = [found(*((float(x), label, score / 100) for x, label, score in some)) for some, _ in images]
    total = sum(len(true) for _, true in images)
    if total == 0:
        return
    outcomes: list[tuple[float, int, bool]] = []
    for number, (some, true) in enumerate(images):
        free = [12.0 * x for x, _ in true]
        for x, _, score in sorted(some, key=lambda entry: -entry[2]):
            overlap = {y: max(0.0, 10 - abs(x - y)) / (20 - max(0.0, 10 - abs(x - y))) for y in free}
            best = max(overlap, key=lambda y: overlap[y], default=None)
            hit = best is not None and overlap[best] >= 0.5
            if hit and best is not None:
                free.remove(best)
            outcomes.append((score / 100, number, hit))
    outcomes.sort(key=lambda outcome: -outcome[0])
    hits = [hit for _, _, hit in outcomes]
    precision = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits))]
    slow = sum(max(precision[k:]) for k in range(len(hits)) if hits[k]) / total
    assert class_average_precision(detections, truths, iou=0.5, label=0) == pytest.approx(slow)
