"""(fingerprint, seed, epoch) -> the order of an epoch's samples, the same on every machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..files import canonical_json

Integers = npt.NDArray[np.int64]

_WINDOW = re.compile(r"window(?:\((\d+),\s*(\d+)\))?")


@dataclass(frozen=True)
class Shuffle:
    """How far an epoch's order is from the order on disk. Configuration, never a guess from free memory."""

    kind: str = "full"  # 'none', 'full' or 'window'
    block: int = 64  # image rows that lie together on disk and stay in one window
    blocks: int = 128  # blocks whose samples are mixed with each other

    def __post_init__(self) -> None:
        if self.kind not in ("none", "full", "window"):
            raise InputError(f"shuffle {self.kind!r}, expected 'full', 'none' or 'window(BLOCK, BLOCKS)'")
        if self.block < 1 or self.blocks < 1:
            raise InputError(f"shuffle window({self.block}, {self.blocks}): both must be at least 1")

    @classmethod
    def of(cls, value: Shuffle | str | None) -> Shuffle:
        """'full', 'none' (or None), 'window' or 'window(128, 64)' -> the setting."""
        if isinstance(value, Shuffle):
            return value
        if value is None:
            return cls("none")
        match = _WINDOW.fullmatch(value.strip())
        if match is None:
            return cls(value)
        return cls("window", int(match[1]), int(match[2])) if match[1] else cls("window")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) if self.kind == "window" else {"kind": self.kind}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Shuffle:
        return cls(**value)

    def __str__(self) -> str:
        return f"window({self.block}, {self.blocks})" if self.kind == "window" else self.kind


@dataclass(frozen=True)
class EpochKey:
    """What all random choices of an epoch are a function of."""

    fingerprint: str  # of the data
    seed: int
    epoch: int

    def bits(self, count: int, *, purpose: str) -> npt.NDArray[np.uint64]:
        """`count` numbers of 64 random bits; another purpose gives others.

        Raw output of Philox: NumPy promises that it never changes, which it does not of permutation().
        """
        name = canonical_json([purpose, self.fingerprint, self.seed, self.epoch])
        key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
        return np.random.Philox(key=key).random_raw(count)


def sample_order(
    count: int, *, key: EpochKey, shuffle: Shuffle, block_of: Integers | None = None
) -> Integers:
    """0..count-1 in the epoch's order; `block_of` (count,) says which block of rows a sample is in."""
    if shuffle.kind == "none":
        return np.arange(count)
    if shuffle.kind == "full":
        return _permutation(count, key=key, purpose="order")
    assert block_of is not None
    window_of = sample_windows(block_of, key=key, shuffle=shuffle)
    return _permutation(count, key=key, purpose="order", group=window_of)


def sample_windows(block_of: Integers, *, key: EpochKey, shuffle: Shuffle) -> Integers:
    """(n,) each sample's window: blocks are permuted, then taken `shuffle.blocks` at a time."""
    blocks = int(block_of.max(initial=-1)) + 1
    turn = np.empty(blocks, np.int64)
    turn[_permutation(blocks, key=key, purpose="blocks")] = np.arange(blocks)
    return turn[block_of] // shuffle.blocks


def _permutation(count: int, *, key: EpochKey, purpose: str, group: Integers | None = None) -> Integers:
    """0..count-1 sorted by (group, random bits, number).

    All three share a 64-bit word, so no two words are equal and every sorting algorithm gives the same order.
    A million samples in a thousand windows leave 34 bits to chance.
    """
    low = max(count - 1, 0).bit_length()
    high = 0 if group is None else int(group.max(initial=0)).bit_length()
    words = key.bits(count, purpose=purpose) << np.uint64(high) >> np.uint64(high)
    words = words >> np.uint64(low) << np.uint64(low) | np.arange(count, dtype=np.uint64)
    if group is not None and high:
        words |= group.astype(np.uint64) << np.uint64(64 - high)
    words.sort()
    return (words & np.uint64((1 << low) - 1)).astype(np.int64)


def draw(counts: Integers, *, key: EpochKey, purpose: str = "captions") -> Integers:
    """(n,) how many there are to choose from -> (n,) the one chosen for each in this epoch."""
    bits = key.bits(len(counts), purpose=purpose) >> np.uint64(32)
    return (bits * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
