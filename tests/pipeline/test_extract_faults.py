"""Extraction under fire: real processes are killed, and afterwards all is as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camp.errors import StorageError
from camp.manifests.dataset import Dataset
from camp.pipeline import executor_local
from camp.pipeline.extract_events import Event
from camp.pipeline.extract_job import extract_features
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.feature_index import FeatureIndex
from camp.pipeline.live_view import SilentView
from camp.pipeline.unit_queue import MAX_LOSSES

MakePhotographs = Callable[..., Dataset]

DRIVER = """
import json, sys
from camp.manifests.dataset import Dataset
from camp.pipeline.extract_job import extract_features
from camp.pipeline.extract_options import ExtractOptions
options = ExtractOptions.from_json(json.loads(sys.argv[2]))
extract_features(Dataset.open(sys.argv[1]), name="fake", options=options, workers=2)
"""


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def undisturbed(dataset: Dataset, options: ExtractOptions) -> dict[str, bytes]:
    extract_features(dataset, name="undisturbed", options=options, workers=2)
    return folder_bytes(dataset.features_folder("undisturbed"))


class Saboteur(SilentView):
    """Calls a function on the n-th event of a kind."""

    def __init__(self, kind: str, number: int, action: Callable[[Event], None]) -> None:
        self._kind, self._left, self._action = kind, number, action
        self.kinds: list[str] = []

    def handle(self, event: Event) -> None:
        self.kinds.append(event.kind)
        if event.kind == self._kind:
            self._left -= 1
            if self._left == 0:
                self._action(event)


def _children(parent: int) -> list[int]:
    """The workers of a process; it may have children of other kinds, such as a resource tracker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if _is_worker(child)]


def _is_worker(process: str) -> bool:
    try:
        return b"worker_process" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it ended in the meantime
        return False


def _kill_a_worker(event: Event) -> None:
    os.kill(_children(os.getpid())[0], signal.SIGKILL)


@pytest.mark.parametrize("number", [1, 5])
def test_a_killed_worker_costs_its_unit_and_nothing_else(
    number: int, make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 16})
    expected = undisturbed(dataset, fake_options)
    saboteur = Saboteur("progress", number, _kill_a_worker)
    summary = extract_features(dataset, name="fake", options=fake_options, workers=2, view=saboteur)
    assert summary.complete
    assert saboteur.kinds.count("lost") == 1
    assert folder_bytes(dataset.features_folder("fake")) == expected


