"""A weight file -> named tensors -> a module's parameters, or the list of what does not fit."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError

_SHOWN = 40  # names per kind of problem in the message


def read_state(path: Path) -> dict[str, Tensor]:
    """A .safetensors file or a torch checkpoint of plain tensors -> name: tensor. Executes nothing."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a safetensors file ({error})") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{path}: not a checkpoint of plain tensors ({first[:120]}); "
            "expected torch.save(model.state_dict(), ...) or safetensors"
        ) from None
    for key in ("state_dict", "model"):  # how training scripts usually wrap it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path}: holds {type(content).__name__}, expected a dictionary of tensors")
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_state(module: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Named tensors -> the module's own, all of them; a missing, extra or mis-shaped one is an InputError."""
    wanted = module.state_dict()
    # num_batches_tracked counts training steps; evaluation never reads it and old files lack it.
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = [name for name in wanted if name not in state and name not in counters]
    extra = [name for name in state if name not in wanted]
    misshaped = [
        f"{name} {tuple(state[name].shape)} for {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for kind, names in (("missing", missing), ("unexpected", extra), ("of another shape", misshaped))
        if names
    ]
    if problems:
        raise InputError(f"{source}: weights do not fit the model: {'; '.join(problems)}")
    module.load_state_dict(dict(state), strict=False)
