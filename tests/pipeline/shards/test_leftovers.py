"""Temporary files of dead writers -> gone; of living ones, here or elsewhere -> kept."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from camp.files import temporary_name
from camp.pipeline.feature_index import FeatureIndex, finalize
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.leftovers import claim, remove_leftovers
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions


@pytest.fixture
def dead_process() -> int:
    """The id of a process that has ended."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    return child


def leave(folder: Path, *, host: str | None = None, process: int, days: float = 0) -> Path:
    name = (host or socket.gethostname()).replace(".", "-")
    path = folder / f".train-00000.arrow.{name}.{process}.0123abcd.tmp"
    path.write_bytes(b"half a shard")
    stamp = path.stat().st_mtime - days * 86400
    os.utime(path, (stamp, stamp))
    return path


def test_of_dead_writers_on_this_host(tmp_path: Path, dead_process: int) -> None:
    path = leave(tmp_path, process=dead_process)
    assert remove_leftovers(tmp_path) == [path]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="zombies are told by /proc")
def test_of_dead_writers_that_nobody_has_looked_at(tmp_path: Path) -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        path = leave(tmp_path, process=child)
        assert remove_leftovers(tmp_path) == [path]
    finally:
        os.waitpid(child, 0)


def test_of_living_writers(tmp_path: Path) -> None:
    leave(tmp_path, process=os.getpid(), days=9)
    assert remove_leftovers(tmp_path) == []


def test_of_other_hosts_after_a_day(tmp_path: Path, dead_process: int) -> None:
    fresh = leave(tmp_path, host="elsewhere", process=dead_process)
    old = leave(tmp_path, host="further.away", process=os.getpid(), days=1.1)
    assert remove_leftovers(tmp_path) == [old]
    assert list(tmp_path.iterdir()) == [fresh]


def test_of_a_writer_in_another_container(tmp_path: Path, dead_process: int) -> None:
    """Its process cannot be seen from here, but its lock can."""
    path = leave(tmp_path, process=dead_process)
    with path.open("rb") as stream:
        claim(stream.fileno())
        assert remove_leftovers(tmp_path) == []
    assert remove_leftovers(tmp_path) == [path]


def test_other_files_stay(tmp_path: Path) -> None:
    for name in ("train-00000.arrow", ".hidden", ".notes.tmp", "lock"):
        (tmp_path / name).write_bytes(b"")
    assert remove_leftovers(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_temporary_names_are_never_the_same(tmp_path: Path) -> None:
    assert len({temporary_name(tmp_path / "a.json") for _ in range(100)}) == 100


@pytest.mark.parametrize("store", ["arrow", "hdf5"])
def test_two_writers_of_one_shard_are_harmless(tmp_path: Path, dead_process: int, store: str) -> None:
    spec = FeatureSpec(regions=1, dim=2, store=store)
    regions = Regions(
        boxes=np.zeros((1, 4), np.float32), features=np.ones((1, 2), np.float32), width=1, height=1
    )
    leave(tmp_path, process=dead_process)

    def begin() -> ShardWriter:
        writer = ShardWriter(tmp_path, shard="train-00000", spec=spec, fingerprint="unit", capacity=1)
        writer.add(0, regions)
        return writer

    with begin() as one, begin() as other:
        first = one.commit()
        index = finalize(tmp_path, provenance={}, spec=spec, expected_shards=["train-00000"])
        assert other.commit() == first
    assert FeatureIndex.open(tmp_path).value == index  # a straggler takes nothing back
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "failures.parquet",
        "index.json",
        f"train-00000{spec.suffix}",
        "train-00000.json",
    ]
