"""Somebody else's HDF5 -> rows, whatever its storage and byte order; from threads and after forks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.hdf5_rows import ForeignRows

VALUES = np.random.default_rng(0).standard_normal((23, 4, 5)).astype(np.float32)
KINDS: dict[str, tuple[dict[str, Any], bool]] = {  # how it is stored, and whether a map serves
    "contiguous": ({}, True),
    "chunked by rows": ({"chunks": (5, 4, 5)}, True),
    "chunked across": ({"chunks": (5, 2, 5)}, False),
    "gzip": ({"chunks": (5, 4, 5), "compression": "gzip"}, False),
    "shuffle": ({"chunks": (1, 4, 5), "shuffle": True}, False),
    "checksums": ({"chunks": (4, 4, 5), "fletcher32": True}, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2", ">f8", "<i8"])
@pytest.mark.parametrize("userblock", [0, 512])
def test_rows_are_h5pys(tmp_path: Path, kind: str, dtype: str, userblock: int) -> None:
    options, mapped = KINDS[kind]
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_dataset("group/features", data=(VALUES * 10).astype(dtype), **options)
        expected = file["group/features"][...]
    rows = ForeignRows(path, "group/features")
    assert (rows.shape, len(rows), rows.mapped) == ((23, 4, 5), 23, mapped)
    assert rows.dtype.isnative
    assert np.array_equal(rows.read(0, 23), expected)
    assert np.array_equal(rows.read(3, 9), expected[3:12])
    assert rows.read(4, 0).shape == (0, 4, 5)
    for row in (0, 4, 5, 22):
        assert np.array_equal(rows[row], expected[row])
        assert rows[row].dtype == rows.dtype
    with pytest.raises(IndexError, match=r"rows 20\.\.24 of 23"):
        rows.read(20, 4)
    rows.close()


def test_chunks_nobody_wrote_have_the_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        sparse = file.create_dataset("sparse", (20, 3), np.float32, chunks=(4, 3), fillvalue=7)
        sparse[8:12] = 1
        file.create_dataset("empty", (0, 3), np.float32)
        file.create_dataset("unwritten", (4, 3), np.float32, fillvalue=2)
    assert ForeignRows(path, "sparse").read(6, 4).tolist() == [[7] * 3] * 2 + [[1] * 3] * 2
    assert ForeignRows(path, "empty").read(0, 0).shape == (0, 3)
    assert ForeignRows(path, "unwritten")[3].tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["contiguous", "gzip"])
def test_threads_and_forks(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=VALUES, **KINDS[kind][0])
    rows = ForeignRows(path, "features")

    def same() -> bool:
        return all(np.array_equal(rows[row], VALUES[row]) for row in range(23))

    assert same()
    child = os.fork()
    if child == 0:
        os._exit(0 if same() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: seen.append(same())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4
    rows.close()


def test_errors_say_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file["boxes"] = VALUES
        file["count"] = 3
    with pytest.raises(InputError, match=r"foreign\.h5: no array 'features'; there are boxes, count"):
        ForeignRows(path, "features")
    with pytest.raises(InputError, match="no array 'count'"):
        ForeignRows(path, "count")
    with pytest.raises(InputError, match=r"nothing\.h5: no such file"):
        ForeignRows(tmp_path / "nothing.h5", "features")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a whole HDF5 file"):
        ForeignRows(path, "features")
