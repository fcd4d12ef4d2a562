"""Rows are copied or converted exactly, whatever their size, by torch's serial code alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from camp.pipeline.row_copy import RowCopy

TYPES = {"float16": torch.float16, "float32": torch.float32}


@pytest.mark.parametrize("wanted", TYPES)
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (36, 2048), (100, 2048), (7, 9973)])
def test_rows_arrive_as_numpy_would_bring_them(stored: str, wanted: str, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal((6, *shape)).astype(stored)
    rows.flags.writeable = False
    order = [4, 0, 5, 5, 1]
    copy = RowCopy(stored=TYPES[stored], wanted=TYPES[wanted], numbers=shape[0] * shape[1])
    buffer = torch.full((7, *shape), 99, dtype=TYPES[wanted])
    sources = copy.sources(rows)
    assert sources.data_ptr() == rows.ctypes.data
    assert max(len(piece) for piece in copy._pieces(sources.unbind())) < 32_768
    copy([sources[row] for row in order], buffer)
    assert np.array_equal(buffer[:5].numpy(), rows[order].astype(wanted))
    assert (buffer[5:] == 99).all()
    copy([], buffer)
