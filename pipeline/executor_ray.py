"""A queue of units -> done by Ray actors on every node of a cluster; nodes may come and go meanwhile.

Features never pass through Ray: an actor writes its shard to the data set's file system and returns counts.
Dead actors are replaced by the driver and not by Ray's own restarts: where machines are taken away and given
back, no number of restarts is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import errors
from ..errors import CampError, InputError, MissingPackageError, StorageError
from .executor_local import MAX_START_FAILURES, MAX_STORAGE_ERRORS
from .extract_events import Emit, Event, Job, Ready
from .extract_state import read_suspect, write_suspect
from .job_worker import build_worker, job_folder
from .plan import Unit
from .remote_dataset import open_dataset
from .unit_queue import UnitQueue
from .worker_process import MAX_HANGING, error_event, limit_threads, peak_memory

POLL_SECONDS = 1.0  # how often progress is asked for
RESIZE_SECONDS = 10.0  # how often the cluster is looked at for new nodes


class ExtractActor:
    """The one worker, as a Ray actor: built once, then unit after unit. progress() is answered meanwhile."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = Job.from_json(job)
        self._images = self._failed = 0
        self._error: dict[str, Any] | None = None
        try:
            self._worker = build_worker(self._job)
            limit_threads(self._job.options.threads)
        except Exception as error:
            self._error = error_event(error, fatal=True)

    def ready(self) -> dict[str, Any]:
        """Where it is and what it makes, or why it cannot."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        if self._error is not None:
            return {**self._error, "node": node}
        return {
            "event": "ready",
            "node": node,
            "device": self._worker.device,
            "description": self._worker.description,
            "fingerprint": self._worker.fingerprint,
        }

    def run(self, unit: dict[str, Any], careful: bool, skip: dict[int, str]) -> dict[str, Any]:
        """One unit, committed; counts come back."""
        self._images = self._failed = 0
        shard = unit["shard"]

        def announce(event: Any) -> None:
            if event["event"] == "at":
                write_suspect(self._worker.folder, shard, event["image"])
            else:
                self._images += event["images"]
                self._failed += event["failed"]

        try:
            stats = self._worker.run(
                Unit(**unit), careful=careful, skip=skip, retry=self._job.retry, announce=announce
            )
        except Exception as error:
            return error_event(error, fatal=False)
        tired = self._worker.hanging >= MAX_HANGING
        return {"event": "done", **stats.as_json(), "peak_memory": peak_memory(), "tired": tired}

    def progress(self) -> tuple[int, int]:
        """Images and failures of the unit in hand."""
        return self._images, self._failed


@dataclass
class _Actor:
    """The driver's side of one actor."""

    name: str
    handle: Any
    node: str = ""
    shard: str | None = None
    careful: bool = False
    run: Any = None  # the reference of what it is doing: its start or a unit
    progress: Any = None
    seen: tuple[int, int] = (0, 0)
    asked: float = 0.0
    storage_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class RayExecutor:
    """Where the cluster is and what an actor gets of it."""

    address: str = "auto"  # 'auto', 'local', or host:port
    gpus_per_worker: float = 1.0
    memory_per_worker: int | None = None  # bytes
    speculate: bool = True  # stragglers are done twice at the end

    def run(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None, emit: Emit) -> None:
        ray = _import_ray()
        started = self._connect(ray)
        try:
            pool = _Pool(self, ray, job, queue, emit, workers)
            try:
                pool.run()
            finally:
                pool.close()
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> bool:
        """Whether this call connected, and so has to disconnect."""
        if ray.is_initialized():
            return False
        try:
            if self.address == "local":
                ray.init(include_dashboard=False, log_to_driver=False)
            else:
                ray.init(address=self.address, log_to_driver=False)
        except Exception as error:  # Ray raises all kinds, some of them plain Exception
            raise InputError(
                f"--ray-address {self.address}: no Ray cluster answers ({_first_line(error)}); start one "
                "with 'ray start --head', or use --ray-address local"
            ) from None
        return True

    def resources(self, ray: Any, job: Job) -> dict[str, Any]:
        """What an actor asks Ray for."""
        wanted: dict[str, Any] = {"num_cpus": job.options.threads}
        total = ray.cluster_resources()
        if job.options.device == "cuda" or (job.options.device == "auto" and total.get("GPU", 0)):
            wanted["num_gpus"] = self.gpus_per_worker
        if self.memory_per_worker:
            wanted["memory"] = self.memory_per_worker
        return wanted

    def capacity(self, ray: Any, job: Job) -> int:
        """How many actors the cluster carries now."""
        total, wanted = ray.cluster_resources(), self.resources(ray, job)
        shares = [total.get("CPU", 0) / wanted["num_cpus"]]
        if "num_gpus" in wanted:
            shares.append(total.get("GPU", 0) / wanted["num_gpus"])
        if "memory" in wanted:
            shares.append(total.get("memory", 0) / wanted["memory"])
        return max(1, int(min(shares)))


