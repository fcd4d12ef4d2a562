"""Scattered rows of mapped arrays -> one buffer, copied or converted by one call that frees the interpreter.

A loop of NumPy assignments lets go of the interpreter at each row and has to get it back after it: threads
that gather would stop whenever another one prepares its batch. NumPy also converts half precision ten times
as slowly as torch does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

SERIAL = 32_767  # numbers; torch copies more than these with its own threads, which would fight with ours
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class RowCopy:
    """How rows of one type and size become rows of another type."""

    def __init__(self, *, stored: torch.dtype, wanted: torch.dtype, numbers: int) -> None:
        """`numbers` is how many a row has."""
        # Where nothing is converted, bytes are moved in the largest pieces.
        self._unit: torch.dtype | None = None
        if stored == wanted:
            size = numbers * stored.itemsize
            self._unit = next(unit for width, unit in _INTEGERS.items() if size % width == 0)
            numbers = size // self._unit.itemsize
        self._sections = -(-numbers // SERIAL)

    def sources(self, view: Array) -> Tensor:
        """Stored rows (n, R, D), without a copy -> (n, numbers) to take rows from."""
        with warnings.catch_warnings():
            # torch would rather have memory it may write to; these maps are only ever read.
            warnings.simplefilter("ignore", UserWarning)
            return self._flat(torch.from_numpy(view))

    def __call__(self, rows: Sequence[Tensor], buffer: Tensor) -> None:
        """Rows of sources() -> the first rows of a buffer (n, R, D), contiguous."""
        if not rows:
            return
        assert len(rows) <= len(buffer)
        assert buffer.is_contiguous()
        targets = self._flat(buffer)[: len(rows)]
        if self._unit is not None:
            # One call without a target for each row, which would cost a thirtieth of copying them.
            torch.cat(self._pieces(rows), out=targets.view(-1))
        else:
            torch._foreach_copy_(self._pieces(targets.unbind()), self._pieces(rows))

    def _flat(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(len(rows), -1)
        return flat if self._unit is None else flat.view(self._unit)

    def _pieces(self, rows: Sequence[Tensor]) -> list[Tensor]:
        if self._sections == 1:
            return list(rows)
        return [piece for row in rows for piece in row.tensor_split(self._sections)]
