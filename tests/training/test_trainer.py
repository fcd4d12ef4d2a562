"""The training loop: it learns, resumes exactly, stops when told, and says when something is wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from camp.errors import MismatchError, StorageError, VerificationError
from camp.evaluation.checkpoint import load_checkpoint, load_weights, save_checkpoint
from camp.schema import Batch
from camp.training.config import (
    LossConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
    ValidationConfig,
)
from camp.training.journal import read_journal
from camp.training.optimizer import learning_rate
from camp.training.trainer import Trainer
from camp.training.watch import CollapseWatch, DivergedError

CONFIG = TrainConfig(
    optimizer=OptimizerConfig(lr=3e-3),
    schedule=ScheduleConfig(epochs=4, drop_epochs=(3,), warmup_steps=4),
    run=RunConfig(log_steps=1),
)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_and_keeps_the_best(kit: Any, run_folder: Path) -> None:
    config = replace(CONFIG, schedule=ScheduleConfig(epochs=20, drop_epochs=()))
    trainer = Trainer(
        config, model=kit.model(), loader=kit.loader(), folder=run_folder, validate=kit.validate
    )
    outcome = trainer.train()
    assert outcome.reason == "finished"
    assert outcome.steps == 60
    validations = [entry for entry in read_journal(run_folder) if entry["kind"] == "validation"]
    assert outcome.best["metrics"]["rsum"] == max(entry["rsum"] for entry in validations) > 200
    tensors, state = load_checkpoint(run_folder, "best")
    model = kit.model(seed=1)
    load_weights(model, tensors, source="best")
    assert kit.validate(model.eval())["rsum"] == state["metrics"]["rsum"] == outcome.best["metrics"]["rsum"]
    assert (run_folder / "curve.png").stat().st_size > 1000
    assert list((run_folder / "events").iterdir())


class InterruptedRunError(Exception):
    pass


class BreakingLoader:
    """Raises, or sends a signal, before the n-th batch of the run."""

    def __init__(self, inner: Any, action: Callable[[], None], *, at: int) -> None:
        self.inner, self.action, self.left = inner, action, at

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.inner:
            self.left -= 1
            if self.left == 0:
                self.action()
            yield batch

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def interrupt() -> None:
    raise InterruptedRunError


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adamax", "sgd"])
def test_a_killed_run_resumes_to_identical_weights(
    kit: Any, tmp_path: Path, optimizer: str, ema: float
) -> None:
    config = replace(
        CONFIG,
        optimizer=OptimizerConfig(name=optimizer, lr=3e-3),
        run=RunConfig(log_steps=1, ema=ema, save_minutes=1e-9),
    )
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    whole = Trainer(config, model=kit.model(), loader=kit.loader(), folder=folders[0], validate=kit.validate)
    whole.train()
    # Killed inside the third epoch; the save before is one step old.
    broken = BreakingLoader(kit.loader(), interrupt, at=8)
    killed = Trainer(config, model=kit.model(), loader=broken, folder=folders[1], validate=kit.validate)
    with pytest.raises(InterruptedRunError):
        killed.train()
    torch.manual_seed(99)  # another process has other dice
    resumed = Trainer(
        config, model=kit.model(seed=5), loader=kit.loader(), folder=folders[1], validate=kit.validate
    )
    outcome = resumed.train(resume=True)
    assert outcome.steps == 12
    assert same(weights(whole), weights(resumed))
    assert same(load_checkpoint(folders[0], "best")[0], load_checkpoint(folders[1], "best")[0])
    lines = [[(e["kind"], e["step"]) for e in read_journal(folder)] for folder in folders]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_next_run_goes_on(kit: Any, tmp_path: Path, number: int, code: int) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = Trainer(CONFIG, model=kit.model(), loader=kit.loader(), folder=tmp_path / "whole")
    whole.train()
    loader = BreakingLoader(kit.loader(), lambda: os.kill(os.getpid(), number), at=5)
    stopped = Trainer(CONFIG, model=kit.model(), loader=loader, folder=tmp_path / "stopped")
    outcome = stopped.train()
    assert (outcome.reason, outcome.exit_code, outcome.steps) == ("stopped", code, 5)
    again = Trainer(CONFIG, model=kit.model(seed=3), loader=kit.loader(), folder=tmp_path / "stopped")
    assert again.train(resume=True).steps == 12
    assert same(weights(whole), weights(again))


def test_accumulated_batches_make_one_step(kit: Any, run_folder: Path) -> None:
    config = replace(CONFIG, optimizer=OptimizerConfig(accumulate=2), schedule=ScheduleConfig(epochs=1))
    trainer = Trainer(config, model=kit.model(), loader=kit.loader(), folder=run_folder)
    assert trainer.train().steps == 2  # two batches, then the one that is left


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_where_the_hardware_had_it(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """CUDA's path on a CPU: autocast, scaled losses and gradients that come out as without them."""
    first = {}
    for wanted in ("float32", precision):
        monkeypatch.setattr(Trainer, "_precision", lambda self, wanted=wanted: getattr(torch, wanted))
        folder = tmp_path / wanted
        folder.mkdir()
        config = replace(CONFIG, schedule=ScheduleConfig(epochs=2, drop_epochs=()))
        trainer = Trainer(config, model=kit.model(), loader=kit.loader(), folder=folder)
        assert trainer.scaler.is_enabled() == (wanted == "float16")
        assert trainer.train().reason == "finished"
        assert all(value.isfinite().all() for value in weights(trainer).values())
        steps = [entry for entry in read_journal(folder) if entry["kind"] == "train"]
        # The scale starts too high for float16: steps are left out until it has come down.
        first[wanted] = next(entry for entry in steps if entry["gradient_norm"] is not None)
    assert first[precision]["loss"] == pytest.approx(first["float32"]["loss"], rel=0.05)
    assert first[precision]["gradient_norm"] == pytest.approx(first["float32"]["gradient_norm"], rel=0.5)


