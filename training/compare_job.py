"""One row and seed of a comparison -> its run folder and result.json, the mark that it is done.

job.json is written first and says what is trained on what; a later comparison that would train something else
into the same folder is noticed by it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CampError, InputError, MismatchError, StorageError
from ..evaluation.checkpoint import has_checkpoint
from ..evaluation.recall import evaluate
from ..evaluation.run_folder import open_run
from ..evaluation.run_scores import open_run_scores
from ..evaluation.timed_scores import timed_scores
from ..files import canonical_json, fingerprint, read_sealed, write_atomic, write_sealed
from ..manifests.dataset import Dataset
from ..progress import ProgressFactory, no_progress
from .config import TrainConfig
from .run import train_dataset

JOB_FILE = "job.json"
RESULT_FILE = "result.json"


class StoppedError(Exception):
    """A signal asked the comparison to stop; what was trained is saved."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Inputs:
    """What every run of a comparison is trained and measured on."""

    dataset: Dataset
    features: str
    vocab: str
    vocab_fingerprint: str
    split: str
    folds: int
    device: torch.device

    @property
    def trained_on(self) -> dict[str, str]:
        return {
            "dataset": self.dataset.fingerprint,
            "features": self.features,
            "vocab": self.vocab_fingerprint,
        }

    @property
    def measured_on(self) -> dict[str, Any]:
        return {"split": self.split, "folds": self.folds}


@dataclass(frozen=True)
class CompareJob:
    """One run of a comparison."""

    row: str
    seed: int
    config: TrainConfig
    folder: Path
    start: CompareJob | None = None  # whose weights it starts from

    def description(self, inputs: Inputs) -> dict[str, Any]:
        start = self.start and fingerprint(self.start.description(inputs))
        return {"row": self.row, "config": plain(asdict(self.config)), "init": start, **inputs.trained_on}

    def changes(self, inputs: Inputs) -> list[str]:
        """What of the run in the folder is not as this comparison would make it."""
        path = self.folder / JOB_FILE
        if not path.is_file():
            if (self.folder / "run.json").is_file():
                return [f"a run without {JOB_FILE}, not made by 'camp compare'"]
            return []
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            return [f"{JOB_FILE} cannot be read ({error})"]
        return list(_differences(found, self.description(inputs)))

    def result(self, inputs: Inputs) -> dict[str, Any] | None:
        """What it came to, where it is done and was measured on the same split."""
        path = self.folder / RESULT_FILE
        if not path.is_file():
            return None
        result = read_sealed(path)
        failed = result["status"] == "failed"
        return result if failed or result["measured_on"] == inputs.measured_on else None

    def state(self, inputs: Inputs) -> str:
        """For people: new, partly trained, changed, or its result's status."""
        if self.changes(inputs):
            return "changed"
        if result := self.result(inputs):
            return str(result["status"])
        return "begun" if (self.folder / JOB_FILE).is_file() else "new"

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        inputs: Inputs,
        *,
        progress: ProgressFactory = no_progress,
        say: Callable[[str], None] = lambda text: None,
    ) -> dict[str, Any]:
        """Train, going on where a kill left it, and measure; a run that fails is a result too."""
        if changes := self.changes(inputs):
            raise MismatchError(f"{self.folder}: {'; '.join(changes)}")
        write_atomic(self.folder / JOB_FILE, canonical_json(self.description(inputs)))
        try:
            result = self._trained(inputs, progress=progress, say=say)
        except StorageError:
            raise  # the next run would meet the same disk
        except (CampError, torch.OutOfMemoryError) as error:
            result = {"status": "failed", "error": str(error)}
        write_sealed(self.folder / RESULT_FILE, result)
        return result

    def _trained(
        self, inputs: Inputs, *, progress: ProgressFactory, say: Callable[[str], None]
    ) -> dict[str, Any]:
        if self.start and not has_checkpoint(self.start.folder, "best"):
            raise InputError(f"it starts from {self.start.row!r}, which has no weights; --retry-failed later")
        outcome = train_dataset(
            inputs.dataset,
            self.config,
            out=self.folder,
            features=inputs.features,
            vocab=inputs.vocab,
            init=self.start.folder if self.start else None,
            device=inputs.device,
            resume=True,
            progress=progress,
            say=say,
        )
        if outcome.exit_code:
            raise StoppedError(outcome.exit_code)
        scores = open_run_scores(
            open_run(self.folder), split=inputs.split, dataset=inputs.dataset.root, device=inputs.device
        )
        timed = timed_scores(scores, progress=progress)
        metrics = evaluate(timed.matrix, scores.rows.caption_image, folds=inputs.folds, bootstrap=0)
        parameters = list(scores.model.parameters())
        return {
            "status": "collapsed" if outcome.collapsed else "done",
            "ended": outcome.reason,
            "epochs": outcome.epochs,
            "steps": outcome.steps,
            "training_seconds": outcome.seconds,
            "encode_seconds": timed.encode_seconds,
            "score_seconds": timed.score_seconds,
            "microseconds_per_pair": timed.microseconds_per_pair,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "measured_on": inputs.measured_on,
            "metrics": metrics,
        }


def plain(value: Any) -> Any:
    """The value as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value))


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for key in sorted({*found, *expected}):
        then, now = found.get(key), expected.get(key)
        if isinstance(then, dict) and isinstance(now, dict):
            yield from _differences(then, now, f"{where}{key}.")
        elif then != now:
            yield f"{where}{key} was {json.dumps(then)}, now it is {json.dumps(now)}".removeprefix("config.")
