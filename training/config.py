"""What a training run is: one frozen dataclass per stage, with the checks that need no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPTIMIZERS = ("adam", "adamw", "adamax", "sgd")
PRECISIONS = ("float32", "bfloat16", "float16")
EPOCH_UNITS = ("image", "caption")
REDUCTIONS = ("sum", "mean")
DRAWS = ("uniform", "normal")
BEST_BY = ("rsum", "map")


@dataclass(frozen=True)
class ModelConfig:
    """Which matcher, and its own options."""

    name: str = "camp"
    options: Mapping[str, Any] = field(default_factory=dict)

    def problems(self) -> list[str]:
        from ..models.build import MODELS, model_options

        if self.name not in MODELS:
            return [f"name: found {self.name!r}, expected one of {', '.join(MODELS)}"]
        known = model_options(self.name)
        return [
            f"options.{key}: unknown{did_you_mean(key, known)}; {self.name} has {', '.join(known)}"
            for key in self.options
            if key not in known
        ]


@dataclass(frozen=True)
class LossConfig:
    """The loss on a batch's score matrix. The papers' learning rates assume the sum over the batch."""

    name: str = "bce_hardest"
    margin: float = 0.2
    reduction: str = "sum"
    of_probabilities: bool = False
    rate: float = 0.991  # of the annealed losses: the closer to 1, the later the hardest negatives rule
    across_ranks: bool = False  # negatives from every rank's part of the batch, not from its own alone

    def problems(self) -> list[str]:
        from ..models.losses import LOSSES

        return [
            *one_of("name", self.name, tuple(LOSSES)),
            *one_of("reduction", self.reduction, REDUCTIONS),
            *at_least("margin", self.margin, 0),
        ]


@dataclass(frozen=True)
class NegativesConfig:
    """Mined negatives that join the batch, and how they count (AOQ); without a file, none do."""

    file: str = ""  # what 'camp mine' wrote
    terms: str = "adaptive"
    margin: float = 0.0  # γ₂, of the offline hinges
    alpha: float = 0.3
    beta: float = 1.5
    compat: bool = False  # adaptive weights with gradient and below 0, as released
    draw: str = "uniform"
    other_inputs: bool = False  # allow lists that were mined with other features or another vocabulary

    def problems(self) -> list[str]:
        from ..models.offline_losses import TERMS

        wrong = [
            *one_of("terms", self.terms, TERMS),
            *one_of("draw", self.draw, DRAWS),
            *at_least("margin", self.margin, 0),
        ]
        if self.alpha <= 0:
            wrong.append(f"alpha: found {self.alpha}, expected more than 0")
        return wrong


@dataclass(frozen=True)
class DataConfig:
    """What the loader gives."""

    batch_size: int = 128  # over all ranks
    epoch_unit: str = "image"
    max_words: int = 50  # without <start> and <end>; longer captions are cut, and the cuts counted
    shuffle: str = "full"
    prefetch: int = 2
    vectors: str = ""  # a matrix of the vocabulary's, by name: the embedding starts from it

    def problems(self) -> list[str]:
        return [
            *at_least("batch_size", self.batch_size, 2),
            *one_of("epoch_unit", self.epoch_unit, EPOCH_UNITS),
            *at_least("max_words", self.max_words, 1),
            *at_least("prefetch", self.prefetch, 1),
        ]


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become steps."""

    name: str = "adam"
    lr: float = 2e-4
    weight_decay: float = 0.0
    momentum: float = 0.9  # SGD alone
    betas: tuple[float, ...] = (0.9, 0.999)
    clip: float = 2.0  # of the gradient's norm, 0 for none
    accumulate: int = 1  # batches per step

    def problems(self) -> list[str]:
        wrong = [
            *one_of("name", self.name, OPTIMIZERS),
            *at_least("weight_decay", self.weight_decay, 0),
            *at_least("clip", self.clip, 0),
            *at_least("accumulate", self.accumulate, 1),
        ]
        if self.lr <= 0:
            wrong.append(f"lr: found {self.lr}, expected more than 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            wrong.append(f"betas: found {list(self.betas)}, expected two numbers in [0, 1)")
        return wrong


@dataclass(frozen=True)
class ScheduleConfig:
    """How long, and how the learning rate moves: warm-up, then a factor at each of some epochs or steps."""

    epochs: int = 40
    warmup_steps: int = 0
    warmup_from: float = 0.01  # share of the learning rate at step 0
    drop_epochs: tuple[int, ...] = (15,)
    drop_steps: tuple[int, ...] = ()
    drop_factor: float = 0.1

    def problems(self) -> list[str]:
        wrong = [
            *at_least("epochs", self.epochs, 1),
            *at_least("warmup_steps", self.warmup_steps, 0),
        ]
        if not 0 < self.drop_factor <= 1:
            wrong.append(f"drop_factor: found {self.drop_factor}, expected a number in (0, 1]")
        if not 0 < self.warmup_from <= 1:
            wrong.append(f"warmup_from: found {self.warmup_from}, expected a number in (0, 1]")
        for name in ("drop_epochs", "drop_steps"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                wrong.append(f"{name}: found {list(values)}, expected increasing numbers")
        return wrong


@dataclass(frozen=True)
class ValidationConfig:
    """When the model is measured, on what, and when it is enough."""

    split: str = "val"
    every_epochs: int = 1
    images: int = 0  # the first so many of the split, 0 for all; said with every result
    patience: int = 0  # validations that were not better before stopping, 0 for never
    best_by: str = "rsum"  # or 'map', where the data set has labels: which epoch is the best one

    def problems(self) -> list[str]:
        return [
            *one_of("best_by", self.best_by, BEST_BY),
            *at_least("every_epochs", self.every_epochs, 1),
            *at_least("images", self.images, 0),
            *at_least("patience", self.patience, 0),
        ]


@dataclass(frozen=True)
class RunConfig:
    """Everything about the machine and the dice."""

    seed: int = 0
    precision: str = "float32"  # bfloat16 and float16: autocast, on CUDA alone
    compile: bool = False
    ema: float = 0.0  # decay of the averaged weights, 0 for none
    collapse_steps: int = 300  # steps at the chance loss before training says so
    log_steps: int = 20  # steps between two lines of metrics.jsonl
    save_minutes: float = 10.0  # between two saves inside an epoch; every epoch's end saves too
    budget_minutes: float = 0.0  # of training after which a run ends with a last validation, 0 for none

    def problems(self) -> list[str]:
        wrong = [
            *one_of("precision", self.precision, PRECISIONS),
            *at_least("collapse_steps", self.collapse_steps, 1),
            *at_least("log_steps", self.log_steps, 1),
            *at_least("save_minutes", self.save_minutes, 0),
            *at_least("budget_minutes", self.budget_minutes, 0),
        ]
        if not 0 <= self.ema < 1:
            wrong.append(f"ema: found {self.ema}, expected a number in [0, 1)")
        return wrong


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    run: RunConfig = field(default_factory=RunConfig)


def one_of(name: str, found: str, allowed: tuple[str, ...]) -> list[str]:
    if found in allowed:
        return []
    return [f"{name}: found {found!r}, expected one of {', '.join(allowed)}{did_you_mean(found, allowed)}"]


def at_least(name: str, found: float, least: float) -> list[str]:
    return [] if found >= least else [f"{name}: found {found}, expected at least {least}"]


def did_you_mean(word: str, words: Any) -> str:
    """' (did you mean …?)' where a known word is close."""
    import difflib

    close = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