def test_a_step_that_overflows_half_precision_is_left_out(
    kit: Any, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients are infinite, the loss is not: the weights stay, the scale is halved, the run goes on."""
    monkeypatch.setattr(Trainer, "_precision", lambda self: torch.float16)
    trainer = Trainer(CONFIG, model=kit.model(), loader=kit.loader(), folder=run_folder)
    before, scale = weights(trainer), trainer.scaler.get_scale()
    trainer._begin_step()
    trainer._backward(next(iter(kit.loader())))
    gradient = next(trainer.model.parameters()).grad
    assert gradient is not None
    gradient.fill_(float("inf"))
    trainer._end_step()
    assert same(before, weights(trainer))
    assert trainer.scaler.get_scale() < scale


def test_early_stopping(kit: Any, run_folder: Path) -> None:
    results = iter([100.0, 200.0, 150.0, 150.0, 300.0])

    def validate(model: Any) -> dict[str, Any]:
        row = {"r@1": 0.0, "r@5": 0.0, "r@10": 0.0, "medr": 1.0, "meanr": 1.0}
        return {"caption_retrieval": row, "image_retrieval": row, "rsum": next(results)}

    config = replace(CONFIG, validation=ValidationConfig(patience=2))
    config = replace(config, schedule=ScheduleConfig(epochs=9))
    trainer = Trainer(config, model=kit.model(), loader=kit.loader(), folder=run_folder, validate=validate)
    outcome = trainer.train()
    assert (outcome.reason, outcome.epochs, outcome.best["epoch"]) == ("early stopping", 4, 2)


def test_a_loss_that_is_not_a_number_names_the_batch_and_spares_the_weights(
    kit: Any, run_folder: Path
) -> None:
    loader = kit.loader(bad_step=2)
    trainer = Trainer(
        replace(CONFIG, run=RunConfig(save_minutes=1e-9)), model=kit.model(), loader=loader, folder=run_folder
    )
    first_ids = torch.randperm(24, generator=torch.Generator().manual_seed(0))[8:16].tolist()
    with pytest.raises(
        DivergedError, match=f"step 1: the loss is nan; .*Image ids {first_ids[0]}, {first_ids[1]},"
    ):
        trainer.train()
    tensors, state = load_checkpoint(run_folder, "last")
    assert state["standing"]["step"] == 1
    assert all(torch.isfinite(tensor).all() for name, tensor in tensors.items() if name.startswith("model."))


@pytest.mark.parametrize(
    ("loss", "captions", "chance"),
    [
        (LossConfig(), 8, 4 * 8 * 0.693147),
        (LossConfig(name="ranking_hardest"), 8, 2 * 8 * 0.2),
        (LossConfig(name="ranking_hardest", reduction="mean"), 8, 0.4),
    ],
)
def test_collapse_is_told_once(loss: LossConfig, captions: int, chance: float) -> None:
    watch = CollapseWatch(loss, steps=3)
    told = [watch.see(value, captions=captions) is not None for value in [9, *[chance] * 4]]
    assert told == [False, False, False, True, False]
    watch.see(chance * 1.1, captions=captions)
    assert watch.count == 0


def test_a_collapsed_run_says_so(kit: Any, run_folder: Path) -> None:
    said: list[str] = []
    config = replace(
        CONFIG, loss=LossConfig(name="ranking_hardest"), run=RunConfig(collapse_steps=5, log_steps=1)
    )
    loader = kit.loader(constant=True)
    Trainer(config, model=kit.model("base"), loader=loader, folder=run_folder, say=said.append).train()
    [warning] = [line for line in said if "collapsed" in line]
    assert "for 5 steps the loss was 3.2" in warning
    assert [entry["step"] for entry in read_journal(run_folder) if entry["kind"] == "warning"] == [5]


def test_learning_rate_by_hand() -> None:
    schedule = ScheduleConfig(
        warmup_steps=10, warmup_from=0.1, drop_epochs=(2,), drop_steps=(25,), drop_factor=0.1
    )
    rates = [
        learning_rate(1.0, schedule, step=step, steps_per_epoch=10) for step in (0, 5, 10, 19, 20, 24, 25)
    ]
    assert rates == pytest.approx([0.1, 0.55, 1, 1, 0.1, 0.1, 0.01])


class TestCheckpoint:
    def test_a_full_disk_keeps_the_previous_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_checkpoint(tmp_path, "last", tensors={"x": torch.ones(3)}, state={"n": 1}, step=1)

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="no space left"):
            save_checkpoint(tmp_path, "last", tensors={"x": torch.zeros(3)}, state={"n": 2}, step=2)
        monkeypatch.undo()
        tensors, state = load_checkpoint(tmp_path, "last")
        assert (tensors["x"].tolist(), state) == ([1, 1, 1], {"n": 1})

    def test_old_steps_are_removed(self, tmp_path: Path) -> None:
        for step in (1, 2, 3):
            save_checkpoint(tmp_path, "last", tensors={"x": torch.ones(1)}, state={}, step=step)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["last-00000003.safetensors", "last.json"]

    def test_damage_is_noticed(self, tmp_path: Path) -> None:
        save_checkpoint(tmp_path, "last", tensors={"x": torch.ones(3)}, state={}, step=1)
        file = tmp_path / "last-00000001.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(VerificationError, match="damaged, its checksum is not the one in last.json"):
            load_checkpoint(tmp_path, "last")
        file.unlink()
        with pytest.raises(VerificationError, match="missing, but last.json names it"):
            load_checkpoint(tmp_path, "last")
        (tmp_path / "last.json").write_text(json.dumps({"schema_version": 9, "tensors": "x"}))
        with pytest.raises(MismatchError, match="schema version 9"):
            load_checkpoint(tmp_path, "last")

    def test_another_architecture_is_listed(self, kit: Any) -> None:
        tensors = dict(kit.model("base").state_dict())
        with pytest.raises(
            MismatchError, match="another architecture: missing affinity_image.weight; .* and 6 more"
        ):
            load_weights(kit.model("camp"), tensors, source="best")


def test_the_budget_is_of_all_starts_together(kit: Any, run_folder: Path) -> None:
    config = replace(
        CONFIG,
        schedule=ScheduleConfig(epochs=100000),
        validation=ValidationConfig(every_epochs=100000),
        run=RunConfig(log_steps=1, budget_minutes=0.2 / 60),
    )
    build = {"folder": run_folder, "validate": kit.validate}
    first = Trainer(config, model=kit.model(), loader=kit.loader(), **build).train()
    assert first.reason == "out of time"
    assert 0.2 <= first.seconds < 20
    assert first.best["metrics"]["rsum"] > 0  # the end of the time is validated, whatever every_epochs says
    again = Trainer(config, model=kit.model(), loader=kit.loader(), **build).train(resume=True)
    assert (again.reason, again.steps, again.seconds) == ("out of time", first.steps, first.seconds)


def test_an_early_stopped_run_stays_stopped(kit: Any, run_folder: Path) -> None:
    config = replace(CONFIG, optimizer=OptimizerConfig(lr=1e-12), validation=ValidationConfig(patience=1))
    build = {"folder": run_folder, "validate": kit.validate}
    first = Trainer(config, model=kit.model(), loader=kit.loader(), **build).train()
    again = Trainer(config, model=kit.model(), loader=kit.loader(), **build).train(resume=True)
    assert (first.reason, first.epochs) == (again.reason, again.epochs) == ("early stopping", 2)
