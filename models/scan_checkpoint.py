"""The tensors of a released SCAN checkpoint -> our names for them, and what did not fit.

Its `model` is a list of two state dicts, regions and words; SCAN's score has no parameters. BFAN's code saves
the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .bfan import Bfan
from .camp_checkpoint import IMAGE_KEYS, TEXT_KEYS, KeyReport, checkpoint_sizes, load_renamed, rename_keys
from .scan import Scan


def scan_from_checkpoint(
    parts: Sequence[Mapping[str, Tensor]], *, vocab_size: int, options: Mapping[str, Any] | None = None
) -> tuple[Scan, KeyReport]:
    """The two state dicts and the vocabulary's size -> the model, and the report.

    Direction, pooling and smoothing are no tensors: the file's `opt` knows them, and `options` says them.
    """
    state, report = rename_keys(parts, (IMAGE_KEYS, TEXT_KEYS))
    model = Scan(**checkpoint_sizes(state, vocab_size=vocab_size), **(options or {}))
    load_renamed(model, state)
    return model, report


def bfan_from_checkpoint(
    parts: Sequence[Mapping[str, Tensor]], *, vocab_size: int, options: Mapping[str, Any] | None = None
) -> tuple[Bfan, KeyReport]:
    """The same for BFAN."""
    state, report = rename_keys(parts, (IMAGE_KEYS, TEXT_KEYS))
    model = Bfan(**checkpoint_sizes(state, vocab_size=vocab_size), **(options or {}))
    load_renamed(model, state)
    return model, report
