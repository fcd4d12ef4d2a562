"""A data set and some configs -> one table: recall against training time, scoring time and parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import EXIT_INCOMPLETE, InputError, MismatchError
from ..evaluation.recall import chance_recalls
from ..evaluation.split_scores import open_split
from ..manifests.dataset import Dataset
from ..pipeline.folder_lock import folder_lock
from ..pipeline.region_picture import only_features
from ..pipeline.shard_reader import ShardReader
from ..progress import ProgressFactory, no_progress
from ..vocab.shelf import open_vocabulary
from .compare_job import CompareJob, Inputs, StoppedError
from .compare_plot import draw_comparison
from .compare_table import Comparison, RowSummary, write_tables
from .grid import GridRow, row_folders
from .run import default_device

LOCK_FOLDER = ".compare"


@dataclass(frozen=True)
class CompareOutcome:
    """The table so far, and the exit code."""

    table: Comparison
    exit_code: int  # 0, 3 where a run failed or collapsed, 128 + n after a signal


def compare_configs(
    dataset: Dataset,
    rows: Sequence[GridRow],
    *,
    out: Path,
    seeds: int = 1,
    budget_minutes: float | None = None,
    features: str | None = None,
    vocab: str | None = None,
    split: str = "test",
    folds: int = 1,
    device: torch.device | None = None,
    retry_failed: bool = False,
    redo_changed: bool = False,
    progress: ProgressFactory = no_progress,
    say: Callable[[str], None] = lambda text: None,
) -> CompareOutcome:
    """Train and measure every row with every seed; what is done already in `out` is not done again.

    A run that fails is a line of the table; the others go on. The table is written anew after every run, one
    seed of all rows before the next seed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("'camp compare' runs in one process; start it without torchrun")
    inputs = _inputs(
        dataset, features=features, vocab=vocab, split=split, folds=folds, device=device or default_device()
    )
    chance = _chance(inputs)
    jobs = compare_jobs(rows, out=out, seeds=seeds, budget_minutes=budget_minutes)
    with folder_lock(out / LOCK_FOLDER, doing="comparing into it", instead="--out"):
        _check_changed(jobs, inputs, redo=redo_changed)
        results: dict[tuple[str, int], dict[str, Any]] = {}
        for job in jobs:
            result = job.result(inputs)
            if result and not (retry_failed and result["status"] == "failed"):
                results[job.row, job.seed] = result

        def summarise() -> Comparison:
            return _summary(rows, results, inputs=inputs, chance=chance, seeds=seeds)

        exit_code = 0
        todo = [job for job in jobs if (job.row, job.seed) not in results]
        if results:
            say(f"{len(results)} of {len(jobs)} runs are done already")
        for number, job in enumerate(todo, 1):
            say(f"run {number} of {len(todo)}: {job.row}, seed {job.config.run.seed}")
            if retry_failed and job.result(inputs):
                job.clear()
            try:
                result = job.run(inputs, progress=progress, say=say)
            except StoppedError as stop:
                exit_code = stop.exit_code
                break
            results[job.row, job.seed] = result
            say(_line(job, result))
            write_tables(summarise(), out)
        table = summarise()
        write_tables(table, out)
        draw_comparison(table, out)
    if not exit_code and any(result["status"] != "done" for result in results.values()):
        exit_code = EXIT_INCOMPLETE
    return CompareOutcome(table, exit_code)


def compare_jobs(
    rows: Sequence[GridRow], *, out: Path, seeds: int, budget_minutes: float | None
) -> list[CompareJob]:
    """One seed of all rows, then the next; every config's problems are told before anything runs."""
    named = dict(zip((row.name for row in rows), row_folders(rows), strict=True))
    starts = {row.init for row in rows}
    wrong: list[str] = []
    jobs: list[CompareJob] = []
    for seed in range(seeds):
        started: dict[str, CompareJob] = {}
        for row in sorted(rows, key=lambda row: row.name not in starts):  # where others start, first
            try:
                config = row.config(seed=seed, budget_minutes=budget_minutes)
            except InputError as error:
                if seed == 0:
                    wrong.append(f"{row.name}: {error}")
                continue
            folder = out / named[row.name] / f"seed-{config.run.seed}"
            jobs.append(CompareJob(row.name, seed, config, folder, started.get(row.init or "")))
            if row.name in starts:
                started[row.name] = jobs[-1]
    if wrong:
        raise InputError("; ".join(wrong))
    return jobs


def job_states(
    dataset: Dataset, jobs: Sequence[CompareJob], *, features: str | None, vocab: str | None, **measured: Any
) -> list[tuple[CompareJob, str]]:
    """What a comparison would find: new, begun, changed, done, failed or collapsed."""
    inputs = _inputs(dataset, features=features, vocab=vocab, device=torch.device("cpu"), **measured)
    return [(job, job.state(inputs)) for job in jobs]


def _inputs(
    dataset: Dataset, *, features: str | None, vocab: str | None, split: str, folds: int, device: torch.device
) -> Inputs:
    vocab_name, vocabulary = open_vocabulary(dataset, vocab)
    return Inputs(
        dataset=dataset,
        features=features or only_features(dataset),
        vocab=vocab_name,
        vocab_fingerprint=vocabulary.fingerprint,
        split=split,
        folds=folds,
        device=device,
    )


def _chance(inputs: Inputs) -> dict[str, Any]:
    """What a blind model would reach; opening the split here finds what is missing before anything trains."""
    reader = ShardReader.open(inputs.dataset.features_folder(inputs.features))
    rows = open_split(inputs.dataset, split=inputs.split, features=reader, vocab=inputs.vocab)
    return chance_recalls(rows.caption_image, images=len(rows.image_ids), folds=inputs.folds)


def _check_changed(jobs: Sequence[CompareJob], inputs: Inputs, *, redo: bool) -> None:
    changed = [(job, changes) for job in jobs if (changes := job.changes(inputs))]
    if redo:
        for job, _ in changed:
            job.clear()
    elif changed:
        job, changes = changed[0]
        more = f", and {len(changed) - 1} more runs" if len(changed) > 1 else ""
        raise MismatchError(
            f"{job.folder}: {'; '.join(changes[:3])}{more}; choose another --out, or train what changed "
            "again with --redo-changed"
        )


def _summary(
    rows: Sequence[GridRow],
    results: dict[tuple[str, int], dict[str, Any]],
    *,
    inputs: Inputs,
    chance: dict[str, Any],
    seeds: int,
) -> Comparison:
    return Comparison(
        dataset=inputs.dataset.name,
        features=inputs.features,
        split=inputs.split,
        folds=inputs.folds,
        device=str(inputs.device),
        seeds=seeds,
        chance=chance,
        rows=tuple(
            RowSummary(
                name=row.name,
                source=row.source,
                settings=row.settings,
                runs={seed: results[row.name, seed] for seed in range(seeds) if (row.name, seed) in results},
            )
            for row in rows
        ),
    )


def _line(job: CompareJob, result: dict[str, Any]) -> str:
    if result["status"] == "failed":
        return f"{job.row}: failed: {result['error']}"
    note = " (collapsed)" if result["status"] == "collapsed" else ""
    return (
        f"{job.row}: rsum {result['metrics']['rsum']:.1f}{note}, "
        f"trained {result['training_seconds']:.0f} s, {result['microseconds_per_pair']:.3g} µs/pair"
    )
