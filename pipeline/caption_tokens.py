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
        return cls(values, offsets[:-1], lengths, lengths < whole, end, fixed_length)

    def pad(self, rows: Integers) -> tuple[Integers, Integers]:
        """Captions by row -> ids (C, N) padded with 0, and lengths (C,); a cut caption keeps its <end>."""
        lengths = self.lengths[rows]
        width = self.fixed_length if self.fixed_length is not None else int(lengths.max(initial=0))
        column = np.arange(width)
        real = column < lengths[:, None]  # (C, N)
        tokens = np.zeros((len(rows), width), np.int64)
        tokens[real] = self.values[(self.starts[rows][:, None] + column)[real]]
        if self.end is not None and (cut := self.cut[rows]).any():
            tokens[np.flatnonzero(cut), lengths[cut] - 1] = self.end
        return tokens, lengths
