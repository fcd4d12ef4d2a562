"""Reranking against a naive oracle; only the pairs that count are scored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.evaluation.ranks import rank_both_ways
from camp.evaluation.rerank import mean_scores, parse_top, rerank, top_columns

Matrix = npt.NDArray[np.float64]


def naive(
    cheap: Matrix, dear: Matrix, owner: list[int], captions: int, images: int
) -> tuple[list[int], list[int]]:
    """Build each query's list and walk it, right answers last among equals."""

    def rank(cheap_row: Matrix, dear_row: Matrix, right: set[int], k: int) -> int:
        if not right:
            return 0
        order = sorted(range(len(cheap_row)), key=lambda a: (-cheap_row[a], a))
        head, tail = order[:k], order[k:]
        head.sort(key=lambda a: (-dear_row[a], a in right))
        tail.sort(key=lambda a: (-cheap_row[a], a in right))
        return 1 + next(place for place, answer in enumerate(head + tail) if answer in right)

    own = [{c for c, image in enumerate(owner) if image == i} for i in range(len(cheap))]
    return (
        [rank(cheap[i], dear[i], own[i], captions) for i in range(len(cheap))],
        [rank(cheap[:, c], dear[:, c], {owner[c]}, images) for c in range(len(owner))],
    )


@settings(max_examples=200)
@given(st.data())
def test_ranks_equal_the_definition(data: st.DataObject) -> None:
    images = data.draw(st.integers(1, 6))
    owner = data.draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=10))
    size = images * len(owner)
    draw = st.lists(st.integers(-2, 2), min_size=size, max_size=size)
    cheap, dear = (np.array(data.draw(draw), np.float64).reshape(images, -1) for _ in range(2))
    k_captions, k_images = data.draw(st.integers(1, len(owner))), data.draw(st.integers(1, images))
    asked: list[tuple[int, int]] = []

    def score(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        asked.extend(zip(rows.tolist(), columns.tolist(), strict=True))
        return dear[rows, columns]

    result = rerank(cheap, owner, score, captions=k_captions, images=k_images)
    expected = naive(cheap, dear, owner, k_captions, k_images)
    assert (result.ranks.captions.tolist(), result.ranks.images.tolist()) == expected
    assert len(asked) == len(set(asked)) == result.pairs
    needed = {(i, int(c)) for i, row in enumerate(top_columns(cheap, k_captions)) for c in row}
    needed |= {(int(i), c) for c, row in enumerate(top_columns(cheap.T, k_images)) for i in row}
    assert set(asked) == needed


def test_all_of_them_is_the_expensive_model_itself() -> None:
    generator = np.random.default_rng(0)
    owner = np.arange(8).repeat(5)
    cheap, dear = generator.normal(size=(2, 8, 40))
    result = rerank(cheap, owner, lambda i, c: dear[i, c], captions=40, images=8)
    whole = rank_both_ways(dear, owner)
    assert result.ranks.captions.tolist() == whole.captions.tolist()
    assert result.ranks.images.tolist() == whole.images.tolist()


def test_top_is_a_share_or_a_count() -> None:
    assert [parse_top(text, 1000) for text in ("10%", "0.05%", "50", "5000", "100%")] == [
        100,
        1,
        50,
        1000,
        1000,
    ]
    for wrong in ("x", "0", "-3", "0%", "120%", "%"):
        with pytest.raises(InputError, match="expected a share such as 10%"):
            parse_top(wrong, 1000)


def test_ensembles_are_means_of_one_shape() -> None:
    assert mean_scores([np.zeros((2, 3)), np.ones((2, 3))]).tolist() == [[0.5] * 3] * 2
    with pytest.raises(InputError, match="expected the same test set"):
        mean_scores([np.zeros((2, 3)), np.ones((3, 3))])


def test_nan_is_refused() -> None:
    with pytest.raises(InputError, match="the expensive model gave NaN"):
        rerank(np.zeros((2, 2)), [0, 1], lambda i, c: np.full(len(i), np.nan), captions=1, images=1)
