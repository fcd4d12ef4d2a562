"""What the job and its executors tell each other: the job a worker gets, what it says, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .caption_options import CaptionOptions
from .extract_options import ExtractOptions
from .unit_queue import UnitQueue

Options = ExtractOptions | CaptionOptions
OPTIONS: dict[str, type[Options]] = {kind.kind: kind for kind in (ExtractOptions, CaptionOptions)}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What any worker on any machine needs, beside its units."""

    dataset: str
    name: str
    options: Options
    retry: bool = False  # of units that are done, do the failed images again
    units: int = 1  # how many there are at most
    scratch: str | None = None  # where shards of a remote data set are prepared, on the driver's machine

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "name": self.name,
            "kind": self.options.kind,
            "options": self.options.to_json(),
            "retry": self.retry,
            "units": self.units,
            "scratch": self.scratch,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        fields = {name: field for name, field in value.items() if name != "kind"}
        return cls(**{**fields, "options": OPTIONS[value["kind"]].from_json(value["options"])})


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker has its extractor."""

    worker: str
    device: str
    description: Mapping[str, Any]  # of the extractor
    fingerprint: str  # of the features it makes


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened.

    kind: ready · started · progress · done · error · lost · quarantined · retired · note
    """

    kind: str
    worker: str = ""
    shard: str = ""
    images: int = 0  # progress: more of them; done: with features
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    peak_memory: int = 0
    text: str = ""


Emit = Callable[[Event], None]


class Executor(Protocol):
    """Runs a queue to its end. Three of them: executor_local, executor_ray, executor_slurm."""

    @property
    def speculate(self) -> bool:
        """Whether idle workers may do a straggler's unit a second time."""

    def run(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None, emit: Emit) -> None:
        """`queue` is called with every worker that is ready: it checks it, and gives the one queue.

        workers None is for the executor to decide, within job.units: more workers than units would be idle.
        """
