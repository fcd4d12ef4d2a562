"""Captions of a batch -> one padded array of token ids; what is too long is cut, and counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CaptionTokens:
    """The token ids of many captions, flat, and how long each may be in a batch."""

    values: npt.NDArray[np.int32]  # (ids,)
    starts: Integers  # (captions,)
    lengths: Integers  # (captions,) ids each has in a batch, start and end included
    cut: npt.NDArray[np.bool_]  # (captions,) whether that is fewer than it has
    end: int | None
    fixed_length: int | None = None
    any_cut: bool = True  # False spares a look at every caption

    @classmethod
    def of(
        cls,
        values: npt.NDArray[np.int32],
        offsets: Integers,
        *,
        start: int | None,
        end: int | None,
        max_words: int | None = 50,
        fixed_length: int | None = None,
    ) -> CaptionTokens:
        """max_words counts words; <start> and <end> come on top. fixed_length counts all ids of a row."""
        around = (start is not None) + (end is not None)
        limits = [limit for limit in (fixed_length, max_words and max_words + around) if limit is not None]
        if (max_words is not None and max_words < 1) or (fixed_length is not None and fixed_length <= around):
            raise InputError(
                f"max_words {max_words}, fixed_length {fixed_length}: no room for a word; "
                f"expected at least 1 and {around + 1}"
            )
        whole = np.diff(offsets)
        lengths = np.minimum(whole, min(limits)) if limits else whole
        cut = lengths < whole
        any_cut = end is not None and bool(cut.any())
        return cls(values, offsets[:-1], lengths, cut, end, fixed_length, any_cut)

    def pad(self, rows: Integers) -> tuple[Integers, Integers]:
        """Captions by row -> ids (C, N) padded with 0, and lengths (C,); a cut caption keeps its <end>."""
        lengths = self.lengths[rows]
        width = self.fixed_length if self.fixed_length is not None else int(lengths.max(initial=0))
        column = np.arange(width)
        found = self.values.take(self.starts[rows][:, None] + column, mode="clip")  # (C, N)
        tokens = np.where(column < lengths[:, None], found, 0).astype(np.int64)
        if self.end is not None and self.any_cut and (cut := self.cut[rows]).any():
            tokens[np.flatnonzero(cut), lengths[cut] - 1] = self.end
        return tokens, lengths
