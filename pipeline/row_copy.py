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

_SERIAL = 32_767  # numbers; torch copies more than these with its own threads, which would fight with ours
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class RowCopy:
    """How rows of one type and size become rows of another type."""

    def __init__(self, *, stored: torch.dtype, wanted: torch.dtype, numbers: int) -> None:
        """`numbers` is how many a row has."""
        self.unit: torch.dtype | None = (
            None  # where nothing is converted, bytes are moved in the largest pieces
        )
        if stored == wanted:
            size = numbers * stored.itemsize
            self.unit = next(unit for width, unit in _INTEGERS.items() if size % width == 0)
            numbers = size // self.unit.itemsize
        self.sections = -(-numbers // _SERIAL)

    def sources(self, view: Array) -> Tensor:
        """Stored rows (n, R, D), without a copy -> (n, numbers) to take rows from."""
        with warnings.catch_warnings():
            # torch would rather have memory it may write to; these maps are only ever read.
            warnings.simplefilter("ignore", UserWarning)
            return self._flat(torch.from_numpy(view))

    def targets(self, buffer: Tensor) -> list[Tensor]:
        """A buffer (n, R, D) -> the pieces of all its rows, in order."""
        return self._pieces(self._flat(buffer).unbind())

    def _flat(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(len(rows), -1)
        return flat if self.unit is None else flat.view(self.unit)

    def _pieces(self, rows: Sequence[Tensor]) -> list[Tensor]:
        if self.sections == 1:
            return list(rows)
        return [piece for row in rows for piece in row.tensor_split(self.sections)]

    def __call__(self, rows: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Rows of sources() -> the first of targets()."""
        if rows:
            pieces = self._pieces(rows)
            torch._foreach_copy_(list(targets[: len(pieces)]), pieces)
