"""Run by test_faults.py: a job that writes shards, killed at every step and at random, then run again.

The process forks a child per run; a child kills itself with SIGKILL, from inside a wrapped system call or a
profiled function call, or is killed by its parent after some milliseconds. Prints what went wrong as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Imported here so that children do not: what is killed is the writing.
import pyarrow.parquet
import xxhash  # noqa: F401

import camp.pipeline.arrow_shard
import camp.pipeline.hdf5_shard  # noqa: F401
from camp.files import checksum_file
from camp.pipeline.feature_index import FeatureIndex, finalize, is_done, list_markers, read_marker
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.shard_writer import ShardWriter
from camp.schema import Regions

PROVENANCE = {"extractor": "test"}
UNITS = {"train-00000": range(8), "test-00000": range(300, 305)}
STEPS = ("open", "pwrite", "ftruncate", "fsync", "replace", "unlink", "close")


def job(folder: Path, store: str, *, version: str = "new") -> None:
    """What a driver does: skip what is done, write the rest, then the index."""
    spec = FeatureSpec(regions=2, dim=3, dtype="float32", store=store)
    for shard, ids in UNITS.items():
        if is_done(folder, shard, f"{version} {shard}"):
            continue
        with ShardWriter(
            folder,
            shard=shard,
            spec=spec,
            fingerprint=f"{version} {shard}",
            capacity=len(ids),
            provenance=PROVENANCE,
        ) as writer:
            for image_id in ids:
                if image_id == 303:
                    writer.fail(image_id, "cannot be decoded")
                    continue
                features = np.full((2, 3), image_id + (1 if version == "new" else 2), np.float32)
                boxes = np.zeros((2, 4), np.float32)
                writer.add(image_id, Regions(boxes=boxes, features=features, width=1, height=1))
            writer.commit()
    finalize(folder, provenance=PROVENANCE, spec=spec, expected_shards=list(UNITS))


@dataclass
class Report:
    """What one scenario gave."""

    problems: list[str]
    steps: int


def child(work: Callable[[], None]) -> int:
    """Run in a fork -> how it ended."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException as error:  # the parent must not run twice
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def at_step(number: int, work: Callable[[], None], counted: list[int]) -> None:
    """Do some work with every step of it counted; die before the given one, which is after the one before."""
    lock = threading.Lock()

    def tick() -> None:
        with lock:
            counted[0] += 1
            if counted[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def wrap(name: str) -> None:
        plain: Any = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tick()
            return plain(*args, **kwargs)

        setattr(os, name, wrapped)

    for name in STEPS:
        wrap(name)
    folder = str(Path(sys.argv[1]))
    sys.addaudithook(
        lambda event, args: tick() if event == "open" and str(args[0]).startswith(folder) else None
    )
    work()


def at_call(number: int, work: Callable[[], None], counted: list[int]) -> None:
    """Do some work and die at the n-th function call."""

    def profile(frame: object, event: str, argument: object) -> None:
        counted[0] += 1
        if counted[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    work()
    sys.setprofile(None)


def count(how: Callable[..., None], work: Callable[[], None]) -> int:
    """How many steps or calls the work has."""
    read, write = os.pipe()

    def counting() -> None:
        counted = [0]
        how(-1, work, counted)
        os.write(write, str(counted[0]).encode())

    assert child(counting) == 0
    os.close(write)
    with os.fdopen(read) as stream:
        return int(stream.read())


def after_seconds(seconds: float, work: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def broken_promise(folder: Path) -> str | None:
    """Whether something vouches for bytes that are not there."""
    if not folder.exists():
        return None
    for shard in list_markers(folder):
        marker = read_marker(folder, shard)
        assert marker is not None
        if checksum_file(folder / marker["file"]) != marker["checksum"]:
            return f"the marker of {shard} is wrong"
    if (folder / "index.json").exists():
        for entry in FeatureIndex.open(folder).shards:
            if checksum_file(folder / entry["file"]) != entry["checksum"]:
                return f"the index is wrong about {entry['shard']}"
    return None


def no_sync(descriptor: object) -> None:
    """Nothing here loses power, so nothing has to reach the disk."""


def scenario(root: Path, store: str, *, replacing: bool, kills: int, rng: random.Random) -> Report:
    """Kill a job that starts in an empty folder, or in one with older shards of the same names."""
    report = Report(problems=[], steps=0)
    start, undisturbed, folder = root / "start", root / "undisturbed", root / "work"
    for path in (start, undisturbed):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    if replacing:
        assert child(lambda: job(start, store, version="old")) == 0
        shutil.copytree(start, undisturbed, dirs_exist_ok=True)
    assert child(lambda: job(undisturbed, store)) == 0
    expected = content(undisturbed)

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)

    def work() -> None:
        job(folder, store)

    def check(label: str, code: int) -> None:
        found = []
        if code not in (-signal.SIGKILL, 0):
            found.append(f"ended with {code}")
        if promise := broken_promise(folder):
            found.append(promise)
        if child(work) != 0:
            found.append("the second run failed")
        differing = set(content(folder).items()) ^ set(expected.items())
        if differing:
            found.append(f"other bytes in {sorted({name for name, _ in differing})}")
        report.problems += [f"replacing={replacing}, {label}: {problem}" for problem in found]

    reset()
    report.steps = count(at_step, work)
    for number in range(1, report.steps + 1):
        reset()
        check(f"step {number}", child(functools.partial(at_step, number, work, [0])))
    reset()
    calls = count(at_call, work)
    for number in rng.sample(range(1, calls), kills):
        reset()
        check(f"call {number}", child(functools.partial(at_call, number, work, [0])))
    reset()
    began = time.perf_counter()
    assert child(work) == 0
    seconds = time.perf_counter() - began
    for _ in range(kills):
        reset()
        instant = rng.random() * seconds
        check(f"after {instant:.4f} s", after_seconds(instant, work))
    return report


def main(root: Path, store: str, kills: int) -> None:
    os.fsync = no_sync  # type: ignore[assignment]
    FeatureSpec.batch_rows = property(lambda spec: 3)  # type: ignore[assignment,method-assign]
    pyarrow.array([0])  # looks for pandas, once
    rng = random.Random(0)
    reports = [
        scenario(root, store, replacing=replacing, kills=kills, rng=rng) for replacing in (False, True)
    ]
    problems = [problem for report in reports for problem in report.problems]
    print(json.dumps({"steps": [report.steps for report in reports], "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
