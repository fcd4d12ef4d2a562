"""Words of a vector file, one after another -> the row of the matrix each is the best spelling for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EXACT, LOWER, FOLDED, MISSING = range(4)


class RowSink:
    """Collects the vectors of a vocabulary's words while a file streams by.

    A word takes the vector of its own spelling; else of its lower case ('Dog' -> 'dog'); else of the first
    entry that differs in case alone ('london' -> 'London'). Of equal entries the first one counts.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._exact = {word.encode("utf-8", "surrogatepass"): row for row, word in enumerate(words)}
        self._lower: dict[bytes, list[int]] = {}
        for row, word in enumerate(words):
            self._lower.setdefault(word.lower().encode("utf-8", "surrogatepass"), []).append(row)
        self.interesting = frozenset(self._exact) | frozenset(self._lower)
        self.rank = np.full(len(words), MISSING, np.int8)
        self.matrix: npt.NDArray[np.float32] | None = None  # (words, dim) once dim is known

    def set_dim(self, dim: int) -> None:
        """Make the matrix; its rows are zero until found."""
        self.matrix = np.zeros((len(self.rank), dim), np.float32)

    def claim(self, word: bytes) -> list[int]:
        """A word of the file -> the rows that its vector is the best one for so far."""
        lower = fold(word)
        kind = LOWER if lower == word else FOLDED
        rows = [row for row in self._lower.get(lower, ()) if self.rank[row] > kind]
        self.rank[rows] = kind
        exact = self._exact.get(word)
        if exact is not None and self.rank[exact] > EXACT:
            self.rank[exact] = EXACT
            if exact not in rows:
                rows.append(exact)
        return rows

    def put(self, rows: Sequence[int], vector: npt.NDArray[np.floating]) -> None:
        """Set claimed rows."""
        assert self.matrix is not None
        self.matrix[rows] = vector


def fold(word: bytes) -> bytes:
    """The lower case of a word in UTF-8."""
    if word.isascii():
        return word.lower()
    return word.decode("utf-8", "replace").lower().encode("utf-8", "surrogatepass")
