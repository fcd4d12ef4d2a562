"""What an encoder made of n images or captions -> rows that can be picked, joined, trimmed and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Rows = Tensor | slice


@dataclass(frozen=True, slots=True)
class Encoded:
    """n encoded images (L regions each) or captions (L words each).

    Whatever a score needs from one modality alone is computed once, here, and never per pair. A model that
    keeps no local or no global features leaves that tensor with width 0. A padded region or word has mask
    False; what stands in its row is arbitrary and must not reach a score.
    """

    local: Tensor  # (n, L, d)
    mask: Tensor  # (n, L) bool, true where a region or word is real
    glob: Tensor  # (n, d)
    cached: Mapping[str, Tensor] = field(default_factory=dict)  # projections of the local features, (n, L, …)
    grams: Mapping[str, Tensor] = field(default_factory=dict)  # products of two local features, (n, L, L)
    pooled: Mapping[str, Tensor] = field(default_factory=dict)  # one vector or number per row, (n, …)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def lengths(self) -> Tensor:
        """How many regions or words are real: (n,)."""
        return self.mask.sum(dim=1)

    def map(self, function: Callable[[Tensor], Tensor]) -> Encoded:
        """The same function on every tensor, the mask included."""
        return Encoded(
            local=function(self.local),
            mask=function(self.mask),
            glob=function(self.glob),
            cached={name: function(tensor) for name, tensor in self.cached.items()},
            grams={name: function(tensor) for name, tensor in self.grams.items()},
            pooled={name: function(tensor) for name, tensor in self.pooled.items()},
        )

    def index(self, rows: Rows) -> Encoded:
        """Some of the rows: a slice gives views, indices (any order, repeats allowed) give copies."""
        if isinstance(rows, slice):
            return self.map(lambda tensor: tensor[rows])
        return self.map(lambda tensor: tensor.index_select(0, rows))

    def to(self, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None) -> Encoded:
        """On another device, or in another precision (the mask stays boolean)."""
        return self.map(
            lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
        )

    def detach(self) -> Encoded:
        return self.map(Tensor.detach)

    def trim(self, length: int | None = None) -> Encoded:
        """Without the padding that no row needs, or cut to a length that the caller knows to be enough."""
        length = int(self.lengths.max()) if length is None else length
        if length >= self.mask.shape[1]:
            return self
        return Encoded(
            local=self.local[:, :length],
            mask=self.mask[:, :length],
            glob=self.glob,
            cached={name: tensor[:, :length] for name, tensor in self.cached.items()},
            grams={name: tensor[:, :length, :length] for name, tensor in self.grams.items()},
            pooled=self.pooled,
        )

    def pad(self, length: int) -> Encoded:
        """With rows of zeros, masked, up to a length."""
        missing = length - self.mask.shape[1]
        assert missing >= 0, f"{self.mask.shape[1]} rows do not fit into {length}"
        if not missing:
            return self

        def grow(tensor: Tensor, axes: int) -> Tensor:
            # F.pad counts from the last axis: (0, 0) skips one, (0, missing) grows one.
            untouched = [0, 0] * (tensor.dim() - 1 - axes)
            return F.pad(tensor, untouched + [0, missing] * axes)

        return Encoded(
            local=grow(self.local, 1),
            mask=grow(self.mask, 1),
            glob=self.glob,
            cached={name: grow(tensor, 1) for name, tensor in self.cached.items()},
            grams={name: grow(tensor, 2) for name, tensor in self.grams.items()},
            pooled=self.pooled,
        )

    def floats(self) -> Iterator[Tensor]:
        """Every tensor that can carry a gradient, always in the same order."""
        yield self.local
        yield self.glob
        for group in (self.cached, self.grams, self.pooled):
            yield from (group[name] for name in sorted(group) if group[name].is_floating_point())


def cat(parts: Sequence[Encoded]) -> Encoded:
    """Several batches of one modality and model -> one, padded to the longest."""
    length = max(part.mask.shape[1] for part in parts)
    padded = [part.pad(length) for part in parts]
    first = padded[0]
    return Encoded(
        local=torch.cat([part.local for part in padded]),
        mask=torch.cat([part.mask for part in padded]),
        glob=torch.cat([part.glob for part in padded]),
        cached={name: torch.cat([part.cached[name] for part in padded]) for name in first.cached},
        grams={name: torch.cat([part.grams[name] for part in padded]) for name in first.grams},
        pooled={name: torch.cat([part.pooled[name] for part in padded]) for name in first.pooled},
    )


def word_mask(lengths: Tensor, words: int) -> Tensor:
    """Lengths (n,) -> (n, words), true up to each length."""
    return torch.arange(words, device=lengths.device) < lengths.unsqueeze(1)
