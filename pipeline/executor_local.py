"""A queue of units -> done by worker processes on this machine, one per GPU or per core."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .. import errors
from ..errors import CampError, StorageError
from .extract_events import Emit, Event, Job, Options, Ready
from .extract_options import cores
from .plan import Unit
from .unit_queue import UnitQueue

WORKER_MODULE = "camp.pipeline.worker_process"
STALL_SECONDS = 1800.0  # without a sign of life: the last resort, behind the time limit of single images
POLL_SECONDS = 5.0
MAX_START_FAILURES = 3
MAX_STORAGE_ERRORS = 2  # in a row, then a worker is given up: its disk is full or gone
_WORKER_MEMORY = 3 << 30  # what the largest extractor needs at its default settings
_TAIL_BYTES = 2000


@dataclass
class _Worker:
    """One process and what it is doing."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]  # its stderr
    pending: bytearray = field(default_factory=bytearray)  # an unfinished line
    ready: bool = False
    shard: str | None = None
    suspect: int | None = None  # the image it is on, when careful
    storage_errors: int = 0
    last_sign: float = field(default_factory=time.monotonic)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        # A worker that just died is noticed when its stdout ends.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has arrived; raises EOFError when the process is gone."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise EOFError
        self.last_sign = time.monotonic()
        self.pending += data
        *lines, rest = self.pending.split(b"\n")
        self.pending = bytearray(rest)
        for line in lines:
            yield json.loads(line)

    def stop(self) -> None:
        """End it now; what it had not committed is lost, what it had is safe."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def cause_of_death(self) -> str:
        """After its stdout ended: how it died, with the last thing it said."""
        code = self.process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(self.log.tell() - _TAIL_BYTES, 0))
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f"worker died ({how}{': ' + lines[-1].strip() if lines else ''})"


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Processes on this machine. They share its cores, so that doing a unit twice would gain nothing."""

    speculate: bool = False

    def run(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None, emit: Emit) -> None:
        """Start the workers, keep each busy, replace those that die, until the queue is finished."""
        pool = _Pool(job, queue, emit, devices=_visible_gpus(job.options))
        try:
            pool.run(min(workers or default_workers(job.options), max(job.units, 1)))
        finally:
            pool.close()


