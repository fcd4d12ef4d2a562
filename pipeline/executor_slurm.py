"""A queue of units -> done by the tasks of a Slurm array, K of them, each taking every K-th unit.

Slurm only starts the tasks. What is done is told by the shards' own markers, never by Slurm's accounting,
which many clusters do not have.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CampError, InputError, MissingPackageError
from ..files import write_atomic
from ..manifests.dataset import Dataset
from .executor_local import describe_local
from .extract_events import Emit, Event, Job, Ready
from .extract_state import control_folder, finished_units
from .job_worker import job_folder
from .plan import Unit
from .slurm_task import read_status, read_tasks, run_task, write_job
from .unit_queue import UnitQueue

DEFAULT_TASKS = 8
POLL_SECONDS = 2.0
MAX_ROUNDS = 3  # arrays submitted for what earlier ones left
LINGER_SECONDS = 10.0  # after the last task is gone, until its files must be visible on a shared file system
_ID_FILE = "slurm_array"


@dataclass(frozen=True)
class SlurmTask:
    """What submitit runs and, after preemption or a time limit, runs again."""

    folder: str
    task: int

    def __call__(self) -> int:
        return run_task(Path(self.folder), self.task)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)  # the markers are the checkpoint


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor:
    """What each task of the array asks Slurm for."""

    partition: str | None = None
    minutes: int = 24 * 60
    memory_per_worker: int | None = None  # bytes
    gpus_per_worker: int = 0
    parameters: Mapping[str, Any] = field(
        default_factory=dict
    )  # more for sbatch: account, qos, constraint, ...
    cluster: str = "slurm"  # 'local' runs the tasks here, for trying things out
    speculate: bool = False

    def run(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None, emit: Emit) -> None:
        submitit = _import_submitit()
        folder = _shared_folder(job)
        ready = describe_local(job)
        units = _drain(queue(ready), emit)
        emit(Event(kind="ready", worker="slurm", text=f"a login node; the tasks use {job.options.device}"))
        watch = _Watch(folder, units, ready.fingerprint, queue(ready), emit)
        tasks = min(workers or DEFAULT_TASKS, len(units))
        for round_number in range(MAX_ROUNDS):
            before = len(watch.waiting)
            array = self._earlier_array(folder) if round_number == 0 else None
            if array is not None:
                tasks = read_tasks(folder)
            else:
                write_job(folder, job, list(watch.waiting.values()), tasks=tasks, driver=True)
                array = self._submit(submitit, folder, tasks, job)
            emit(Event(kind="note", text=f"Slurm array {array.id}, logs in {_logs(folder)}"))
            try:
                watch.follow(array, tasks)
            except BaseException:
                array.cancel()
                raise
            if not watch.waiting:
                array.settle()
                return
            if len(watch.waiting) == before:
                break
            emit(Event(kind="note", text=f"{len(watch.waiting):,} units are left: submitting again"))
        raise CampError(
            f"{folder}: {len(watch.waiting):,} units are not done and the Slurm tasks have ended; see their "
            f"logs in {_logs(folder)}, then run the same command again"
        )

    def _submit(self, submitit: Any, folder: Path, tasks: int, job: Job) -> _Array:
        executor = submitit.AutoExecutor(folder=_logs(folder), cluster=self.cluster)
        executor.update_parameters(
            name=f"camp-{job.name}"[:40],
            timeout_min=self.minutes,
            cpus_per_task=job.options.threads + 1,  # one to compute, one to decode
            gpus_per_node=self.gpus_per_worker,
            **({"mem_gb": self.memory_per_worker / 1e9} if self.memory_per_worker else {}),
        )
        if self.cluster == "slurm":
            executor.update_parameters(
                slurm_array_parallelism=tasks,
                **({"slurm_partition": self.partition} if self.partition else {}),
                **({"slurm_additional_parameters": dict(self.parameters)} if self.parameters else {}),
            )
        submitted = executor.submit_array([SlurmTask(str(folder), task) for task in range(tasks)])
        identity = str(submitted[0].job_id).split("_")[0]
        if self.cluster == "slurm":
            write_atomic(control_folder(folder) / _ID_FILE, identity.encode())
        return _Array(identity, submitted, slurm=self.cluster == "slurm")

    def _earlier_array(self, folder: Path) -> _Array | None:
        """The array of a driver that died, if its tasks are still at work."""
        try:
            identity = (control_folder(folder) / _ID_FILE).read_text()
        except FileNotFoundError:
            return None
        array = _Array(identity, [], slurm=True)
        return array if self.cluster == "slurm" and array.active() else None

    def script(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None) -> str:
        """A plain array script and its dependent step, for those who submit by hand."""
        folder = _shared_folder(job)
        units = _drain(queue(describe_local(job)), lambda event: None)
        tasks = min(workers or DEFAULT_TASKS, max(len(units), 1))
        write_job(folder, job, units, tasks=tasks, driver=False)
        _logs(folder).mkdir(parents=True, exist_ok=True)
        lines = [
            f"--job-name=camp-{job.name}"[:40],
            f"--array=0-{tasks - 1}",
            f"--output={_logs(folder)}/%A_%a.log",
            f"--time={self.minutes}",
            f"--cpus-per-task={job.options.threads + 1}",
            "--requeue",
            "--signal=B:USR1@120",
            *([f"--partition={self.partition}"] if self.partition else []),
            *([f"--mem={self.memory_per_worker // 1_000_000}M"] if self.memory_per_worker else []),
            *([f"--gpus-per-node={self.gpus_per_worker}"] if self.gpus_per_worker else []),
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.parameters.items()),
        ]
        run = f"{shlex.quote(sys.executable)} -m camp.pipeline.slurm_task {shlex.quote(str(folder))}"
        return _SCRIPT.format(directives="\n".join(f"#SBATCH {line}" for line in lines), run=run)


# A task that runs out of time puts itself back into the queue.
_SCRIPT = """#!/bin/bash
{directives}
#
# Submit with:  ID=$(sbatch --parsable FILE) && sbatch --dependency=afterany:$ID --wrap "{run} --finish"
# Submit it again to go on after failures: finished shards are not done twice.

