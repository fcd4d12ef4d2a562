"""Memory of any shape and type starts at a multiple of 64 bytes."""

from __future__ import annotations

import pytest

from camp.pipeline.aligned_memory import aligned_empty


@pytest.mark.parametrize("shape", [(3,), (5, 36, 2048)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_aligned_memory(shape: tuple[int, ...], dtype: str) -> None:
    memory = aligned_empty(shape, dtype)
    assert memory.shape == shape
    assert memory.dtype == dtype
    assert memory.ctypes.data % 64 == 0
    assert memory.flags.writeable