def default_workers(options: Options) -> int:
    """One a GPU; without GPUs as many as cores and memory carry."""
    gpus = _visible_gpus(options)
    if gpus:
        return len(gpus)
    by_memory = _available_memory() // _WORKER_MEMORY
    return max(1, min(cores() // options.threads, by_memory))


def describe_local(job: Job) -> Ready:
    """Start one worker on this machine's CPU to learn what features it makes; they are the same elsewhere."""
    here = dataclasses.replace(job, options=dataclasses.replace(job.options, device="cpu"))
    worker = _start_worker(here, name="here", devices=[])
    try:
        while True:
            for message in worker.messages():
                if message["event"] == "error":
                    raise _as_error(message)
                return _as_ready(worker, message)
    except EOFError:
        raise CampError(f"no worker can be started: {worker.cause_of_death()}") from None
    finally:
        worker.stop()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What one worker is like, measured on a few images."""

    device: str
    description: dict[str, Any]  # of the extractor
    images: int
    failed: int
    seconds: float
    peak_memory: int


def probe_local(job: Job, unit: Unit) -> Probe:
    """Start one worker, let it extract a few images of a unit into nothing, and end it."""
    worker = _start_worker(job, name="probe", devices=_visible_gpus(job.options))
    try:
        worker.send({"probe": unit.as_json()})
        told: dict[str, Any] = {}
        while "seconds" not in told:
            for message in worker.messages():
                if message["event"] == "error":
                    raise _as_error(message)
                told.update(message)
    except EOFError:
        raise CampError(f"no worker can be started: {worker.cause_of_death()}") from None
    finally:
        worker.stop()
    fields = ("device", "description", "images", "failed", "seconds", "peak_memory")
    return Probe(**{name: told[name] for name in fields})


class _Pool:
    def __init__(
        self, job: Job, queue: Callable[[Ready], UnitQueue], emit: Emit, *, devices: Sequence[str]
    ) -> None:
        self._job, self._ask_queue, self._emit, self._devices = job, queue, emit, devices
        self._queue: UnitQueue | None = None
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}  # place -> worker
        self._start_failures = 0
        self._storage_error = ""

    def run(self, count: int) -> None:
        for place in range(count):
            self._start(place)
        while self._queue is None or not self._queue.finished:
            if not self._workers:
                raise StorageError(self._storage_error)
            for key, _ in self._selector.select(timeout=POLL_SECONDS):
                self._read(key.data)
            self._kill_stalled()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        self._workers = {}
        self._selector.close()

    def _start(self, place: int) -> None:
        devices = self._devices[place % len(self._devices) :][:1] if self._devices else []
        worker = _start_worker(self._job, name=f"local-{place}", devices=devices)
        self._workers[place] = worker
        assert worker.process.stdout is not None
        self._selector.register(worker.process.stdout, selectors.EVENT_READ, place)

    def _read(self, place: int) -> None:
        worker = self._workers[place]
        try:
            for message in worker.messages():
                self._handle(place, worker, message)
        except EOFError:
            self._buried(place, worker)

    def _handle(self, place: int, worker: _Worker, message: dict[str, Any]) -> None:
        kind = message["event"]
        if kind == "ready":
            self._start_failures = 0
            worker.ready = True
            self._queue = self._ask_queue(_as_ready(worker, message))
            self._emit(Event(kind="ready", worker=worker.name, text=self._device_text(message["device"])))
            self._assign_idle()
        elif kind == "progress":
            assert worker.shard is not None
            self._emit(
                Event(
                    kind="progress",
                    worker=worker.name,
                    shard=worker.shard,
                    images=message["images"],
                    failed=message["failed"],
                )
            )
        elif kind == "at":
            worker.suspect = message["image"]
        elif kind == "done":
            self._done(worker, message)
        elif kind == "error":
            if message["fatal"]:
                raise _as_error(message)
            self._unit_error(place, worker, message)
        else:
            assert kind == "retire"
            self._drop(place)
            self._emit(Event(kind="retired", worker=worker.name, text="fresh process after endless decodes"))
            self._start(place)

    def _device_text(self, device: str) -> str:
        """The device, and why it is not a GPU where one could be expected."""
        if device != "cpu" or self._job.options.device == "cpu":
            return device
        if self._devices:
            return f"cpu. WARNING: {len(self._devices)} GPU(s) are visible, but this torch cannot use them"
        return "cpu (no GPU found)"

    def _done(self, worker: _Worker, message: dict[str, Any]) -> None:
        assert self._queue is not None
        shard, worker.shard = worker.shard, None
        assert shard == message["shard"]
        assert shard is not None
        worker.storage_errors = 0
        self._queue.finish(worker.name, shard)
        self._emit(
            Event(
                kind="done",
                worker=worker.name,
                shard=shard,
                images=message["images"],
                failed=message["failed"],
                bytes=message["bytes"],
                seconds=message["seconds"],
                peak_memory=message["peak_memory"],
            )
        )
        self._assign_idle()

    def _unit_error(self, place: int, worker: _Worker, message: dict[str, Any]) -> None:
        assert self._queue is not None
        assert worker.shard is not None
        shard, worker.shard = worker.shard, None
        self._emit(Event(kind="error", worker=worker.name, shard=shard, text=message["reason"]))
        if message["storage"]:
            self._storage_error = message["reason"]
            self._queue.give_back(worker.name, shard)
            worker.storage_errors += 1
            if worker.storage_errors >= MAX_STORAGE_ERRORS:
                self._drop(place)
                self._emit(Event(kind="retired", worker=worker.name, text="its storage keeps failing"))
        elif self._queue.fail(worker.name, shard, message["reason"]):
            self._emit(Event(kind="quarantined", shard=shard, text=message["reason"]))
        self._assign_idle()

    def _buried(self, place: int, worker: _Worker) -> None:
        """A worker's stdout ended."""
        reason = worker.cause_of_death()
        self._drop(place)
        self._emit(Event(kind="lost", worker=worker.name, shard=worker.shard or "", text=reason))
        if not worker.ready:
            self._start_failures += 1
            if self._start_failures >= MAX_START_FAILURES:
                raise CampError(f"no worker can be started: {reason}")
        elif worker.shard is not None:
            assert self._queue is not None
            if self._queue.lose(worker.name, worker.shard, reason, suspect=worker.suspect):
                self._emit(Event(kind="quarantined", shard=worker.shard, text=reason))
        if self._queue is not None:
            self._assign_idle()
        if self._queue is None or self._queue.waiting:
            self._start(place)

    def _drop(self, place: int) -> None:
        worker = self._workers.pop(place)
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        worker.stop()

    def _assign_idle(self) -> None:
        """A unit for everyone who has none."""
        assert self._queue is not None
        for worker in self._workers.values():
            if not worker.ready or worker.shard is not None:
                continue
            assignment = self._queue.take(worker.name)
            if assignment is None:
                continue
            worker.shard, worker.suspect = assignment.unit.shard, None
            worker.last_sign = time.monotonic()
            self._emit(Event(kind="started", worker=worker.name, shard=worker.shard))
            worker.send(
                {
                    "unit": assignment.unit.as_json(),
                    "careful": assignment.careful,
                    "skip": dict(assignment.skip),
                    "retry": self._job.retry,
                }
            )

    def _kill_stalled(self) -> None:
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.shard is not None and now - worker.last_sign > STALL_SECONDS:
                worker.process.kill()  # its stdout ends, and the rest follows from that


def _start_worker(job: Job, *, name: str, devices: Sequence[str]) -> _Worker:
    """A new process that has been told its job."""
    environment = dict(os.environ)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = str(job.options.threads)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
    )
    worker = _Worker(name=name, process=process, log=log)
    worker.send(job.to_json())
    return worker


def _as_ready(worker: _Worker, message: dict[str, Any]) -> Ready:
    return Ready(
        worker=worker.name,
        device=message["device"],
        description=message["description"],
        fingerprint=message["fingerprint"],
    )


def _as_error(message: dict[str, Any]) -> CampError:
    """What a worker could not start for -> the same exception here."""
    kind = getattr(errors, message["kind"], CampError)
    error: CampError = kind(message["reason"])
    return error


def _visible_gpus(options: Options) -> list[str]:
    """GPUs a worker could be given, without loading torch to find them."""
    if options.device == "cpu":
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [device for device in chosen.split(",") if device.strip() not in ("", "-1")]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _WORKER_MEMORY
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