def test_a_killed_driver_goes_on_where_it_stopped(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_photographs({"train": 16, "val": 3})
    expected = undisturbed(dataset, fake_options)
    monkeypatch.setenv("SLOW", "0.02")
    folder = dataset.features_folder("fake")
    command = [sys.executable, "-c", DRIVER, str(dataset.root), json.dumps(fake_options.to_json())]
    generator = random.Random(7)
    kept: dict[str, int] = {}
    kills = 0
    for _ in range(12):
        driver = subprocess.Popen(command, stderr=subprocess.PIPE)
        workers: list[int] = []
        # Killed at a random instant of its working life, not of Python's start.
        markers = generator.randrange(3)
        deadline = time.monotonic() + 0.25 * generator.random()
        while _runs_on(driver):
            workers = _children(driver.pid) or workers
            done = len(list(folder.glob("*-*.json"))) - len(kept) if folder.is_dir() else 0
            if workers and done >= markers:
                if time.monotonic() > deadline:
                    driver.kill()
                    break
            else:
                deadline = time.monotonic() + 0.25 * generator.random()
        code = driver.wait()
        assert driver.stderr is not None
        message = driver.stderr.read().decode()
        driver.stderr.close()
        assert code in (0, -signal.SIGKILL), message
        for path, changed in kept.items():
            assert (folder / path).stat().st_mtime_ns == changed  # what was done is not done again
        kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-*.json")}
        if code == 0:
            break
        kills += 1
    assert code == 0, "killed every time: nothing gets done"
    assert kills >= 1
    assert folder_bytes(folder) == expected
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_workers_do_not_outlive_their_driver(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "30")
    dataset = make_photographs({"train": 4})
    command = [sys.executable, "-c", DRIVER, str(dataset.root), json.dumps(fake_options.to_json())]
    driver = subprocess.Popen(command)
    while not (workers := _children(driver.pid)):
        assert _runs_on(driver)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 30
    while any(_is_running(worker) for worker in workers) and time.monotonic() < deadline:
        _runs_on(driver)
    assert not any(_is_running(worker) for worker in workers)


def _runs_on(process: subprocess.Popen[Any]) -> bool:
    """Whether a process is alive; gives it a moment of this core."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.005)
    return process.returncode is None


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_an_image_that_kills_workers_is_found_and_left_out(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 12}, widths={5: 13})
    summary = extract_features(dataset, name="fake", options=fake_options, workers=2)
    assert (summary.done, summary.failed) == (11, 1)
    assert summary.reasons == {"worker died (killed by SIGKILL)": 1}
    failures = FeatureIndex.open(dataset.features_folder("fake")).failures().to_pylist()
    assert [failure["image_id"] for failure in failures] == [5]


def test_a_unit_that_always_crashes_is_quarantined_and_the_rest_completes(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, tmp_path: Path
) -> None:
    dataset = make_photographs({"train": 12})
    module = Path(os.environ["FAKE_EXTRACTOR"])
    original = module.read_text()
    # The unit with image 4 dies before any image is touched: nothing to blame.
    module.write_text(
        original
        + """
import camp.pipeline.extract_worker as worker
listed = worker.unit_images
def unit_images(dataset, unit):
    rows = listed(dataset, unit)
    if rows[0].image_id == 4:
        os._exit(9)
    return rows
worker.unit_images = unit_images
"""
    )
    saboteur = Saboteur("never", 1, _kill_a_worker)
    summary = extract_features(dataset, name="fake", options=fake_options, workers=2, view=saboteur)
    assert (summary.done, summary.failed) == (8, 4)
    assert summary.quarantined == {"train-00001": "worker died (exit code 9)"}
    assert summary.reasons == {"unit given up: worker died (exit code 9)": 4}
    assert saboteur.kinds.count("lost") == MAX_LOSSES
    module.write_text(original)
    summary = extract_features(dataset, name="fake", options=fake_options, retry_failed=True)
    assert summary.complete
    assert folder_bytes(dataset.features_folder("fake")) == undisturbed(dataset, fake_options)


def test_a_full_disk_ends_the_run_and_freeing_it_resumes(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_photographs({"train": 12})
    module = Path(os.environ["FAKE_EXTRACTOR"])
    original = module.read_text()
    module.write_text(
        original
        + """
import errno
import camp.pipeline.shard_writer as store
publish = store.publish
def full(temporary, path):
    if path.name != "train-00000.arrow":
        raise OSError(errno.ENOSPC, "No space left on device")
    publish(temporary, path)
store.publish = full
"""
    )
    with pytest.raises(StorageError, match="no space left on the disk; free some and run"):
        extract_features(dataset, name="fake", options=fake_options, workers=2)
    folder = dataset.features_folder("fake")
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    module.write_text(original)
    summary = extract_features(dataset, name="fake", options=fake_options, workers=2)
    assert summary.units_before == 1
    assert summary.complete
    assert folder_bytes(folder) == undisturbed(dataset, fake_options)


def test_a_worker_whose_disk_is_full_leaves_its_units_to_the_others(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, tmp_path: Path
) -> None:
    dataset = make_photographs({"train": 24})
    module = Path(os.environ["FAKE_EXTRACTOR"])
    original = module.read_text()
    module.write_text(
        original
        + f"""
import errno
import camp.pipeline.shard_writer as store
publish = store.publish
def full(temporary, path):
    try:
        os.symlink(str(os.getpid()), {str(tmp_path / "first")!r})  # the first to get here has no room
    except FileExistsError:
        pass
    if os.readlink({str(tmp_path / "first")!r}) == str(os.getpid()):
        raise OSError(errno.ENOSPC, "No space left on device")
    publish(temporary, path)
store.publish = full
"""
    )
    watch = Saboteur("retired", 1, lambda event: None)
    summary = extract_features(dataset, name="fake", options=fake_options, workers=2, view=watch)
    assert summary.complete
    assert 1 <= watch.kinds.count("error") <= executor_local.MAX_STORAGE_ERRORS
    module.write_text(original)
    assert folder_bytes(dataset.features_folder("fake")) == undisturbed(dataset, fake_options)


def test_a_worker_that_shows_no_life_is_replaced(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_photographs({"train": 8})
    expected = undisturbed(dataset, fake_options)
    monkeypatch.setattr(executor_local, "POLL_SECONDS", 0.1)
    patience = executor_local.STALL_SECONDS

    class Freezer(Saboteur):
        def handle(self, event: Event) -> None:
            super().handle(event)
            if event.kind == "lost":
                monkeypatch.setattr(executor_local, "STALL_SECONDS", patience)

    def freeze(event: Event) -> None:
        os.kill(_children(os.getpid())[0], signal.SIGSTOP)
        monkeypatch.setattr(executor_local, "STALL_SECONDS", 0.3)

    saboteur = Freezer("started", 1, freeze)
    summary = extract_features(dataset, name="fake", options=fake_options, workers=1, view=saboteur)
    assert summary.complete
    assert saboteur.kinds.count("lost") == 1
    assert folder_bytes(dataset.features_folder("fake")) == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_leaves_whole_shards_and_says_how_to_go_on(
    number: signal.Signals,
    code: int,
    make_photographs: MakePhotographs,
    fake_options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLOW", "0.2")
    dataset = make_photographs({"train": 12})
    command = [sys.executable, "-c", SHELL, json.dumps(fake_options.to_json()), str(dataset.root)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = dataset.features_folder("fake")
    while not list(folder.glob("*-*.json")):
        assert _runs_on(process)
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == code
    assert "run the same command again to go on" in message
    done = len(list(folder.glob("*-*.json")))
    assert done < 3
    monkeypatch.setenv("SLOW", "0")
    summary = extract_features(dataset, name="fake", options=fake_options)
    assert (summary.units_before, summary.complete) == (done, True)


# The command line as a user has it, with the fake extractor in place of the package's builder.
SHELL = """
import json, sys
from camp.pipeline import extract_options
given = extract_options.ExtractOptions.from_json(json.loads(sys.argv[1]))
import camp.commands.extract as extract
extract._options = lambda _: given
from camp.cli import camp_data
sys.argv = ["camp-data", "extract", sys.argv[2], "--name", "fake"]
camp_data()
"""
