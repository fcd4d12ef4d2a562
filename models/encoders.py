"""Region features and word ids -> local features of one width: the parts that the models share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..errors import InputError, MismatchError

NORM_EPSILON = 1e-8


def unit(vectors: Tensor) -> Tensor:
    """Vectors along the last axis -> length 1; a zero vector stays zero."""
    return F.normalize(vectors, dim=-1, eps=NORM_EPSILON)


class RegionEncoder(nn.Module):
    """Region features (n, R, D) -> (n, R, d), Eq. 15 of CAMP."""

    def __init__(self, *, region_dim: int = 2048, dim: int = 1024) -> None:
        super().__init__()
        self.fc = nn.Linear(region_dim, dim)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, regions: Tensor) -> Tensor:
        if regions.shape[-1] != self.fc.in_features:
            raise MismatchError(
                f"regions of {regions.shape[-1]} dimensions, the model expects {self.fc.in_features}; "
                f"choose other features or set region_dim={regions.shape[-1]}"
            )
        return self.fc(regions.to(self.fc.weight.dtype))  # shards hold float16


class WordEmbedding(nn.Module):
    """Word ids (n, N) -> vectors (n, N, out_dim): trained ones, given ones, or both side by side.

    `vectors` (vocab_size, word_dim) come from GloVe or its like, one row per word. How they are used:
    trained   one table, started from the vectors where given, else from U(±0.1)
    given     the vectors, never updated
    both      a trained table from U(±0.1) beside the vectors, never updated
    both-trained   the same, both updated
    """

    USES = ("trained", "given", "both", "both-trained")

    def __init__(
        self, *, vocab_size: int, word_dim: int = 300, vectors: Tensor | None = None, use: str = "trained"
    ) -> None:
        super().__init__()
        if use not in self.USES:
            raise InputError(f"embedding use {use!r}, expected one of {', '.join(self.USES)}")
        if use != "trained" and vectors is None:
            raise InputError(
                f"embedding use {use!r} needs word vectors; run camp-data build-vocab --vectors FILE"
            )
        if vectors is not None and tuple(vectors.shape) != (vocab_size, word_dim):
            raise MismatchError(
                f"word vectors of shape {tuple(vectors.shape)}, the vocabulary and config expect "
                f"({vocab_size}, {word_dim}); rebuild them with camp-data build-vocab --vectors FILE"
            )
        tables = []
        if use != "given" and (use != "trained" or vectors is None):
            table = nn.Embedding(vocab_size, word_dim)
            nn.init.uniform_(table.weight, -0.1, 0.1)
            tables.append(table)
        if vectors is not None:
            frozen = use in ("given", "both")
            table = nn.Embedding(vocab_size, word_dim, _weight=vectors.clone().float())
            tables.append(table.requires_grad_(not frozen))
        self.tables = nn.ModuleList(tables)
        self.vocab_size = vocab_size
        self.out_dim = word_dim * len(tables)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([table(ids) for table in self.tables], dim=-1)


class WordEncoder(nn.Module):
    """Word ids (n, N) and lengths (n,) -> hidden states of a GRU (n, max length, d), Eq. 16–17 of CAMP.

    Sequences are packed, so the backward direction starts at each caption's own last word and never reads
    padding.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        embedding: str = "trained",
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        self.embed = WordEmbedding(vocab_size=vocab_size, word_dim=word_dim, vectors=vectors, use=embedding)
        self.rnn = nn.GRU(self.embed.out_dim, dim, batch_first=True, bidirectional=bidirectional)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        lengths = lengths.cpu()
        if empty := (lengths < 1).nonzero().flatten().tolist():
            raise InputError(
                f"captions without words in rows {empty[:5]} of the batch; expected at least one each"
            )
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)  # (n, max length, d or 2d)
        if not self.rnn.bidirectional:
            return hidden
        forwards, backwards = hidden.chunk(2, dim=-1)
        return (forwards + backwards) / 2  # Eq. 17


def last_state(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Hidden states (n, N, d) -> the one at each sequence's last word (n, d)."""
    last = (lengths.to(hidden.device) - 1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, last).squeeze(1)