{run} &
TASK=$!
trap 'kill -TERM $TASK; wait $TASK; scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"' USR1
wait $TASK
CODE=$?
[ $CODE -eq 3 ] && CODE=0  # images that cannot be used are recorded, and no reason to fail a task
exit $CODE
"""


class _Array:
    """Tasks that have been submitted."""

    def __init__(self, identity: str, jobs: list[Any], *, slurm: bool) -> None:
        self.id, self._jobs, self._slurm = identity, jobs, slurm

    def active(self) -> bool:
        """Whether any task waits or runs."""
        if not self._slurm:
            return not all(job.done() for job in self._jobs)
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", self.id, "--format", "%T"],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode and "Invalid job id" not in answer.stderr:
            return True  # the controller does not answer: that says nothing about the tasks
        return bool(answer.stdout.strip())

    def settle(self) -> None:
        """Give tasks that have nothing left to do a moment to end."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self.active() and time.monotonic() < deadline:
            time.sleep(min(POLL_SECONDS, 0.5))

    def cancel(self) -> None:
        if self._slurm:
            subprocess.run(["scancel", self.id], capture_output=True, check=False)
            return
        for job in self._jobs:
            job.cancel(check=False)


class _Watch:
    """Follows the tasks by the files they write."""

    def __init__(
        self, folder: Path, units: list[Unit], fingerprint: str, queue: UnitQueue, emit: Emit
    ) -> None:
        self._folder, self._fingerprint, self._queue, self._emit = folder, fingerprint, queue, emit
        self.waiting = {unit.shard: unit for unit in units}
        self._seen: dict[int, tuple[str, int, int]] = {}

    def follow(self, array: _Array, tasks: int) -> None:
        """Until every unit is done, or no task is left."""
        gone_since: float | None = None
        while self.waiting:
            for task in range(tasks):
                self._read(task)
            if array.active():
                gone_since = None
            else:
                gone_since = gone_since or time.monotonic()
                self._look_at_markers()
                if time.monotonic() - gone_since > LINGER_SECONDS:
                    return
            if self.waiting:
                time.sleep(POLL_SECONDS)

    def _read(self, task: int) -> None:
        status = read_status(self._folder, task)
        if status is None:
            return
        worker = f"task-{task}"
        for shard, counts in status.finished.items():
            if shard in self.waiting:
                self._finish(shard, worker, counts)
        if status.shard in self.waiting:
            shard, images, failed = self._seen.get(task, ("", 0, 0))
            if shard != status.shard or status.images < images:
                self._emit(Event(kind="started", worker=worker, shard=status.shard))
                images = failed = 0
            self._emit(
                Event(
                    kind="progress",
                    worker=worker,
                    shard=status.shard,
                    images=status.images - images,
                    failed=status.failed - failed,
                )
            )
            self._seen[task] = (status.shard, status.images, status.failed)

    def _look_at_markers(self) -> None:
        """Units whose task was killed before it could say so."""
        done = finished_units(self._folder, list(self.waiting.values()), fingerprint=self._fingerprint)
        for shard, unit in done.items():
            counts = {"images": unit.rows, "failed": len(unit.reasons), "bytes": unit.bytes}
            self._finish(shard, "slurm", counts)

    def _finish(self, shard: str, worker: str, counts: Mapping[str, Any]) -> None:
        del self.waiting[shard]
        self._queue.finish("slurm", shard)
        self._emit(Event(kind="done", worker=worker, shard=shard, **counts))


def _drain(queue: UnitQueue, emit: Emit) -> list[Unit]:
    """All units of a queue: Slurm's tasks share them out among themselves."""
    units = []
    while (assignment := queue.take("slurm")) is not None:
        units.append(assignment.unit)
    return units


def _shared_folder(job: Job) -> Path:
    if "://" in job.dataset:
        raise InputError(
            f"{job.dataset}: the Slurm executor needs a data set on a file system that all nodes share; "
            "image roots may be URLs"
        )
    return job_folder(job, Dataset.open(job.dataset))


def _logs(folder: Path) -> Path:
    return control_folder(folder) / "slurm-logs"


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise MissingPackageError(
            "--executor slurm needs the package 'submitit'; install it with: "
            "pip install 'camp-toolkit[slurm]', or use --print-sbatch"
        ) from None
    return submitit
