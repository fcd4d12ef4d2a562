"""Tensors and a JSON state <-> a checkpoint that is whole or absent.

`<name>.json` is the commit point: it names the safetensors file of one step and its checksum. A full disk or
a kill while saving leaves the previous pair in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import InputError, MismatchError, VerificationError
from ..files import canonical_json, checksum_bytes, checksum_file, write_atomic

CHECKPOINT_VERSION = 1


def save_checkpoint(
    folder: Path, name: str, *, tensors: Mapping[str, Tensor], state: Mapping[str, Any], step: int
) -> None:
    """Write the tensors under the step's own name, then the JSON, then remove what it replaced."""
    file = folder / f"{name}-{step:08d}.safetensors"
    content = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    write_atomic(file, content)
    header = {
        "schema_version": CHECKPOINT_VERSION,
        "tensors": file.name,
        "checksum": checksum_bytes(content),
        "step": step,
        "state": dict(state),
    }
    write_atomic(folder / f"{name}.json", canonical_json(header))
    for old in folder.glob(f"{name}-*.safetensors"):
        if old != file:
            old.unlink()


def has_checkpoint(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def load_checkpoint(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A run's checkpoint -> its tensors, on the CPU, and its state; damage is an error."""
    path = folder / f"{name}.json"
    try:
        header = json.loads(path.read_bytes())
        version, file = header["schema_version"], folder / header["tensors"]
    except FileNotFoundError:
        there = sorted(entry.stem for entry in folder.glob("*.json") if entry.stem in ("best", "last"))
        raise InputError(
            f"{folder}: no checkpoint {name!r} found, there is {', '.join(there) or 'none'}; train first"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"{path}: not a checkpoint ({error!r})") from None
    if version != CHECKPOINT_VERSION:
        raise MismatchError(f"{path}: schema version {version}, expected {CHECKPOINT_VERSION}")
    if not file.is_file():
        raise VerificationError(f"{file}: missing, but {path.name} names it")
    if checksum_file(file) != header["checksum"]:
        raise VerificationError(f"{file}: damaged, its checksum is not the one in {path.name}")
    try:
        return load_file(file), header["state"]
    except SafetensorError as error:
        raise VerificationError(f"{file}: cannot be read ({error})") from None


def load_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Weights by name -> the model; missing, unknown and mis-shaped ones are listed in one error."""
    expected = model.state_dict()
    wrong = [f"missing {key}" for key in expected if key not in tensors]
    wrong += [f"unexpected {key}" for key in tensors if key not in expected]
    wrong += [
        f"{key} is {tuple(tensors[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    if wrong:
        shown = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise MismatchError(f"{source}: weights of another architecture: {shown}")
    model.load_state_dict(dict(tensors))
