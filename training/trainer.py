"""Config, model and batches -> a run folder with its best and last checkpoint: the plain training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InputError, MismatchError
from ..evaluation.checkpoint import has_checkpoint, load_checkpoint, load_weights, save_checkpoint
from ..evaluation.recall import DIRECTIONS
from ..models.losses import Loss, build_loss
from ..models.matcher import Matcher
from ..models.offline_losses import OfflineTerms, build_offline_loss
from ..models.two_pass import Step, training_step
from ..progress import Bar, ProgressFactory, no_progress
from ..schema import Batch
from .config import TrainConfig
from .gathered import gathered_step
from .journal import Journal, draw_curve
from .optimizer import (
    AveragedWeights,
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
)
from .ranks import Ranks
from .stop_signals import StopSignals
from .watch import CollapseWatch, check_finite

_ALONE = Ranks()


class BatchSource(Protocol):
    """What the loop needs of a loader: batches of one epoch, and where it stands."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


Validate = Callable[[Matcher], dict[str, Any]]


@dataclass
class Standing:
    """How far a run has come; part of every checkpoint."""

    step: int = 0
    epoch: int = 0  # finished epochs
    best: float = -1.0  # rsum, or what validation.best_by names
    best_epoch: int = 0
    stale: int = 0  # validations since the best one
    collapse: int = 0
    seconds: float = 0.0  # of training, data waits included, without validation and saving


@dataclass(frozen=True)
class TrainOutcome:
    """How a run ended."""

    reason: str  # 'finished', 'early stopping', 'out of time' or 'stopped'
    steps: int
    epochs: int
    best: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    seconds: float = 0.0  # of training, over all of a run's starts
    collapsed: bool = False  # the last steps were all at the chance loss


