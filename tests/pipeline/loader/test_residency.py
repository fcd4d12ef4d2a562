"""Windows are read ahead and dropped behind; memory never holds more than the present and the next one."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.pipeline.feature_index import finalize
from camp.pipeline.feature_rows import FeatureRows, LocalShards
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.residency import Residency
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

MakeWorld = Callable[..., Any]
Integers = npt.NDArray[np.int64]


class Ledger:
    """Rows that were asked for and not given back."""

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.kept: set[int] = set()

    def will_need(self, positions: Integers) -> None:
        self.present |= set(positions.tolist())

    def let_go(self, positions: Integers) -> None:
        self.present -= set(positions.tolist())

    def keep(self, positions: Integers) -> None:
        self.kept = set(positions.tolist())


@given(
    windows=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch=st.integers(1, 12),
    begin=st.floats(0, 0.99),
)
def test_a_window_is_there_when_its_turn_comes_and_gone_afterwards(
    windows: list[int], batch: int, begin: float
) -> None:
    count = sum(windows)
    window_of = np.repeat(np.arange(len(windows)), windows)
    positions = np.random.default_rng(count).permutation(count)
    bounds = np.append(np.arange(0, count, batch), count)
    ledger = Ledger()
    residency = Residency(ledger, positions=positions, bounds=bounds, window_of=window_of)
    first = int(begin * (len(bounds) - 1))
    started = int(window_of[bounds[first]])
    for step in range(first, len(bounds) - 1):
        residency.before(step)
        used = positions[bounds[step] : bounds[step + 1]]
        own = window_of[bounds[step] : bounds[step + 1]]
        # Whatever lies beyond the window it began in was asked for before it is used.
        assert set(used[own > max(started, own[0])].tolist()) <= ledger.present
        assert set(used.tolist()) <= ledger.kept
        ledger.present |= set(used.tolist())
        held = {int(window_of[np.flatnonzero(positions == row)[0]]) for row in ledger.present}
        assert min(held) >= window_of[bounds[max(first, step - 4)]]
        assert max(held) <= max(own[-1] + 1, int(window_of[bounds[min(step + 3, len(bounds) - 1)] - 1]))
    residency.finish()
    assert not ledger.present


ROW_BYTES, ROWS = 36 * 256 * 2, 2048


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 512 rows, 38 MB, really on disk."""
    folder = tmp_path_factory.mktemp("large")
    spec = FeatureSpec(regions=36, dim=256)
    features = np.ones((36, 256), np.float32)
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (36, 1))
    names = [f"train-{number:05d}" for number in range(4)]
    for number, name in enumerate(names):
        with ShardWriter(folder, shard=name, spec=spec, fingerprint="test", capacity=512) as writer:
            for row in range(512):
                regions = Regions(boxes=boxes, features=features, width=10, height=10)
                writer.add(number * 512 + row, regions)
            writer.commit()
    finalize(folder, provenance={}, spec=spec, expected_shards=names)
    return folder


def resident_bytes(path: Path) -> int:
    """Bytes of a file that are in memory, whoever has them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                                            flags=mmap.MAP_PRIVATE) as mapped:  # fmt: skip
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found) == 0
        return sum(page & 1 for page in found) * mmap.PAGESIZE


def drop(folder: Path) -> None:
    for path in folder.glob("*.arrow"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident(folder: Path) -> int:
    return sum(resident_bytes(path) for path in folder.glob("*.arrow"))


def test_resident_pages_stay_within_two_windows(large_folder: Path) -> None:
    import torch

    drop(large_folder)
    if resident(large_folder) > 1 << 20:
        pytest.skip("this file system keeps its pages in memory")
    rows = FeatureRows(LocalShards(large_folder))
    window = 256  # rows; eight windows
    generator = np.random.default_rng(0)
    blocks = generator.permutation(ROWS // 64)
    positions = np.concatenate(
        [
            generator.permutation(np.concatenate([np.arange(64) + block * 64 for block in part]))
            for part in np.split(blocks, ROWS // window)
        ]
    )
    bounds = np.arange(0, ROWS + 1, 32)
    residency = Residency(
        rows, positions=positions, bounds=bounds, window_of=np.arange(ROWS) // window, drop_behind=True
    )
    out = torch.empty((32, 36, 256), dtype=torch.float16)
    most = 0
    for step in range(len(bounds) - 1):
        residency.before(step)
        rows.gather(positions[bounds[step] : bounds[step + 1]], out)
        assert (out == 1).all()
        if step % 4 == 3:
            most = max(most, resident(large_folder))
    residency.finish()
    # The kernel reads a little around what it is asked for.
    assert window * ROW_BYTES < most < 3 * window * ROW_BYTES
    assert resident(large_folder) < window * ROW_BYTES


def test_a_loader_with_windows_yields_what_one_without_does(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 40}, shard_size=16)
    for unit in ("image", "caption"):
        loader = world.loader(epoch_unit=unit, shuffle="window(4, 2)", drop_last=False)
        found = []
        for batch in loader:
            world.check(batch)
            found += (batch.image_ids if unit == "image" else batch.caption_ids).tolist()
        assert sorted(found) == (list(range(10, 50)) if unit == "image" else list(range(100, 300)))
        assert found != sorted(found)
