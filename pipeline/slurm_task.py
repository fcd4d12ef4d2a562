"""A job file, a task's number -> its share of the units done: what every task of a Slurm array runs.

    python -m camp.pipeline.slurm_task FOLDER            one task, its number from SLURM_ARRAY_TASK_ID
    python -m camp.pipeline.slurm_task FOLDER --finish   the dependent step: write the index

A task is a small local extraction over every K-th unit, so that a crash of the extractor is handled where it
happens. When the task itself is taken away, the next one with its number goes on: the markers say where.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..errors import CampError, MismatchError
from ..files import write_atomic
from ..manifests.dataset import Dataset
from .executor_local import LocalExecutor
from .extract_events import Event, Job, Ready
from .extract_job import extract_features, record_quarantined
from .extract_options import ExtractOptions
from .extract_state import control_folder, finished_units, read_state
from .folder_lock import folder_lock
from .plan import Unit
from .unit_queue import UnitQueue

JOB_FILE = "slurm_job.json"
UNITS_FILE = "slurm_units.jsonl"
STATUS_SECONDS = 2.0  # how often a task says how far it is


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """What a task last said of itself; the driver reads it from the shared file system."""

    shard: str = ""
    images: int = 0  # of that unit
    failed: int = 0
    finished: Mapping[str, Mapping[str, Any]]  # shard -> counts


def write_job(folder: Path, job: Job, units: list[Unit], *, tasks: int, driver: bool) -> None:
    """What the tasks need, beside the state that the driver has written."""
    control = control_folder(folder)
    with contextlib.suppress(FileNotFoundError):
        for path in (control / "tasks").iterdir():
            path.unlink()
    lines = "".join(json.dumps(unit.as_json()) + "\n" for unit in units)
    write_atomic(control / UNITS_FILE, lines.encode())
    description = {"job": job.to_json(), "tasks": tasks, "driver": driver}
    write_atomic(control / JOB_FILE, json.dumps(description, indent=1).encode())


def read_units(folder: Path) -> Iterator[Unit]:
    with (control_folder(folder) / UNITS_FILE).open(encoding="utf-8") as lines:
        for line in lines:
            yield Unit(**json.loads(line))


def read_tasks(folder: Path) -> int:
    """How many tasks share the units."""
    return int(json.loads((control_folder(folder) / JOB_FILE).read_bytes())["tasks"])


def read_status(folder: Path, task: int) -> TaskStatus | None:
    """What a task last said, or None where it has not begun."""
    try:
        return TaskStatus(**json.loads((control_folder(folder) / "tasks" / str(task)).read_bytes()))
    except FileNotFoundError:
        return None


def run_task(folder: Path, task: int) -> int:
    """Every K-th unit from `task` on -> the number that this task did."""
    description = json.loads((control_folder(folder) / JOB_FILE).read_bytes())
    job = Job.from_json(description["job"])
    # A driver that waits for its tasks holds the folder for them; tasks of a printed script hold it together.
    held = (
        contextlib.nullcontext()
        if description["driver"]
        else folder_lock(control_folder(folder), shared=True)
    )
    with held:
        return _Task(folder, job, task=task, tasks=description["tasks"]).run()


class _Task:
    def __init__(self, folder: Path, job: Job, *, task: int, tasks: int) -> None:
        self._folder, self._job, self._task, self._tasks = folder, job, task, tasks
        state = read_state(folder)
        if state is None:
            raise CampError(f"{folder}: no extraction was begun here; run 'camp-data extract' first")
        self._state = state
        self._queue: UnitQueue | None = None
        self._finished: dict[str, dict[str, Any]] = {}
        self._images = self._failed = 0
        self._written = 0.0

    def run(self) -> int:
        mine = [
            unit for number, unit in enumerate(read_units(self._folder)) if number % self._tasks == self._task
        ]
        if not self._job.retry:
            done = finished_units(self._folder, mine, fingerprint=self._state.fingerprint)
            mine = [unit for unit in mine if unit.shard not in done]
        if not mine:
            return 0
        self._queue = UnitQueue(mine)
        workers = max(1, len(_assigned_gpus()))
        LocalExecutor().run(self._job, queue=self._check, workers=workers, emit=self._tell)
        if isinstance(self._job.options, ExtractOptions):  # a caption cannot be left out
            record_quarantined(Dataset.open(self._job.dataset), self._job, self._state, self._queue)
        self._write_status("")
        return self._queue.done

    def _check(self, ready: Ready) -> UnitQueue:
        assert self._queue is not None
        if ready.fingerprint != self._state.fingerprint:
            raise MismatchError(
                f"{self._folder}: this node has another version of {self._job.options.maker} than the one "
                "that began; install the same release everywhere"
            )
        return self._queue

    def _tell(self, event: Event) -> None:
        if event.kind == "progress":
            self._images += event.images
            self._failed += event.failed
            if time.monotonic() - self._written > STATUS_SECONDS:
                self._write_status(event.shard)
        elif event.kind in ("started", "lost", "error"):
            self._images = self._failed = 0
            print(f"{event.kind} {event.shard} {event.text}", flush=True)
        elif event.kind == "done":
            self._finished[event.shard] = {
                "images": event.images,
                "failed": event.failed,
                "bytes": event.bytes,
                "seconds": event.seconds,
                "peak_memory": event.peak_memory,
            }
            self._write_status("")

    def _write_status(self, shard: str) -> None:
        self._written = time.monotonic()
        status = {
            "shard": shard,
            "images": self._images,
            "failed": self._failed,
            "finished": self._finished,
        }
        write_atomic(control_folder(self._folder) / "tasks" / str(self._task), json.dumps(status).encode())


def _assigned_gpus() -> list[str]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [device for device in chosen.split(",") if device.strip() not in ("", "-1")]


class _Nobody:
    """The executor of the step that only finishes: whatever is missing is an error."""

    speculate = False

    def run(self, job: Job, *, queue: Any, workers: Any, emit: Any) -> NoReturn:
        raise CampError(f"{job.name}: not all units are done; submit the array again, then finish")


def finish(folder: Path) -> int:
    """All shards are there -> the index. The exit code says whether images failed."""
    description = json.loads((control_folder(folder) / JOB_FILE).read_bytes())
    job = Job.from_json(description["job"])
    assert isinstance(job.options, ExtractOptions)
    splits = sorted({unit.split for unit in read_units(folder)})
    summary = extract_features(
        Dataset.open(job.dataset), name=job.name, options=job.options, splits=splits, executor=_Nobody()
    )
    print(f"{summary.folder}: {summary.done:,} of {summary.images:,} images, {summary.failed:,} failed")
    return 0 if summary.complete else 3


def main(arguments: list[str]) -> int:
    """The command line of the printed script."""
    signal.signal(signal.SIGTERM, _stop)
    folder = Path(arguments[0])
    try:
        if arguments[1:] == ["--finish"]:
            return finish(folder)
        run_task(folder, int(os.environ["SLURM_ARRAY_TASK_ID"]))
    except CampError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # whole shards stay, the rest is done by the task that comes next


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
