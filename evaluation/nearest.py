"""A query vector and many others -> those with the largest dot products, exactly or through FAISS.

Exactly is one product of a matrix and a vector: milliseconds for tens of thousands. FAISS looks at a part of
the vectors, in 8 bits, and is for millions; what it finds is scored again exactly, so that a score never
depends on how it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import InputError, MissingPackageError
from ..files import publish, temporary_name
from ..progress import ProgressFactory, no_progress

FAISS_FROM = 500_000  # vectors; below, looking at all of them takes less than a fifth of a second
SPARE = 8  # so many times the asked number is fetched, since 8 bits may swap neighbours
TRAINING_ROWS = 64  # per cell
ADD_ROWS = 1 << 16

Vectors = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Nearest(Protocol):
    def __call__(self, query: Vectors, top: int) -> tuple[Ints, Vectors]:
        """(d,) -> rows of the highest dot products, best first, and these."""
        ...


def best_rows(scores: Vectors, top: int) -> Ints:
    """(all,) -> the rows of the highest scores, best first; equal scores keep their order."""
    top = min(top, len(scores))
    if top < len(scores):
        bound = np.partition(scores, len(scores) - top)[len(scores) - top]
        candidates = np.flatnonzero(scores >= bound)
    else:
        candidates = np.arange(len(scores))
    order = np.argsort(-scores[candidates], kind="stable")[:top]
    return candidates[order]


@dataclass(frozen=True)
class Exact:
    """Every vector is looked at."""

    vectors: Vectors  # (n, d)

    def __call__(self, query: Vectors, top: int) -> tuple[Ints, Vectors]:
        scores: Vectors = self.vectors @ query
        rows = best_rows(scores, top)
        return rows, scores[rows]


@dataclass(frozen=True)
class Faiss:
    """The cells nearest to the query are looked at."""

    vectors: Vectors  # (n, d)
    index: Any

    def __call__(self, query: Vectors, top: int) -> tuple[Ints, Vectors]:
        wanted = min(len(self.vectors), SPARE * top)
        _, found = self.index.search(query[None], wanted)
        rows = np.sort(found[0][found[0] >= 0])
        scores: Vectors = np.asarray(self.vectors[rows]) @ query
        order = best_rows(scores, top)
        return rows[order], scores[order]


def open_nearest(
    vectors: Vectors, path: Path, *, faiss: bool | None = None, progress: ProgressFactory = no_progress
) -> Nearest:
    """Vectors -> how to search them; None: FAISS for many, where it is installed. `path` keeps its index."""
    if faiss is False or (faiss is None and len(vectors) < FAISS_FROM):
        return Exact(vectors)
    try:
        import faiss as library
    except ImportError:
        if faiss is None:
            return Exact(vectors)
        raise MissingPackageError("--faiss needs FAISS; pip install 'camp-toolkit[faiss]'") from None
    if not path.exists():
        _write_index(library, vectors, path, progress=progress)
    try:
        index = library.read_index(str(path))
    except RuntimeError as error:
        raise InputError(f"{path}: not a FAISS index ({error}); delete it, it is made again") from None
    return Faiss(vectors, index)


def _write_index(library: Any, vectors: Vectors, path: Path, *, progress: ProgressFactory) -> None:
    count, dim = vectors.shape
    cells = max(1, min(4 * isqrt(count), count // TRAINING_ROWS))
    index = library.index_factory(dim, f"IVF{cells},SQ8", library.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.nprobe = max(8, cells // 16)
    sample = np.random.default_rng(0).permutation(count)[: TRAINING_ROWS * cells]
    index.train(np.asarray(vectors[np.sort(sample)]))
    with progress("indexing for FAISS", count, "vectors") as bar:
        for start in range(0, count, ADD_ROWS):
            some = np.asarray(vectors[start : start + ADD_ROWS])
            index.add(some)
            bar.advance(len(some))
    temporary = temporary_name(path)
    try:
        library.write_index(index, str(temporary))
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
