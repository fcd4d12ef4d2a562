"""caption_job.py: counted and encoded in parts on executors, captions give what one process makes of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from camp.cli import camp_data
from camp.errors import CampError, MismatchError
from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline import executor_slurm
from camp.pipeline.caption_job import count_on, encode_on
from camp.pipeline.caption_options import CaptionOptions
from camp.pipeline.caption_plan import CaptionSlices, plan_captions
from camp.pipeline.caption_worker import CaptionWorker, describe_captions, parts_fingerprint
from camp.pipeline.executor_local import LocalExecutor
from camp.pipeline.executor_slurm import SlurmExecutor
from camp.pipeline.extract_events import Emit, Event, Job, Ready
from camp.pipeline.job_worker import WORK_FOLDER
from camp.pipeline.tokens import tokenize_dataset, tokens_file
from camp.pipeline.unit_queue import UnitQueue
from camp.schema import CaptionRow, ImageRow
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import Tokenizer, open_tokenizer

WORDS = ["dog", "cat", "Don't", "a-b", "3.5", "naïve", "the", "end."]


class HereExecutor:
    """The worker in this process, one unit after another; `die_after` units it is gone."""

    speculate = False

    def __init__(self, die_after: int | None = None) -> None:
        self.die_after, self.done = die_after, 0

    def run(self, job: Job, *, queue: Callable[[Ready], UnitQueue], workers: int | None, emit: Emit) -> None:
        dataset = Dataset.open(job.dataset)
        assert isinstance(job.options, CaptionOptions)
        worker = CaptionWorker(dataset, folder=dataset.root / WORK_FOLDER / job.name, options=job.options)
        units = queue(Ready(worker="here", device="cpu", description={}, fingerprint=worker.fingerprint))
        while (assignment := units.take("here")) is not None:
            if self.done == self.die_after:
                raise KeyboardInterrupt
            stats = worker.run(assignment.unit)
            units.finish("here", assignment.unit.shard)
            self.done += 1
            emit(Event(kind="done", shard=stats.shard, images=stats.images))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two generations; the splits' captions are mixed, and the ids have gaps."""
    generator = np.random.default_rng(0)
    found: Dataset | None = None
    for generation, count in enumerate((40, 17)):
        first = 1000 * generation
        images = [
            ImageRow(first + 3 * n, f"{first + n}.jpg", "", ("train", "val", "test")[n % 3])
            for n in range(count)
        ]
        captions = [
            CaptionRow(
                first + number,
                first + 3 * (number % count),
                " ".join(generator.choice(WORDS, generator.integers(1, 12))),
            )
            for number in range(3 * count)
        ]
        found = write_generation(
            tmp_path / "dataset",
            manifest_from_rows(images, captions),
            name="mixed",
            source={},
            findings={},
            label_names=[],
            image_roots=[None],
            previous=found,
        )
    assert found is not None
    return found


@pytest.fixture
def tokenizer() -> Tokenizer:
    return open_tokenizer("plain")


def vocabulary_bytes(dataset: Dataset, **count: Any) -> bytes:
    vocabulary = build_vocabulary(dataset, tokenizer=open_tokenizer("plain"), min_count=2, **count)
    vocabulary.save(dataset.vocab_file("default"))
    return dataset.vocab_file("default").read_bytes()


def token_bytes(dataset: Dataset, **options: Any) -> dict[str, bytes]:
    shutil.rmtree(dataset.tokens_folder("default"), ignore_errors=True)
    tokenize_dataset(dataset, max_words=7, **options)
    return {split: tokens_file(dataset, "default", split).read_bytes() for split in dataset.splits}


def check_same(dataset: Dataset, executor: Any, *, workers: int | None = None) -> None:
    """Vocabulary and token files are, byte for byte, those made here, and nothing is left behind."""
    tokenizer = open_tokenizer("plain")
    expected = vocabulary_bytes(dataset), token_bytes(dataset)

    def count(splits: Any) -> Any:
        return count_on(executor, dataset, splits, tokenizer=tokenizer, workers=workers, unit_size=60)

    found = (
        vocabulary_bytes(dataset, count=count),
        token_bytes(dataset, encode=encode_on(executor, dataset, workers=workers, unit_size=60)),
    )
    assert found == expected
    assert not (dataset.root / WORK_FOLDER).exists()