class _Pool:
    def __init__(
        self,
        executor: RayExecutor,
        ray: Any,
        job: Job,
        queue: Callable[[Ready], UnitQueue],
        emit: Emit,
        workers: int | None,
    ) -> None:
        self._executor, self._ray, self._job, self._emit = executor, ray, job, emit
        self._ask_queue, self._workers = queue, workers
        self._queue: UnitQueue | None = None
        self._actors: list[_Actor] = []
        self._given_up = 0  # places whose storage keeps failing
        self._storage_error = ""
        self._start_failures = 0
        self._count = 0
        self._resized = 0.0
        # Behind a URL actors and driver share no folder: no image can be blamed, only the whole unit.
        remote = "://" in job.dataset
        self._folder = None if remote else job_folder(job, open_dataset(job.dataset))
        self._class = ray.remote(concurrency_groups={"progress": 1})(ExtractActor)

    def run(self) -> None:
        while self._queue is None or not self._queue.finished:
            self._resize()
            if not self._actors:
                raise StorageError(self._storage_error)
            pending = [actor.run for actor in self._actors if actor.run is not None]
            if pending:
                self._ray.wait(pending, timeout=POLL_SECONDS)
            for actor in list(self._actors):
                self._advance(actor)

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor.handle, no_restart=True)
        self._actors = []

    def _resize(self) -> None:
        """Actors for every free place: at the start, after a death, and when nodes have joined."""
        target = self._workers
        if target is None:
            if self._actors and time.monotonic() - self._resized < RESIZE_SECONDS:
                return
            self._resized = time.monotonic()
            target = self._executor.capacity(self._ray, self._job)
        if self._queue is not None:
            busy = sum(actor.shard is not None for actor in self._actors)
            target = min(target, busy + self._queue.waiting)
        else:
            target = min(target, max(self._job.units, 1))
        for _ in range(target - self._given_up - len(self._actors)):
            self._start()

    def _start(self) -> None:
        resources = self._executor.resources(self._ray, self._job)
        handle = self._class.options(**resources, max_restarts=0, max_task_retries=0).remote(
            self._job.to_json()
        )
        actor = _Actor(name=f"ray-{self._count}", handle=handle)
        actor.run = handle.ready.remote()
        self._count += 1
        self._actors.append(actor)

    def _advance(self, actor: _Actor) -> None:
        """Look at one actor: has it ended what it was doing, how far is it, what is next."""
        try:
            if actor.run is not None and self._ray.wait([actor.run], timeout=0)[0]:
                message, actor.run = self._ray.get(actor.run), None
                self._handle(actor, message)
            self._poll(actor)
        except self._ray.exceptions.RayActorError as error:
            self._bury(actor, error)
            return
        if self._queue is not None and actor in self._actors and actor.run is None:
            self._assign(actor)

    def _handle(self, actor: _Actor, message: dict[str, Any]) -> None:
        if message["event"] == "ready":
            self._start_failures = 0
            actor.node = message["node"]
            self._queue = self._ask_queue(
                Ready(
                    worker=actor.name,
                    device=message["device"],
                    description=message["description"],
                    fingerprint=message["fingerprint"],
                )
            )
            where = f"{message['device']}, node {actor.node[:8]}"
            self._emit(Event(kind="ready", worker=actor.name, text=where))
        elif message["event"] == "done":
            self._done(actor, message)
        elif message["fatal"]:
            kind = getattr(errors, message["kind"], CampError)
            raise kind(message["reason"])
        else:
            self._unit_error(actor, message)

    def _done(self, actor: _Actor, message: dict[str, Any]) -> None:
        assert self._queue is not None
        assert actor.shard is not None
        shard, actor.shard = actor.shard, None
        actor.storage_errors = 0
        if self._queue.finish(actor.name, shard):
            fields = ("images", "failed", "bytes", "seconds", "peak_memory")
            counts = {name: message[name] for name in fields}
            self._emit(Event(kind="done", worker=actor.name, shard=shard, **counts))
        if message["tired"]:
            self._drop(actor, "fresh process after endless decodes")

    def _unit_error(self, actor: _Actor, message: dict[str, Any]) -> None:
        assert self._queue is not None
        assert actor.shard is not None
        shard, actor.shard = actor.shard, None
        reason = message["reason"]
        self._emit(Event(kind="error", worker=actor.name, shard=shard, text=reason))
        if message["storage"]:
            self._storage_error = reason
            self._queue.give_back(actor.name, shard)
            actor.storage_errors += 1
            if actor.storage_errors >= MAX_STORAGE_ERRORS:
                self._given_up += 1
                self._drop(actor, "its storage keeps failing")
        elif self._queue.fail(actor.name, shard, reason):
            self._emit(Event(kind="quarantined", shard=shard, text=reason))

    def _drop(self, actor: _Actor, why: str) -> None:
        self._actors.remove(actor)
        self._ray.kill(actor.handle, no_restart=True)
        self._resized = 0.0
        self._emit(Event(kind="retired", worker=actor.name, text=why))

    def _bury(self, actor: _Actor, error: Exception) -> None:
        """An actor is dead: was it its node, or the unit?"""
        self._actors.remove(actor)
        self._resized = 0.0
        node_lives = any(node["NodeID"] == actor.node and node["Alive"] for node in self._ray.nodes())
        reason = f"worker died ({_first_line(error)})" if node_lives else "its node left the cluster"
        self._emit(Event(kind="lost", worker=actor.name, shard=actor.shard or "", text=reason))
        if actor.shard is None:
            if not actor.node:
                self._start_failures += 1
                if self._start_failures >= MAX_START_FAILURES:
                    raise CampError(f"no worker can be started: {reason}")
            return
        assert self._queue is not None
        if not node_lives:
            self._queue.give_back(actor.name, actor.shard)
            return
        suspect = None
        if actor.careful and self._folder is not None:
            suspect = read_suspect(self._folder, actor.shard)
        if self._queue.lose(actor.name, actor.shard, "worker died", suspect=suspect):
            self._emit(Event(kind="quarantined", shard=actor.shard, text=reason))

    def _poll(self, actor: _Actor) -> None:
        """Ask a busy actor how far it is, once in a while."""
        if actor.progress is not None and self._ray.wait([actor.progress], timeout=0)[0]:
            now, actor.progress = self._ray.get(actor.progress), None
            if actor.shard is not None and now >= actor.seen:
                images, failed = now[0] - actor.seen[0], now[1] - actor.seen[1]
                actor.seen = now
                event = Event(
                    kind="progress", worker=actor.name, shard=actor.shard, images=images, failed=failed
                )
                self._emit(event)
        if actor.progress is None and actor.shard and time.monotonic() - actor.asked > POLL_SECONDS:
            actor.asked = time.monotonic()
            actor.progress = actor.handle.progress.options(concurrency_group="progress").remote()

    def _assign(self, actor: _Actor) -> None:
        assert self._queue is not None
        assignment = self._queue.take(actor.name)
        if assignment is None:
            return
        actor.shard, actor.careful = assignment.unit.shard, assignment.careful
        actor.seen, actor.progress, actor.asked = (0, 0), None, time.monotonic()
        self._emit(Event(kind="started", worker=actor.name, shard=actor.shard))
        actor.run = actor.handle.run.remote(
            assignment.unit.as_json(), assignment.careful, dict(assignment.skip)
        )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingPackageError(
            "--executor ray needs the package 'ray'; install it with: pip install 'camp-toolkit[ray]'"
        ) from None
    return ray


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
