"""A job -> the worker that does its units, and the folder where they are committed; the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ..manifests.dataset import Dataset
from .caption_options import CaptionOptions
from .extract_events import Job
from .plan import Unit
from .remote_dataset import open_dataset, worker_scratch

WORK_FOLDER = ".work"  # of a data set: parts that become one file

Announce = Callable[[Mapping[str, Any]], None]


def no_announce(event: Mapping[str, Any]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class UnitStats:
    """What one unit gave."""

    shard: str
    images: int  # with features; captions where there are no images
    failed: int
    bytes: int
    seconds: float
    wait_seconds: float = 0.0  # spent waiting for decoded images

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Worker(Protocol):
    """ExtractWorker or CaptionWorker: built once, then unit after unit."""

    device: str
    description: dict[str, Any]  # of what it works with
    fingerprint: str  # of what it makes
    folder: Path  # where it commits

    @property
    def hanging(self) -> int:
        """Threads that never came back."""

    def run(
        self,
        unit: Unit,
        *,
        careful: bool = False,
        skip: Mapping[int, str] | None = None,
        retry: bool = False,
        announce: Announce = no_announce,
    ) -> UnitStats:
        """A unit, committed. Doing it twice is harmless."""


def build_worker(job: Job) -> Worker:
    """On any machine."""
    dataset = open_dataset(job.dataset, scratch=worker_scratch(job.scratch))
    if isinstance(job.options, CaptionOptions):
        from .caption_worker import CaptionWorker

        return CaptionWorker(dataset, folder=job_folder(job, dataset), options=job.options)
    from .extract_worker import ExtractWorker

    return ExtractWorker(dataset, name=job.name, options=job.options)


def job_folder(job: Job, dataset: Dataset) -> Path:
    """Where its units are committed."""
    if isinstance(job.options, CaptionOptions):
        return dataset.root / WORK_FOLDER / job.name
    return dataset.features_folder(job.name)
