"""A data set and options -> the features of its images: planned, run on an executor, indexed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ..errors import CampError, InputError, MismatchError, StorageError, TooManyFailuresError
from ..manifests.dataset import Dataset
from .executor_local import LocalExecutor
from .extract_events import Event, Executor, Job, Ready
from .extract_options import ExtractOptions, check_name, default_name
from .extract_setup import provenance
from .extract_state import (
    ExtractState,
    FinishedUnit,
    begin_extraction,
    check_same_request,
    control_folder,
    finished_units,
    read_state,
)
from .feature_index import FeatureIndex, finalize
from .folder_lock import folder_lock
from .leftovers import remove_leftovers
from .live_view import SilentView, Tally, View
from .plan import Unit, plan_units, unit_images
from .remote_dataset import location_of, mirror_of, scratch_of
from .shard_writer import ShardWriter
from .unit_queue import UnitQueue


@dataclass(frozen=True, kw_only=True)
class ExtractSummary:
    """What an extraction came to. Counts are those of the splits asked for."""

    features: str
    folder: str
    units: int
    units_before: int  # were done when it began
    units_now: int
    quarantined: Mapping[str, str]  # shard -> why
    images: int
    done: int  # images with features
    failed: int
    reasons: Mapping[str, int]  # why -> how many images
    bytes: int
    seconds: float
    images_per_second: float  # of this run
    devices: Sequence[str] = ()
    peak_memory: int = 0  # of the largest worker

    @property
    def complete(self) -> bool:
        return self.failed == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "complete": self.complete}


@dataclass
class _Run:
    """What one call keeps track of."""

    todo: list[Unit] = field(default_factory=list)
    queue: UnitQueue | None = None
    devices: set[str] = field(default_factory=set)
    peak_memory: int = 0
    images_now: int = 0


def extract_features(
    dataset: Dataset,
    *,
    name: str | None = None,
    options: ExtractOptions | None = None,
    splits: Sequence[str] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
    max_errors: int | None = None,
    view: View | None = None,
) -> ExtractSummary:
    """Extract what is not yet there. Killed at any instant, the same call goes on where it stopped.

    Images that cannot be done are recorded with their reason; more than max_errors of them stop the run.
    """
    options = options or ExtractOptions()
    job = _Extraction(
        dataset,
        name=check_name(name or default_name(options.model)),
        options=options,
        splits=splits,
        retry_failed=retry_failed,
        max_errors=max_errors,
        view=view or SilentView(),
    )
    with folder_lock(control_folder(job.folder)):
        return job.run(executor or LocalExecutor(), workers=workers)


class ScriptWriter(Protocol):
    """An executor that can write down what it would do: executor_slurm."""

    def script(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None) -> str: ...


def write_script(
    dataset: Dataset,
    *,
    executor: ScriptWriter,
    name: str | None = None,
    options: ExtractOptions | None = None,
    splits: Sequence[str] | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
) -> str:
    """The same extraction, begun but not run -> a script that a person submits."""
    options = options or ExtractOptions()
    job = _Extraction(
        dataset,
        name=check_name(name or default_name(options.model)),
        options=options,
        splits=splits,
        retry_failed=retry_failed,
        max_errors=None,
        view=SilentView(),
    )
    with folder_lock(control_folder(job.folder)):
        return job.script(executor, workers=workers)


class _Extraction:
    def __init__(
        self,
        dataset: Dataset,
        *,
        name: str,
        options: ExtractOptions,
        splits: Sequence[str] | None,
        retry_failed: bool,
        max_errors: int | None,
        view: View,
    ) -> None:
        self.dataset, self.name, self.options = dataset, name, options
        self._mirror = mirror_of(dataset, name)
        self._mirror.pull()
        self.folder = dataset.features_folder(name)
        self._retry, self._max_errors, self._view = retry_failed, max_errors, view
        self._plan = plan_units(dataset, shard_size=options.shard_size)
        if splits is not None:
            dataset.check_splits(splits)
        self._wanted = [unit for unit in self._plan if splits is None or unit.split in splits]
        if not self._wanted:
            raise InputError(f"{dataset.root}: no images to extract")
        if not any(dataset.header["image_roots"]):
            raise InputError(f"{dataset.root}: its images have no files; import again with --images DIR")
        self.job = Job(
            dataset=location_of(dataset),
            name=name,
            options=options,
            retry=retry_failed,
            units=len(self._wanted),
            scratch=scratch_of(dataset),
        )
        self._state = read_state(self.folder)
        if self._state is not None:
            check_same_request(self.folder, self._state, options.identity())
        self._finished: dict[str, FinishedUnit] = {}
        self._failed_before = 0
        self._speculate = False
        self._tally = Tally()
        self._now = _Run()

    def run(self, executor: Executor, *, workers: int | None) -> ExtractSummary:
        start = time.monotonic()
        remove_leftovers(self.folder)
        quarantined: dict[str, str] = {}
        self._look_at(self._plan)
        with self._view:
            if self._todo():
                quarantined = self._run_queue(executor, workers)
                # Two workers that commit a straggler's unit at once may leave it without its marker.
                if self._missing():
                    quarantined |= self._run_queue(executor, workers)
        if missing := self._missing():
            raise StorageError(
                f"{self.folder}: {missing[0].shard} was done and is gone again; does something else write "
                "there? Run the same command again"
            )
        self._write_index()
        finished = [self._finished[unit.shard] for unit in self._wanted]
        reasons = Counter(reason for unit in finished for reason in unit.reasons)
        seconds = time.monotonic() - start
        return ExtractSummary(
            features=self.name,
            folder=str(self.folder),
            units=len(self._wanted),
            units_before=len(self._wanted) - len(self._now.todo),
            units_now=len(self._now.todo) - len(quarantined),
            quarantined=quarantined,
            images=sum(unit.images for unit in self._wanted),
            done=sum(unit.rows for unit in finished),
            failed=sum(reasons.values()),
            reasons=dict(reasons.most_common()),
            bytes=sum(unit.bytes for unit in finished),
            seconds=seconds,
            images_per_second=self._now.images_now / seconds,
            devices=sorted(self._now.devices),
            peak_memory=self._now.peak_memory,
        )

    def script(self, executor: ScriptWriter, *, workers: int | None) -> str:
        remove_leftovers(self.folder)
        return executor.script(self.job, queue=self._queue_for, workers=workers)

    def _look_at(self, units: Sequence[Unit]) -> None:
        """Learn from their markers which units are done."""
        for unit in units:
            self._finished.pop(unit.shard, None)
        if self._state is not None:
            self._finished |= finished_units(self.folder, units, fingerprint=self._state.fingerprint)

    def _todo(self) -> list[Unit]:
        """Units that are not done, and with --retry-failed those with failed images."""
        todo = []
        self._failed_before = 0
        for unit in self._wanted:
            finished = self._finished.get(unit.shard)
            if finished is None or (self._retry and finished.reasons):
                todo.append(unit)
            else:
                self._failed_before += len(finished.reasons)
        self._check_failures()
        return todo

    def _missing(self) -> list[Unit]:
        return [unit for unit in self._wanted if unit.shard not in self._finished]

    def _write_index(self) -> None:
        """Unless it is there and lists exactly what is done."""
        assert self._state is not None
        if not self._now.todo:
            listed: dict[str, str] = {}
            with contextlib.suppress(CampError):
                index = FeatureIndex.open(self.folder)
                listed = {entry["shard"]: entry["fingerprint"] for entry in index.shards}
            if listed == {shard: unit.fingerprint for shard, unit in self._finished.items()}:
                return
        finalize(
            self.folder,
            provenance=provenance(self.options, self._state.description),
            spec=self.options.feature_spec(self._state.description),
            expected_shards=list(self._finished),
        )
        self._mirror.push_index()

    def _run_queue(self, executor: Executor, workers: int | None) -> dict[str, str]:
        """One pass over what is to be done -> the units that were given up, and why."""
        self._speculate = executor.speculate
        self._now = replace(self._now, queue=None)
        job = replace(self.job, units=len(self._todo()))
        executor.run(job, queue=self._queue_for, workers=workers, emit=self._handle)
        assert self._now.queue is not None
        assert self._state is not None
        quarantined = record_quarantined(self.dataset, self.job, self._state, self._now.queue)
        self._mirror.pull()
        self._look_at(self._wanted)
        return quarantined

    def _queue_for(self, ready: Ready) -> UnitQueue:
        """Every ready worker comes here: the first decides what the features are, the others must agree."""
        self._now.devices.add(ready.device)
        if self._state is None:
            self._state = ExtractState(
                identity=self.options.identity(),
                description=ready.description,
                fingerprint=ready.fingerprint,
            )
            begin_extraction(
                self.folder,
                self._state,
                spec=self.options.feature_spec(ready.description),
                provenance=provenance(self.options, ready.description),
            )
            self._mirror.push_state()
        if ready.fingerprint != self._state.fingerprint:
            raise MismatchError(
                f"{self.folder}: begun with another version of {self.options.model!r} than "
                f"{ready.worker} has; choose another --name, or remove the folder"
            )
        if self._now.queue is None:
            first_pass = not self._now.todo
            if first_pass:
                self._look_at(self._plan)  # its fingerprint may only be known now
                self._now.todo = self._todo()
            todo = self._now.todo if first_pass else self._missing()
            self._now.queue = UnitQueue(todo, speculate=self._speculate)
            again = sum(unit.shard in self._finished for unit in todo)
            if again:
                text = f"the failed images of {again:,} shards are tried again; these shards are rewritten"
                self._view.handle(Event(kind="note", text=text))
            images = sum(unit.images for unit in todo)
            self._tally.begin(units=len(todo), images=images)
            self._view.begin(units=len(todo), images=images)
        return self._now.queue

    def _handle(self, event: Event) -> None:
        self._tally.handle(event)
        self._view.handle(event)
        self._now.peak_memory = max(self._now.peak_memory, event.peak_memory)
        if event.kind == "done":
            self._now.images_now += event.images + event.failed
        self._check_failures()

    def _check_failures(self) -> None:
        failed = self._failed_before + self._tally.failed
        if self._max_errors is not None and failed > self._max_errors:
            raise TooManyFailuresError(
                f"{self.folder}: {failed:,} images failed, --max-errors allows {self._max_errors:,}; "
                "finished shards are kept: look at the reasons, then run again with a higher limit"
            )


def record_quarantined(dataset: Dataset, job: Job, state: ExtractState, queue: UnitQueue) -> dict[str, str]:
    """Units that were given up -> shards in which every image failed, unless there is an earlier shard."""
    assert isinstance(job.options, ExtractOptions)
    folder = dataset.features_folder(job.name)
    for unit, reason in queue.quarantined.values():
        if finished_units(folder, [unit], fingerprint=state.fingerprint):
            continue
        with ShardWriter(
            folder,
            shard=unit.shard,
            spec=job.options.feature_spec(state.description),
            fingerprint=unit.fingerprint(state.fingerprint),
            capacity=unit.images,
            provenance=provenance(job.options, state.description),
        ) as writer:
            for row in unit_images(dataset, unit):
                writer.fail(row.image_id, f"unit given up: {reason}")
            writer.commit()
        mirror_of(dataset, job.name).push(unit.shard)
    return {shard: reason for shard, (_, reason) in queue.quarantined.items()}
