"""Vectors -> the nearest, exactly and through FAISS."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError, MissingPackageError
from camp.evaluation import nearest
from camp.evaluation.nearest import Exact, Faiss, best_rows, open_nearest


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(lambda v: np.array(v, np.float32)),
    st.integers(1, 40),
)
def test_best_rows_are_a_stable_sort_s_first(scores: nearest.Vectors, top: int) -> None:
    assert best_rows(scores, top).tolist() == np.argsort(-scores, kind="stable")[:top].tolist()


def unit_rows(count: int, dim: int = 16) -> nearest.Vectors:
    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_exact_is_the_sorted_product() -> None:
    vectors = unit_rows(200)
    rows, scores = Exact(vectors)(vectors[3], 7)
    assert rows.tolist() == np.argsort(-(vectors @ vectors[3]), kind="stable")[:7].tolist()
    assert scores[0] == pytest.approx(1)


def test_faiss_agrees_where_it_looks_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the optional package faiss-cpu is not installed")
    vectors = unit_rows(2000)
    path = tmp_path / "vectors.faiss"
    search = open_nearest(vectors, path, faiss=True)
    assert isinstance(search, Faiss)
    written = path.stat().st_mtime_ns
    search.index.nprobe = search.index.nlist
    exact = Exact(vectors)
    for query in unit_rows(20)[:, ::-1].copy():
        (rows, scores), (expected_rows, expected_scores) = search(query, 10), exact(query, 10)
        assert rows.tolist() == expected_rows.tolist()
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)
    assert isinstance(open_nearest(vectors, path, faiss=True), Faiss)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"cut")
    with pytest.raises(InputError, match="not a FAISS index"):
        open_nearest(vectors, path, faiss=True)


def test_few_vectors_and_no_package_are_searched_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit_rows(100)
    assert isinstance(open_nearest(vectors, tmp_path / "few.faiss"), Exact)
    monkeypatch.setattr(nearest, "FAISS_FROM", 10)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert isinstance(open_nearest(vectors, tmp_path / "many.faiss"), Exact)
    with pytest.raises(MissingPackageError, match=r"camp-toolkit\[faiss\]"):
        open_nearest(vectors, tmp_path / "asked.faiss", faiss=True)
