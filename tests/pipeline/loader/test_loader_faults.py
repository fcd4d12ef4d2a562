"""What goes wrong under a running loader is an error that names the shard: no hang, no thread left."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camp.errors import VerificationError
from camp.pipeline.loader import FeatureLoader

MakeWorld = Callable[..., Any]


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"other bytes")
    os.utime(path, ns=(0, 0))  # a moment that differs, however coarse the clock of the file system is


def replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


@pytest.mark.parametrize("store", ["arrow", "hdf5"])
@pytest.mark.parametrize("change", [remove, truncate, overwrite, replace])
def test_a_shard_that_changes_is_named_by_one_of_the_next_batches(
    make_world: MakeWorld, store: str, change: Callable[[Path], None]
) -> None:
    world = make_world(own=True, counts={"train": 40}, store=store, shard_size=40)
    loader = world.loader(prefetch=1, threads=2)
    iterator = iter(loader)
    world.check(next(iterator))
    path = next(world.dataset.features_folder("made").glob("train-00000.[ah]*"))
    change(path)
    with pytest.raises(VerificationError) as caught:  # noqa: PT012 - the loop is what fails
        for batch in itertools.islice(iterator, 3):
            world.check(batch)  # what was prefetched before the change is whole
    assert str(caught.value).startswith(f"{path}: ")
    assert ("disappeared" if change is remove else "changed") in str(caught.value)
    assert "camp-data verify" in str(caught.value)
    assert next(iterator, None) is None
    assert 1 <= loader.state_dict()["sample_in_epoch"] // 4 <= 3


def test_the_batches_before_a_fault_are_counted_and_it_can_be_mended(make_world: MakeWorld) -> None:
    world = make_world(own=True, counts={"train": 40}, shard_size=40)
    loader = world.loader(prefetch=1)
    whole = [batch.image_ids.tolist() for batch in loader]
    path = world.dataset.features_folder("made") / "train-00000.arrow"
    aside = path.with_suffix(".aside")
    found = []
    with pytest.raises(VerificationError):  # noqa: PT012 - the loop is what fails
        for batch in loader:
            found.append(batch.image_ids.tolist())
            if len(found) == 2:
                path.rename(aside)
    aside.rename(path)
    found += [batch.image_ids.tolist() for batch in loader]
    assert found == whole


def test_an_error_in_the_background_thread_is_raised_by_the_next_batch(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: FeatureLoader = make_world(counts={"train": 40}).loader()
    iterator = iter(loader)
    next(iterator)
    monkeypatch.setattr(loader._rows, "gather", lambda positions, out: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(iterator)
    made = loader._delivery.ring.made
    monkeypatch.undo()
    assert len(list(loader)) >= 7
    assert loader._delivery.ring.made <= made + 8  # list() keeps them all


SCRIPT = """
import os, signal, sys, threading
from camp.pipeline.loader import FeatureLoader
loader = FeatureLoader(sys.argv[1], split="train", features="made", batch_size=2, threads=2)
try:
    while True:
        for number, batch in enumerate(loader):
            if number == 1:
                MIDDLE
except KeyboardInterrupt:
    del batch
    left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    print("interrupted", left, flush=True)
    raise
"""


@pytest.mark.parametrize("waiting", [False, True])
def test_ctrl_c_ends_the_process_and_its_threads(make_world: MakeWorld, waiting: bool) -> None:
    """In the loop's body, or while the consumer waits for a batch that never comes."""
    middle = "os.kill(os.getpid(), signal.SIGINT)"
    if waiting:
        middle = (
            "loader._rows.gather = lambda *a: (threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))"
            ".start(), threading.Event().wait(5))"
        )
    world = make_world(counts={"train": 40})
    code = textwrap.dedent(SCRIPT).replace("MIDDLE", middle)
    done = subprocess.run(
        [sys.executable, "-c", code, str(world.dataset.root)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith("interrupted ["), done.stderr
    assert done.returncode in (-signal.SIGINT, 130)
    if not waiting:
        assert done.stdout == "interrupted []\n"


def test_a_consumer_that_fails_leaves_no_thread(make_world: MakeWorld) -> None:
    loader = make_world(counts={"train": 40}).loader(threads=2)

    def consume() -> None:
        for _ in loader:
            raise ValueError("the model's fault")

    with pytest.raises(ValueError, match="the model's fault"):
        consume()
    loader.close()


def test_a_shard_that_is_cut_short_in_the_middle_of_a_copy(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could have seen it before: the copy itself runs into the end of the file."""
    world = make_world(own=True, counts={"train": 40}, shard_size=40)
    path = world.dataset.features_folder("made") / "train-00000.arrow"
    loader: FeatureLoader = world.loader()
    monkeypatch.setattr(loader._maker, "make", _before(loader._maker.make, lambda: os.truncate(path, 0)))
    with pytest.raises(VerificationError, match="train-00000.arrow: changed while it was being read"):
        next(iter(loader))


def _before(function: Callable[..., Any], first: Callable[[], None]) -> Callable[..., Any]:
    def both(*arguments: Any, **options: Any) -> Any:
        first()
        return function(*arguments, **options)

    return both


def test_a_bus_error_elsewhere_is_left_alone() -> None:
    code = """
import mmap, os, tempfile
from camp.pipeline.bus_guard import GUARD
GUARD.watch(4096, 4096)
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(1 << 16))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(file.name, 0)
    mapped[100]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGBUS
