"""The executors against the bare extractor: overhead, two workers against one, resuming, memory.

Ratios: overhead_* (the bare extractor's time over an executor's with one worker), two_workers (one worker's
time over two workers'; one alone decodes on the second core), two_workers_single (the same, with one worker
held to one core: then extractor and decoding are single-threaded), two_workers_limit (the time of two bare
processes side by side over two workers').

The extractor is a single-threaded stand-in of a known cost per image. Times are those from the first unit's
start to the last one's end: a worker's start (importing torch, loading a model) happens once per job.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy reads them

import harness
import numpy as np
from cluster_sim import make_manifest
from PIL import Image

from camp.extractors.extractor import Photograph, RegionPolicy
from camp.extractors.photograph import read_photograph
from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline.executor_local import LocalExecutor
from camp.pipeline.extract_events import Event, Executor
from camp.pipeline.extract_job import extract_features
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.live_view import SilentView
from camp.schema import ImageRow, Regions

REGIONS, DIM = 36, 2048


class Stub:
    """So many matrix products an image, on one thread."""

    dim = DIM
    class_names = None
    attribute_names = None

    def __init__(self, products: int) -> None:
        self.config = {"model": "stub"}
        self._products = products
        self._matrix = np.full((256, 256), 1 / 256, np.float32)

    def prepare(self, photograph: Photograph) -> np.ndarray[Any, Any]:
        return photograph.pixels

    def extract(
        self, prepared: Sequence[np.ndarray[Any, Any]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        return [self._one(pixels, size) for pixels, size in zip(prepared, photographs, strict=True)]

    def _one(self, pixels: np.ndarray[Any, Any], size: tuple[int, int]) -> Regions:
        work = self._matrix
        for _ in range(self._products):
            work = work @ self._matrix
        features = np.full((REGIONS, DIM), 1 + float(pixels[0, 0, 0]) + work[0, 0], np.float32)
        boxes = np.tile(np.array([0, 0, *size], np.float32), (REGIONS, 1))
        return Regions(boxes=boxes, features=features, width=size[0], height=size[1])


def build(model: str, *, products: int, **given: Any) -> Stub:
    import torch  # noqa: F401 - as every extractor does, before its worker is ready

    return Stub(products)


def make_dataset(root: Path, images: int) -> Dataset:
    """Photographs of noise and their manifest."""
    (root / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(images):
        pixels = generator.integers(0, 256, (240, 320, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.jpg", quality=75)
    rows = (ImageRow(image_id=n, key=f"{n}.jpg", file=f"{n}.jpg", split="all") for n in range(images))
    return write_generation(
        root,
        manifest_from_rows(rows, []),
        name="scale",
        source={},
        findings={},
        label_names=[],
        image_roots=["images"],
    )


def options(products: int, shard_size: int) -> ExtractOptions:
    return ExtractOptions(
        model="stub",
        builder="extract_scale:build",
        settings={"products": products},
        policy=RegionPolicy(min_regions=REGIONS, max_regions=REGIONS),
        device="cpu",
        shard_size=shard_size,
        batch=8,
    )


class _Clock(SilentView):
    """From the first unit's start to the last one's end."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def handle(self, event: Event) -> None:
        if event.kind == "started" and not self.first:
            self.first = time.perf_counter()
        if event.kind == "done":
            self.last = time.perf_counter()


def job_seconds(dataset: Dataset, chosen: ExtractOptions, executor: Executor, workers: int) -> float:
    """Seconds an image."""
    clock = _Clock()
    name = "run"
    extract_features(dataset, name=name, options=chosen, executor=executor, workers=workers, view=clock)
    shutil.rmtree(dataset.features_folder(name))
    return (clock.last - clock.first) / dataset.images.num_rows


def bare_seconds(dataset: Dataset, products: int) -> float:
    """The same without anything else: read, decode, extract, keep nothing, one image after the other."""
    stub = Stub(products)
    start = time.perf_counter()
    for row in dataset.image_rows():
        photograph = read_photograph(Path(dataset.image_path(row)).read_bytes())
        stub.extract([stub.prepare(photograph)], [(photograph.width, photograph.height)])
    return (time.perf_counter() - start) / dataset.images.num_rows


def bare_pair_seconds(dataset: Dataset, products: int) -> float:
    """Two processes of that side by side, each over all images: what the machine has for two workers."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import extract_scale as s;"
        "from camp.manifests.dataset import Dataset;"
        "print(s.bare_seconds(Dataset.open(sys.argv[1]), int(sys.argv[3])))"
    )
    command = [sys.executable, "-c", script, str(dataset.root), str(Path(__file__).parent), str(products)]
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return max(float(process.communicate()[0]) for process in pair) / 2


def on_one_core(run: Callable[[], float]) -> float:
    """With this thread and the processes it starts held to one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return run()
    finally:
        os.sched_setaffinity(0, cores)


def best_times(rivals: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """As harness.interleaved, for rivals that take their own time."""
    best = dict.fromkeys(rivals, float("inf"))
    for _ in range(repeats):
        for name, function in rivals.items():
            gc.collect()
            best[name] = min(best[name], function())
    return best


def resume_seconds(root: Path, shards: int) -> float:
    """A finished job of so many shards, run again from the shell."""
    dataset = make_dataset(root, shards)
    chosen = options(0, 1)
    extract_features(dataset, name="finished", options=chosen, workers=2)
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import extract_scale as s;"
        "from camp.manifests.dataset import Dataset; from camp.pipeline.extract_job import extract_features;"
        "r = extract_features(Dataset.open(sys.argv[1]), name='finished', options=s.options(0, 1));"
        "assert r.units_now == 0"
    )
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        here = str(Path(__file__).parent)
        subprocess.run([sys.executable, "-c", script, str(root), here], check=True)
        best = min(best, time.perf_counter() - start)
    return best


def plan_megabytes(images: int) -> float:
    """Peak memory of a process that plans so many images."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import harness;"
        "from camp.manifests.dataset import Dataset; from camp.pipeline.plan import plan_units;"
        "plan_units(Dataset.open(sys.argv[1]), shard_size=4000);"
        "print(harness.peak_megabytes())"
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_manifest(Path(folder), images)
        command = [sys.executable, "-c", script, str(dataset.root), str(Path(__file__).parent)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    arguments = harness.arguments(__doc__ or "")
    quick = arguments.quick
    # Where workers find this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of this process alone
    unit, products = (120, 6) if quick else (500, 20)
    result = harness.Result("extract_scale")
    result.notes.append(
        f"units of {unit} images; overhead is judged at 500, where a worker's first moments count less"
    )
    with tempfile.TemporaryDirectory() as folder:
        # Several units a worker: with one each, a worker that is ready later would count for much.
        one, four = (make_dataset(Path(folder) / f"{units}", units * unit) for units in (1, 4))
        chosen = options(products, unit)
        rivals: dict[str, Callable[[], float]] = {
            "bare": lambda: bare_seconds(one, products),
            "bare, 2 processes": lambda: bare_pair_seconds(one, products),
            "local, 1 worker": lambda: job_seconds(four, chosen, LocalExecutor(), 1),
            "local, 1 worker on 1 core": lambda: on_one_core(
                lambda: job_seconds(four, chosen, LocalExecutor(), 1)
            ),
            "local, 2 workers": lambda: job_seconds(four, chosen, LocalExecutor(), 2),
        }
        try:
            import ray

            from camp.pipeline.executor_ray import RayExecutor

            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            rivals["ray, 1 worker"] = lambda: job_seconds(one, chosen, RayExecutor(speculate=False), 1)
        except Exception as error:
            result.notes.append(f"no Ray on this machine, overhead_ray is not measured ({error})")
        try:
            import submitit  # noqa: F401

            from camp.pipeline import executor_slurm

            executor_slurm.POLL_SECONDS = 0.05  # the clock stops when the driver looks
            tasks = executor_slurm.SlurmExecutor(cluster="local")  # Slurm's own scheduling is not ours
            rivals["slurm, 1 task"] = lambda: job_seconds(one, chosen, tasks, 1)
        except ImportError:
            result.notes.append("submitit is not installed, overhead_slurm is not measured")
        best = best_times(rivals, 3 if quick else harness.REPEATS)
        for name, seconds in best.items():
            result.row(name, 1 / seconds, "images/s")
        result.ratio("overhead_local", best["bare"] / best["local, 1 worker"])
        for ratio, name in (("overhead_ray", "ray, 1 worker"), ("overhead_slurm", "slurm, 1 task")):
            if name in best:
                result.ratio(ratio, best["bare"] / best[name])
        result.ratio("two_workers", best["local, 1 worker"] / best["local, 2 workers"])
        result.ratio("two_workers_single", best["local, 1 worker on 1 core"] / best["local, 2 workers"])
        result.ratio("two_workers_limit", best["bare, 2 processes"] / best["local, 2 workers"])
        shards = 200 if quick else 1000
        result.row(f"resume of {shards} finished shards", resume_seconds(Path(folder) / "many", shards), "s")
    few, many = (1_000_000, 4_000_000) if quick else (5_000_000, 20_000_000)
    result.row(f"plan of {few:,} images", plan_megabytes(few), "MB peak memory")
    result.row(f"plan of {many:,} images", plan_megabytes(many), "MB peak memory")
    result.row("driver", harness.peak_megabytes(), "MB peak memory")
    result.finish(arguments.json)


if __name__ == "__main__":
    main()