def test_units_hold_every_caption_once_in_order(dataset: Dataset) -> None:
    slices = CaptionSlices(dataset)
    for size in (1, 7, 120, 1000):
        units = plan_captions(dataset, unit_size=size)
        assert max(unit.images for unit in units) <= size
        found: dict[str, list[int]] = {split: [] for split in dataset.splits}
        for unit in units:
            for split, table in slices.read(unit).items():
                found[split] += table["caption_id"].to_pylist()
        for split in dataset.splits:
            assert found[split] == dataset.select_captions([split])["caption_id"].to_pylist()


def test_parts_come_to_what_one_process_makes(dataset: Dataset) -> None:
    check_same(dataset, HereExecutor())


@pytest.mark.slow
def test_local_workers(dataset: Dataset) -> None:
    check_same(dataset, LocalExecutor(), workers=2)


@pytest.mark.slow
def test_slurm_tasks(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the package 'submitit' is not installed")
    monkeypatch.setattr(executor_slurm, "POLL_SECONDS", 0.2)
    check_same(dataset, SlurmExecutor(cluster="local"), workers=2)


def test_a_job_that_was_killed_goes_on(dataset: Dataset, tokenizer: Tokenizer) -> None:
    options = {"tokenizer": tokenizer, "unit_size": 25}
    with pytest.raises(KeyboardInterrupt):
        count_on(HereExecutor(die_after=4), dataset, ["train"], **options)  # type: ignore[arg-type]
    (part,) = (dataset.root / WORK_FOLDER).glob("count-*/captions-00001.part")
    os.truncate(part, 1)  # its marker no longer counts
    rest = HereExecutor()
    found = count_on(rest, dataset, ["train"], **options)  # type: ignore[arg-type]
    assert rest.done == len(plan_captions(dataset, unit_size=25)) - 3
    assert found == count_on(HereExecutor(), dataset, ["train"], **options)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        count_on(HereExecutor(die_after=4), dataset, ["train"], **options)  # type: ignore[arg-type]
    other = HereExecutor()
    count_on(other, dataset, ["val"], **options)  # type: ignore[arg-type]
    assert other.done == len(plan_captions(dataset, unit_size=25))  # parts of another question do not count


def test_all_workers_must_agree(
    dataset: Dataset, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camp.pipeline.caption_job.parts_fingerprint", lambda options, description: "another")
    with pytest.raises(MismatchError, match="here has another version of the plain tokenizer"):
        count_on(HereExecutor(), dataset, ["train"], tokenizer=tokenizer)


def test_a_unit_that_cannot_be_done_is_an_error(dataset: Dataset, tokenizer: Tokenizer) -> None:
    class Failing(HereExecutor):
        def run(self, job: Job, *, queue: Any, workers: int | None, emit: Emit) -> None:
            units = queue(Ready(worker="w", device="cpu", description={}, fingerprint=self.fingerprint))
            while (assignment := units.take("w")) is not None:
                units.fail("w", assignment.unit.shard, "no memory")

        fingerprint = ""

    failing = Failing()
    failing.fingerprint = parts_fingerprint(
        CaptionOptions(task="count", splits=("train",), tokenizer="plain"),
        describe_captions(tokenizer),
    )
    with pytest.raises(CampError, match="captions-00000 was given up: no memory; run the same command"):
        count_on(failing, dataset, ["train"], tokenizer=tokenizer)


@pytest.mark.slow
def test_the_commands(dataset: Dataset) -> None:
    root = str(dataset.root)

    def run(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(camp_data, [*words, "--json"])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    build = ("build-vocab", root, "--tokenizer", "plain", "--min-count", "2", "--executor", "local")
    first = run(*build, "--workers", "2")
    here = run("build-vocab", root, "--tokenizer", "plain", "--min-count", "2")
    assert here["change"] == "unchanged", here["change"]
    assert not any(facts["written"] for facts in here["tokens"].values())
    assert first["statistics"] == here["statistics"]
    shutil.rmtree(dataset.tokens_folder("default"))
    again = run("tokenize", root, "--executor", "local", "--workers", "1")
    assert again["tokens"] == first["tokens"]
    refused = CliRunner().invoke(camp_data, ["build-vocab", __file__, "--executor", "ray"])
    assert refused.exit_code == 2
    assert "--executor is for a data set" in refused.output