class Trainer:
    """One run's model, optimizer and standing."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        model: Matcher,
        loader: BatchSource,
        folder: Path,
        validate: Validate | None = None,
        ranks: Ranks = _ALONE,
        progress: ProgressFactory = no_progress,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.model, self.loader, self.folder = config, model, loader, folder
        self.validate, self.ranks, self.progress, self.say = validate, ranks, progress, say
        self.device = next(model.parameters()).device
        self.optimizer = build_optimizer(model, config.optimizer)
        self.loss = _build_loss(config)
        self.standing = Standing()
        self.average = AveragedWeights(model, decay=config.run.ema) if config.run.ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self._precision() == torch.float16)
        self.steps_per_epoch = math.ceil(len(loader) / config.optimizer.accumulate)
        self._best: dict[str, Any] = {}
        self._saved_at = time.monotonic()

    def train(self, *, resume: bool = False) -> TrainOutcome:
        """Run to the end of the schedule or of the time, to early stopping or a signal; always resumable."""
        if resume and has_checkpoint(self.folder, "last"):
            self._restore()
        self.ranks.same_weights(self.model)
        journal = (
            Journal(self.folder, resume_step=self.standing.step if resume else None)
            if self.ranks.first
            else None
        )
        watch = CollapseWatch(self.config.loss, steps=self.config.run.collapse_steps)
        watch.count = self.standing.collapse
        schedule = self.config.schedule
        try:
            with StopSignals() as signals:
                while self.standing.epoch < schedule.epochs and not self._stale():
                    ended = self._epoch(journal, watch, signals)
                    if ended == "stopped":
                        self._save()
                        return self._outcome("stopped", signals.exit_code)
                    if not ended:
                        self.standing.epoch += 1
                        self.loader.set_epoch(self.standing.epoch)
                    self._measure(journal, last=bool(ended))
                    self._save()
                    if ended:
                        return self._outcome(ended)
            return self._outcome("early stopping" if self._stale() else "finished")
        finally:
            if journal:
                journal.close()
                draw_curve(self.folder)

    def _epoch(self, journal: Journal | None, watch: CollapseWatch, signals: StopSignals) -> str:
        """The rest of the current epoch -> why it ended before its last batch, '' where it did not."""
        if self._out_of_time():
            return "out of time"
        label = f"epoch {self.standing.epoch + 1}/{self.config.schedule.epochs}"
        left = self.steps_per_epoch * (self.standing.epoch + 1) - self.standing.step
        with self.progress(label, left, "steps") as bar:
            meter = _Meter()
            start = time.perf_counter()
            for loss, norm, captions in self._steps(meter):
                self.standing.seconds += time.perf_counter() - start
                if message := watch.see(loss, captions=captions):
                    self.say(f"warning: {message}")
                    if journal:
                        journal.write("warning", step=self.standing.step, text=message)
                self.standing.collapse = watch.count
                bar.advance()
                if self.standing.step % self.config.run.log_steps == 0 or self.standing.step == 1:
                    self._log(journal, bar, meter, norm)
                    meter.restart()
                if self.ranks.agree(signals.received is not None):
                    return "stopped"
                if self._out_of_time():
                    return "out of time"
                self._save_sometimes()
                start = time.perf_counter()
        return ""

    def _out_of_time(self) -> bool:
        minutes = self.config.run.budget_minutes
        return bool(minutes) and self.ranks.agree(self.standing.seconds >= 60 * minutes)

    def _stale(self) -> bool:
        """Whether validation has not become better for long enough."""
        patience = self.config.validation.patience
        return bool(patience) and self.ranks.agree(self.standing.stale >= patience)

    def _steps(self, meter: _Meter) -> Iterator[tuple[float, float, int]]:
        """The rest of the epoch, a step at a time -> mean loss of its batches, gradient norm, captions.

        A batch is used up before the next one is asked for: held ones would make the loader's ring grow.
        """
        losses: list[float] = []
        source = iter(self.loader)
        while True:
            start = time.perf_counter()
            batch = next(source, None)
            meter.waited += time.perf_counter() - start
            if batch is not None:
                if not losses:
                    self._begin_step()
                done = self._backward(batch)
                losses.append(float(done.loss))
                captions = done.scores.shape[1] if batch.joined is None else batch.anchors
                meter.add(losses[-1], done.aux, pairs=done.scored)
            if losses and (batch is None or len(losses) == self.config.optimizer.accumulate):
                yield sum(losses) / len(losses), self._end_step(), captions
                losses = []
            if batch is None:
                return

    def _begin_step(self) -> None:
        rate = learning_rate(
            self.config.optimizer.lr,
            self.config.schedule,
            step=self.standing.step,
            steps_per_epoch=self.steps_per_epoch,
        )
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, batch: Batch) -> Step:
        """Add one batch's gradients; a loss that is not finite stops the run."""
        mean = self.config.loss.reduction == "mean"
        share = 1.0 / self.config.optimizer.accumulate if mean else 1.0
        alone = share / self.ranks.world_size if mean else share  # where each rank has a loss of its own
        if self.config.loss.across_ranks and self.ranks.world_size > 1:
            done = gathered_step(
                self.model, batch, ranks=self.ranks, loss=self.loss, step=self.standing.step,
                scale=self._scaled(share), aux_scale=self._scaled(alone), autocast=self._autocast,
            )  # fmt: skip
        else:
            done = training_step(
                self.model, batch, loss=self.loss, step=self.standing.step, scale=self._scaled(alone),
                autocast=self._autocast,
            )  # fmt: skip
        check_finite(float(done.loss) + sum(map(float, done.aux.values())), batch, step=self.standing.step)
        return done

    def _scaled(self, share: float) -> float | Tensor:
        """A factor of the loss, times the one that keeps float16 gradients from vanishing."""
        if not self.scaler.is_enabled():
            return share
        return self.scaler.scale(torch.full((), share, device=self.device))

    def _end_step(self) -> float:
        """Move the weights -> the gradient's norm before clipping."""
        # Summed first: an overflow on one rank must make all of them leave out the step.
        self.ranks.sum_gradients(self.model)
        self.scaler.unscale_(self.optimizer)
        clip = self.config.optimizer.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.standing.step += 1
        if self.average:
            self.average.update(self.model)
        return float(norm)

    def _precision(self) -> torch.dtype:
        """Half precision only where the hardware has it: on a CPU it is many times slower."""
        wanted: torch.dtype = getattr(torch, self.config.run.precision)
        return wanted if self.device.type == "cuda" else torch.float32

    def _autocast(self) -> AbstractContextManager[object]:
        precision = self._precision()
        if precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=precision)

    def _measure(self, journal: Journal | None, *, last: bool) -> None:
        """Validate when it is due; the end of a run always is."""
        config, standing = self.config.validation, self.standing
        last = last or standing.epoch == self.config.schedule.epochs
        if self.validate is None or not (last or standing.epoch % config.every_epochs == 0):
            return
        if self.ranks.first:
            metrics = self._validated()
            value = _best_by(metrics, config.best_by)
            better = value > standing.best
            if journal:
                journal.write("validation", step=standing.step, epoch=standing.epoch, **metrics)
            self.say(_validation_line(standing.epoch, metrics, better=better))
            if better:
                standing.best, standing.best_epoch, standing.stale = value, standing.epoch, 0
                self._best = {"epoch": standing.epoch, "metrics": metrics}
                weights = self.average.tensors if self.average else self.model.state_dict()
                save_checkpoint(self.folder, "best", tensors=weights, state=self._best, step=standing.step)
            else:
                standing.stale += 1

    def _validated(self) -> dict[str, Any]:
        assert self.validate is not None
        own = (
            {name: value.clone() for name, value in self.model.state_dict().items()} if self.average else None
        )
        if self.average:
            self.model.load_state_dict(self.average.tensors)
        self.model.eval()
        try:
            return self.validate(self.model)
        finally:
            self.model.train()
            if own is not None:
                self.model.load_state_dict(own)

    def _log(self, journal: Journal | None, bar: Bar, meter: _Meter, norm: float) -> None:
        values = {
            "epoch": self.standing.epoch,
            "loss": meter.mean_loss,
            **{f"loss_{name}": value for name, value in meter.mean_aux.items()},
            "lr": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm if math.isfinite(norm) else None,  # else left out: float16 overflowed
            "pairs_per_second": meter.pairs / meter.seconds,
            "waiting_share": meter.waited / meter.seconds,
            "memory_mb": _memory_mb(self.device),
        }
        aux = "".join(f" · {name} {value:.4g}" for name, value in meter.mean_aux.items())
        bar.note(
            f"loss {values['loss']:.4g}{aux} · lr {values['lr']:.2g}"
            f" · {values['pairs_per_second']:,.0f} pairs/s"
            f" · waiting {100 * values['waiting_share']:.0f}% · {values['memory_mb']:,.0f} MB"
        )
        if journal:
            journal.write("train", step=self.standing.step, **values)

    def _save_sometimes(self) -> None:
        minutes = (time.monotonic() - self._saved_at) / 60
        if self.config.run.save_minutes and self.ranks.agree(minutes >= self.config.run.save_minutes):
            self._save()

    def _save(self) -> None:
        """Everything that the next step depends on."""
        self._saved_at = time.monotonic()
        if not self.ranks.first:
            return
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        moments, plain = optimizer_tensors(self.optimizer)
        tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
        if self.average:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "standing": vars(self.standing),
            "optimizer": plain,
            "loader": self.loader.state_dict(),
            "scaler": self.scaler.state_dict(),
            "best": self._best,
        }
        save_checkpoint(self.folder, "last", tensors=tensors, state=state, step=self.standing.step)

    def _restore(self) -> None:
        tensors, state = load_checkpoint(self.folder, "last")

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }

        load_weights(self.model, part("model."), source=str(self.folder))
        restore_optimizer(self.optimizer, part("optimizer."), state["optimizer"])
        averaged = part("average.")
        if self.average:
            if not averaged:
                raise MismatchError(f"{self.folder}: no averaged weights found, but run.ema is set")
            self.average.tensors = {name: value.to(self.device) for name, value in averaged.items()}
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.standing = Standing(**state["standing"])
        self.loader.load_state_dict(state["loader"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self._best = state["best"]

    def _outcome(self, reason: str, exit_code: int = 0) -> TrainOutcome:
        standing = self.standing
        return TrainOutcome(
            reason,
            standing.step,
            standing.epoch,
            self._best,
            exit_code,
            seconds=standing.seconds,
            collapsed=standing.collapse >= self.config.run.collapse_steps,
        )


def _build_loss(config: TrainConfig) -> Loss:
    options: dict[str, Any] = {
        "margin": config.loss.margin,
        "reduction": config.loss.reduction,
        "of_probabilities": config.loss.of_probabilities,
        "rate": config.loss.rate,
    }
    mined = config.negatives
    if not mined.file:
        return build_loss(config.loss.name, **options)
    terms = OfflineTerms(mined.terms, mined.margin, mined.alpha, mined.beta, mined.compat)
    return build_offline_loss(config.loss.name, terms, **options)


class _Meter:
    """Means between two log lines."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._start = time.perf_counter()
        self._losses: list[float] = []
        self._aux: dict[str, float] = {}
        self.pairs = 0
        self.waited = 0.0  # seconds inside the loader

    def add(self, loss: float, aux: Mapping[str, Tensor], *, pairs: int) -> None:
        self._losses.append(loss)
        for name, value in aux.items():
            self._aux[name] = self._aux.get(name, 0.0) + float(value)
        self.pairs += pairs

    @property
    def mean_loss(self) -> float:
        return sum(self._losses) / max(len(self._losses), 1)

    @property
    def mean_aux(self) -> dict[str, float]:
        return {name: total / max(len(self._losses), 1) for name, total in self._aux.items()}

    @property
    def seconds(self) -> float:
        return max(time.perf_counter() - self._start, 1e-9)


def _memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _validation_line(epoch: int, metrics: Mapping[str, Any], *, better: bool) -> str:
    caption, image = metrics["caption_retrieval"], metrics["image_retrieval"]
    recalls = " | ".join(
        "/".join(f"{row[cutoff]:.1f}" for cutoff in ("r@1", "r@5", "r@10")) for row in (caption, image)
    )
    labels = ""
    if "labels" in metrics:
        found = " | ".join(f"{metrics['labels'][name]['map']:.3f}" for name in DIRECTIONS)
        labels = f", MAP {found}"
    return f"epoch {epoch}: caption | image R@1/5/10 {recalls}, rsum {metrics['rsum']:.1f}{labels}" + (
        " (best so far)" if better else ""
    )


def _best_by(metrics: Mapping[str, Any], name: str) -> float:
    """What the best epoch has most of: rsum, or the mean of MAP in both directions."""
    if name == "rsum":
        return float(metrics["rsum"])
    if "labels" not in metrics:
        raise InputError("validation.best_by is 'map', but the data set has no labels; set it to 'rsum'")
    return sum(float(metrics["labels"][direction]["map"]) for direction in DIRECTIONS) / 2
