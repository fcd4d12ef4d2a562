"""Any rows in any order, by any number of threads, wherever they lie: what a plain loop copies."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.pipeline import gather as gather_module
from camp.pipeline.aligned_memory import aligned_empty
from camp.pipeline.gather import Gather

PAGE = 4096


@settings(max_examples=60)
@given(data=st.data())
def test_it_is_the_plain_loop(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([6, PAGE, 70 * PAGE]))
    count = data.draw(st.integers(1, 12))
    # Where both ends lie within a page decides who copies.
    begins, target = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    memory = np.random.default_rng(0).integers(0, 256, count * size + 2 * PAGE, dtype=np.uint8)
    start = (begins - memory.ctypes.data) % PAGE
    rows = list(memory[start : start + count * size].reshape(count, size))
    picked = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    around = np.zeros(len(picked) * size + 2 * PAGE, np.uint8)
    start = (target - around.ctypes.data) % PAGE
    out = around[start : start + len(picked) * size].reshape(len(picked), size)
    gather = Gather(threads=data.draw(st.integers(1, 4)))
    gather(np.array([rows[row].ctypes.data for row in picked], np.int64), out, owner=memory)
    gather.close()
    assert np.array_equal(out, np.array([rows[row] for row in picked]).reshape(out.shape))
    assert not around[:start].any()
    assert not around[start + out.size :].any()


@pytest.mark.parametrize("distance", [0, 1, 16, 31, 32, 64, 4080])
def test_memmove_is_avoided_where_it_crawls(distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    by_torch = gather_module._copy_by_torch

    def note(*given: object) -> None:
        asked.append(1)
        by_torch(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(gather_module, "_copy_by_torch", note)
    rows = aligned_empty((3, PAGE), np.uint8)
    rows[...] = np.arange(3)[:, None]
    rows.flags.writeable = False
    memory = aligned_empty((4 * PAGE,), np.uint8)
    start = (rows.ctypes.data + distance - memory.ctypes.data) % PAGE
    out = memory[start : start + 3 * PAGE].reshape(3, PAGE)
    Gather()(rows.ctypes.data + PAGE * np.arange(3), out, owner=rows)
    assert out[:, 0].tolist() == [0, 1, 2]
    assert bool(asked) == (0 < distance < 32)


def test_a_buffer_outlives_the_threads_that_write_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know its address only; whoever asked may be gone, by a Ctrl-C."""
    main, go_on, ended = threading.current_thread(), threading.Event(), threading.Event()

    def copy(rows: list[int], target: int, size: int) -> None:
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        go_on.wait(10)
        ended.set()

    monkeypatch.setattr(gather_module, "_copy", copy)
    gather = Gather(threads=2)
    rows, out = aligned_empty((8, PAGE), np.uint8), aligned_empty((8, PAGE), np.uint8)
    buffer, owner = weakref.ref(out), weakref.ref(rows)
    with pytest.raises(KeyboardInterrupt):
        gather(rows.ctypes.data + PAGE * np.arange(8), out, owner=rows)
    del rows, out
    gc.collect()
    assert buffer() is not None
    assert owner() is not None
    go_on.set()
    gather.close()
    assert ended.is_set()
    gc.collect()
    assert buffer() is None
    assert owner() is None
