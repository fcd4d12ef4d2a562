"""The tensors of a released CAMP checkpoint -> our names for them, and what did not fit.

A checkpoint's `model` is a list of three state dicts: regions, words, head. Only their names and shapes are
dealt with here; reading the file without running what is pickled in it is the caller's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, MismatchError
from .camp_official import CampOfficial
from .matcher import Matcher

_WRAPPER = "module."  # what nn.DataParallel puts before every name

_GRU = [
    f"{kind}_l0{direction}"
    for direction in ("", "_reverse")
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
]

IMAGE_KEYS = {"fc.weight": "image.fc.weight", "fc.bias": "image.fc.bias"}
TEXT_KEYS = {"embed.weight": "text.embed.tables.0.weight"} | {
    f"rnn.{name}": f"text.rnn.{name}" for name in _GRU
}
HEAD_KEYS = (
    {
        f"{theirs}_fc.weight": f"{ours}.weight"
        for theirs, ours in {
            "img_query": "side_image.query",
            "img_key": "side_image.key",
            "txt_query": "side_text.query",
            "txt_key": "side_text.key",
            "weighted_img_query": "side_image.message_query",
            "weighted_img_key": "side_image.message_key",
            "weighted_txt_query": "side_text.message_query",
            "weighted_txt_key": "side_text.message_key",
        }.items()
    }
    | {"fc_1.0.weight": "side_image.fuse.weight", "fc_2.0.weight": "side_text.fuse.weight"}
    | {
        f"final_reduce_{number}.linear.{layer}.{kind}": f"side_{side}.pool.{layer}.{kind}"
        for number, side in ((1, "image"), (2, "text"))
        for layer in (0, 2)
        for kind in ("weight", "bias")
    }
    | {
        f"fc_out.{theirs}.{kind}": f"match.{ours}.{kind}"
        for theirs, ours in ((0, 0), (3, 2))
        for kind in ("weight", "bias")
    }
)
PARTS = (IMAGE_KEYS, TEXT_KEYS, HEAD_KEYS)
PART_NAMES = ("regions", "words", "head")


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What a checkpoint holds, in its own names: each prefixed by the part it was looked for in."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing

    def lines(self) -> list[str]:
        """For people."""
        found = [f"{len(self.loaded)} tensors loaded"]
        if self.missing:
            found.append(f"missing: {', '.join(self.missing)}")
        if self.unexpected:
            found.append(f"not used: {', '.join(self.unexpected)}")
        return found


def rename_keys(
    parts: Sequence[Mapping[str, Tensor]], tables: Sequence[Mapping[str, str]] = PARTS
) -> tuple[dict[str, Tensor], KeyReport]:
    """The state dicts of a checkpoint, and per part their names -> ours: one state dict, and the report."""
    names = PART_NAMES[: len(tables)]
    if len(parts) != len(tables):
        raise InputError(
            f"checkpoint with {len(parts)} state dicts, expected {len(tables)} ({', '.join(names)}); "
            "is it of another model?"
        )
    state: dict[str, Tensor] = {}
    loaded, missing, unexpected = [], [], []
    for part_name, part, keys in zip(names, parts, tables, strict=True):
        bare = {name.removeprefix(_WRAPPER): tensor for name, tensor in part.items()}
        for theirs, ours in keys.items():
            if theirs in bare:
                state[ours] = bare[theirs]
                loaded.append(f"{part_name}: {theirs}")
            else:
                missing.append(f"{part_name}: {theirs}")
        unexpected += [f"{part_name}: {name}" for name in bare if name not in keys]
    return state, KeyReport(tuple(loaded), tuple(missing), tuple(unexpected))


def camp_from_checkpoint(
    parts: Sequence[Mapping[str, Tensor]], *, vocab_size: int
) -> tuple[CampOfficial, KeyReport]:
    """The three state dicts and the size of the vocabulary that comes with them -> the model, and the report.

    The sizes of the model are those of the checkpoint's tensors. A tensor that is missing keeps its random
    start, and the report says so; one whose shape does not fit is refused, and so is a vocabulary of another
    size.
    """
    state, report = rename_keys(parts)
    model = CampOfficial(**checkpoint_sizes(state, vocab_size=vocab_size))
    load_renamed(model, state)
    return model, report


def checkpoint_sizes(state: Mapping[str, Tensor], *, vocab_size: int) -> dict[str, Any]:
    """A renamed state dict -> the sizes of its model, which every model takes as arguments."""
    sizes = ("image.fc.weight", "text.embed.tables.0.weight")
    if absent := [name for name in sizes if name not in state]:
        raise InputError(f"checkpoint without {', '.join(absent)}; expected a released model")
    (dim, region_dim), (words, word_dim) = (tuple(state[name].shape) for name in sizes)
    if words != vocab_size:
        raise MismatchError(
            f"vocabulary of {vocab_size} words, the checkpoint's embedding has {words}; "
            "give the vocabulary file that was released with it"
        )
    return {"vocab_size": words, "region_dim": region_dim, "word_dim": word_dim, "dim": dim}


def load_renamed(model: Matcher, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors that are there into the model; shapes must fit."""
    own = model.state_dict()
    if wrong := [
        f"{name} {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in state.items()
        if tensor.shape != own[name].shape
    ]:
        raise MismatchError(f"checkpoint with other shapes: {'; '.join(wrong)}; is it of another model?")
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
