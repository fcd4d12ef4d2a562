"""A simulated cluster of 1,000 workers over 100 million images, on the real planner and the real queue.

Workers crash, are preempted and come back, some are five times slower than the rest; a few units kill every
worker and a few images do. Time is simulated; the planner's and the queue's own cost is measured for real.
"""

from __future__ import annotations

import heapq
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from camp.files import canonical_json, checksum_file, write_atomic
from camp.manifests.dataset import Dataset
from camp.manifests.manifest import IMAGES_SCHEMA
from camp.pipeline.plan import Unit, plan_units
from camp.pipeline.unit_queue import UnitQueue

HOUR = 3600.0


@dataclass(frozen=True)
class World:
    """What happens to the workers."""

    workers: int = 1000
    images_per_second: float = 6.0  # of a healthy worker: one GPU
    slow_share: float = 0.02
    slow_factor: float = 5.0
    crashes_per_hour: float = 0.01
    preemptions_per_hour: float = 0.05
    outage: float = 600.0  # seconds until a preempted worker is back
    start: float = 60.0  # seconds to load the model
    poison_units: int = 5  # kill every worker at once
    poison_images: int = 20  # kill the worker that touches them
    seed: int = 0


@dataclass
class Outcome:
    """What one simulation came to."""

    hours: float
    ideal_hours: float
    wasted_share: float  # of all worker time spent on units
    done_units: int
    given_up_units: int
    images_lost: int
    queue_seconds: float  # real time spent in the queue's own code

    @property
    def overhead(self) -> float:
        return self.hours / self.ideal_hours - 1


def make_manifest(root: Path, images: int) -> Dataset:
    """A data set of many images, written a million rows at a time."""
    path = root / "manifest" / "images.parquet"
    path.parent.mkdir(parents=True)
    rows = 1_000_000
    with pq.ParquetWriter(path, IMAGES_SCHEMA, compression="zstd") as writer:
        for first in range(0, images, rows):
            count = min(rows, images - first)
            ids = pa.array(np.arange(first, first + count))
            names = pa.array([f"{first // rows:05d}/photo.jpg"], pa.string())
            repeated = names.take(pa.array(np.zeros(count, np.int32)))
            columns = {
                "image_id": ids,
                "key": repeated,
                "imgid": pa.nulls(count, pa.int64()),
                "cocoid": pa.nulls(count, pa.int64()),
                "root": pa.array(np.zeros(count, np.int16)),
                "file": repeated,
                "split": pa.array(["all"]).take(pa.array(np.zeros(count, np.int32))),
                "width": pa.nulls(count, pa.int32()),
                "height": pa.nulls(count, pa.int32()),
                "labels": pa.nulls(count, pa.list_(pa.int32())),
            }
            writer.write_table(pa.table(columns).cast(IMAGES_SCHEMA))
    entry = {"file": "manifest/images.parquet", "rows": images, "checksum": checksum_file(path)}
    header = {
        "name": "many",
        "schema_version": 1,
        "fingerprint": "0" * 32,
        "splits": {"all": {"images": images, "captions": 0}},
        "label_names": [],
        "image_roots": ["images"],
        "generations": [
            {"source": {}, "findings": {}, "fingerprint": "0" * 32, "images": entry, "captions": entry}
        ],
    }
    write_atomic(root / "dataset.json", canonical_json(header))
    return Dataset.open(root)


