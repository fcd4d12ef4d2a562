"""A planned extraction -> its units, and time, bytes and memory as measured on a few of its images."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..manifests.dataset import Dataset
from .executor_local import default_workers, probe_local
from .extract_events import Job
from .extract_options import ExtractOptions, check_name, default_name
from .extract_state import check_same_request, finished_units, read_state
from .plan import Unit, plan_units
from .remote_dataset import location_of, mirror_of

LONG_UNIT_SECONDS = 3600.0  # a kill costs up to this much per worker; more deserves a word


@dataclass(frozen=True, kw_only=True)
class ExtractEstimate:
    """What a run would do, and what it would take."""

    features: str
    units: Sequence[Unit]  # to be done
    units_done: int
    images: int  # in the units to be done
    workers: int
    device: str
    measured_images: int
    failed_images: int  # of those measured
    seconds_per_image: float | None  # one worker; None where no image could be measured
    bytes: int
    free_bytes: int
    memory_per_worker: int

    @property
    def seconds(self) -> float | None:
        """Until all is done, without the start of the workers."""
        if self.seconds_per_image is None:
            return None
        busy = max(1, min(self.workers, len(self.units)))
        return self.images * self.seconds_per_image / busy

    def warnings(self) -> list[str]:
        """What the user may want to change before the start."""
        found = []
        if self.bytes > self.free_bytes:
            found.append(f"{self.bytes / 1e9:,.1f} GB are needed, {self.free_bytes / 1e9:,.1f} GB are free")
        largest = max((unit.images for unit in self.units), default=0)
        per_unit = largest * (self.seconds_per_image or 0.0)
        if per_unit > LONG_UNIT_SECONDS:
            found.append(
                f"one unit of {largest:,} images takes {per_unit / 3600:.1f} hours, and a kill loses "
                "the units in flight; a smaller --shard-size loses less"
            )
        if self.failed_images:
            found.append(f"{self.failed_images} of {self.measured_images} images tried could not be used")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "units": [{"shard": unit.shard, "images": unit.images} for unit in self.units],
            "units_done": self.units_done,
            "images": self.images,
            "workers": self.workers,
            "device": self.device,
            "measured_images": self.measured_images,
            "seconds_per_image": self.seconds_per_image,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "free_bytes": self.free_bytes,
            "memory_per_worker": self.memory_per_worker,
            "memory": self.memory_per_worker * self.workers,
            "warnings": self.warnings(),
        }


def estimate_extraction(
    dataset: Dataset,
    *,
    name: str | None = None,
    options: ExtractOptions | None = None,
    splits: Sequence[str] | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
) -> ExtractEstimate:
    """Plan, start one worker, time it on a few images; nothing is written."""
    options = options or ExtractOptions()
    name = check_name(name or default_name(options.model))
    folder = dataset.features_folder(name)
    units = plan_units(dataset, shard_size=options.shard_size, splits=splits)
    mirror_of(dataset, name).pull()
    state = read_state(folder)
    done: dict[str, Any] = {}
    if state is not None:
        check_same_request(folder, state, options.identity())
        done = finished_units(folder, units, fingerprint=state.fingerprint)
    todo = [unit for unit in units if unit.shard not in done or (retry_failed and done[unit.shard].reasons)]
    probe = probe_local(Job(dataset=location_of(dataset), name=name, options=options), (todo or units)[0])
    images = sum(unit.images for unit in todo)
    row_bytes = sum(column.row_bytes for column in options.feature_spec(probe.description).layout())
    worked = probe.images - probe.failed
    return ExtractEstimate(
        features=name,
        units=todo,
        units_done=len(units) - len(todo),
        images=images,
        workers=workers or default_workers(options),
        device=probe.device,
        measured_images=probe.images,
        failed_images=probe.failed,
        seconds_per_image=probe.seconds / worked if worked else None,
        bytes=images * row_bytes,
        free_bytes=shutil.disk_usage(_existing(folder)).free,
        memory_per_worker=probe.peak_memory,
    )


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return path if path.exists() else _existing(path.resolve().parent)
