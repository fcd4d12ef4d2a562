"""A model and its config -> the optimizer, the learning rate of any step, and the averaged weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .config import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Every parameter that learns, in one group."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        return torch.optim.SGD(parameters, momentum=config.momentum, **common)
    first, second = config.betas
    kinds: dict[str, Any] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adamax": torch.optim.Adamax,
    }
    optimizer: torch.optim.Optimizer = kinds[config.name](parameters, betas=(first, second), **common)
    return optimizer


def learning_rate(base: float, schedule: ScheduleConfig, *, step: int, steps_per_epoch: int) -> float:
    """The rate of a step (from 0): a linear warm-up, and a factor at every drop that has passed."""
    drops = sum(step >= epoch * steps_per_epoch for epoch in schedule.drop_epochs)
    drops += sum(step >= drop for drop in schedule.drop_steps)
    rate = base * schedule.drop_factor**drops
    if step < schedule.warmup_steps:
        share = step / schedule.warmup_steps
        rate *= schedule.warmup_from + (1 - schedule.warmup_from) * share
    return rate


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state -> tensors by name and the plain rest, for a checkpoint."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"groups": state["param_groups"], "values": {}}
    for number, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{key}"] = value
            else:
                plain["values"][f"{number}.{key}"] = value
    return tensors, plain


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """The inverse of optimizer_tensors."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *plain["values"].items()]:
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": plain["groups"]})


class AveragedWeights:
    """An exponential moving average of a model's weights; what is validated and kept as best."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value, 1 - self.decay)
            else:
                self.tensors[name].copy_(value)