def simulate(units: list[Unit], world: World, *, speculate: bool) -> Outcome:
    """Event by event until every unit is finished or given up."""
    generator = random.Random(world.seed)
    now = 0.0
    queue = UnitQueue(units, speculate=speculate, clock=lambda: now)
    slow = set(generator.sample(range(world.workers), int(world.slow_share * world.workers)))
    chosen = generator.sample(range(len(units)), min(world.poison_units + world.poison_images, len(units)))
    deadly = {units[number].shard for number in chosen[: world.poison_units]}
    poisoned = {units[number].shard for number in chosen[world.poison_units :]}
    speed = [
        world.images_per_second / (world.slow_factor if worker in slow else 1)
        for worker in range(world.workers)
    ]
    # (time, tie, worker, what happens, shard)
    events: list[tuple[float, int, int, str, str]] = []
    tie = 0

    def plan(delay: float, worker: int, what: str, shard: str = "") -> None:
        nonlocal tie
        tie += 1
        heapq.heappush(events, (now + delay, tie, worker, what, shard))

    for worker in range(world.workers):
        plan(world.start * (1 + generator.random()), worker, "idle")
    queue_seconds = busy = wasted = 0.0
    started: dict[int, float] = {}
    images_lost = 0
    while not queue.finished:
        now, _, worker, what, shard = heapq.heappop(events)
        name = str(worker)
        clock = time.perf_counter()
        if what == "done":
            first = queue.finish(name, shard)
            spent = now - started.pop(worker)
            busy += spent
            wasted += 0.0 if first else spent
        elif what in ("crash", "preempted"):
            spent = now - started.pop(worker)
            busy += spent
            wasted += spent
            if what == "preempted":
                queue.give_back(name, shard)
            else:
                queue.lose(name, shard, "worker died", suspect=7 if shard in poisoned else None)
        if what == "preempted":
            queue_seconds += time.perf_counter() - clock
            plan(world.outage + world.start, worker, "idle")
            continue
        if what == "crash":
            queue_seconds += time.perf_counter() - clock
            plan(world.start, worker, "idle")
            continue
        assignment = queue.take(name)
        queue_seconds += time.perf_counter() - clock
        if assignment is None:
            plan(30.0, worker, "idle")
            continue
        started[worker] = now
        unit = assignment.unit
        seconds = unit.images / speed[worker] * (1.5 if assignment.careful else 1.0)
        crash = generator.expovariate(world.crashes_per_hour / HOUR)
        if unit.shard in deadly:
            crash = 1.0
        elif unit.shard in poisoned and 7 not in assignment.skip:
            crash = min(crash, seconds * 0.5)
        preempted = generator.expovariate(world.preemptions_per_hour / HOUR)
        ends = {"done": seconds, "crash": crash, "preempted": preempted}
        what = min(ends, key=lambda name: ends[name])
        plan(ends[what], worker, what, unit.shard)
        images_lost += len(assignment.skip) if what == "done" else 0
    total_speed = sum(speed)
    away = 1 / (1 + world.preemptions_per_hour * (world.outage + world.start) / HOUR)
    images = sum(unit.images for unit in units)
    return Outcome(
        hours=now / HOUR,
        ideal_hours=images / (total_speed * away) / HOUR,
        wasted_share=wasted / busy,
        done_units=queue.done,
        given_up_units=len(queue.quarantined),
        images_lost=images_lost + sum(unit.images for unit, _ in queue.quarantined.values()),
        queue_seconds=queue_seconds,
    )


def main() -> None:
    arguments = harness.arguments(__doc__ or "")
    images = 4_000_000 if arguments.quick else 100_000_000
    shard_size = 400 if arguments.quick else 4000
    result = harness.Result("cluster_sim")
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_manifest(Path(folder), images)
        start = time.perf_counter()
        units = plan_units(dataset, shard_size=shard_size)
        planning = time.perf_counter() - start
    result.row("images", images, "images")
    result.row("units", len(units), "units")
    result.row("plan", planning, "s")
    result.row("plan_size", sum(map(sys.getsizeof, units)) / len(units), "bytes a unit")
    world = World()
    for label, speculate in (("speculative", True), ("plain", False)):
        outcome = simulate(units, world, speculate=speculate)
        assert outcome.done_units + outcome.given_up_units == len(units)
        result.row(f"{label}: hours", outcome.hours, "h")
        result.row(f"{label}: ideal", outcome.ideal_hours, "h at full speed without any loss but outages")
        result.row(f"{label}: overhead", 100 * outcome.overhead, "%")
        result.row(f"{label}: wasted work", 100 * outcome.wasted_share, "%")
        result.row(f"{label}: units given up", outcome.given_up_units, "units")
        result.row(f"{label}: images without features", outcome.images_lost, "images")
        result.row(f"{label}: queue", 1e6 * outcome.queue_seconds / len(units), "µs a unit, real")
        result.ratio(f"completion_{label}", 1 - outcome.images_lost / images)
        result.ratio(f"efficiency_{label}", outcome.ideal_hours / outcome.hours)
    result.notes.append(f"{world}")
    result.finish(arguments.json)


if __name__ == "__main__":
    main()
