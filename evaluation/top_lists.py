"""Tiles of a score matrix -> the best answers of every query, without the matrix.

A score and its answer's number share one 64-bit key, so that a list is one array, equal scores go to the
earlier answer, and the result does not depend on how the matrix was cut. An answer enters only when it
reaches the query's floor, the last place of its list: after the first tiles few do, and only those are
sorted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

EMPTY = torch.iinfo(torch.int64).min
_LOW = 0xFFFFFFFF


class TopLists:
    """The best `top` answers of each of n queries so far; memory is 16·n·top bytes, whatever comes."""

    def __init__(self, queries: int, *, top: int, device: torch.device | str = "cpu") -> None:
        self.top = top
        # What has entered since the list was last put in order, then the list, its last place first.
        self._keys = torch.full((queries, 2 * top), EMPTY, dtype=torch.int64, device=device)
        self._entered = torch.zeros(queries, dtype=torch.int64, device=device)
        self._floor = torch.full((queries,), float("-inf"), dtype=torch.float32, device=device)
        self._seen = np.zeros(queries, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, queries: slice, answers: Tensor, scores: Tensor) -> None:
        """Scores (q, a) of some queries with some answers, given by number (a,); -inf never enters."""
        start = 0
        while start < len(answers):
            seen = int(self._seen[queries].min())
            # A slab half as wide as all that came before lets about top / 2 answers enter: they fit.
            slab = slice(start, start + (max(self.top, seen // 2) if seen else 2 * self.top))
            self._add(queries, answers[slab], scores[:, slab])
            self._seen[queries] += len(answers[slab])
            start = slab.stop

    def _add(self, queries: slice, answers: Tensor, scores: Tensor) -> None:
        floor = self._floor[queries]
        if bool((floor == float("-inf")).any()):
            self._add_all(queries, answers, scores)
            return
        scores = scores.contiguous()  # of a transposed tile: what follows walks along the queries
        flat = (scores >= floor.unsqueeze(1)).view(-1).nonzero().squeeze(1)
        if not len(flat):
            return
        every = torch.arange(len(floor) + 1, device=flat.device)
        counts = torch.searchsorted(flat, every * len(answers)).diff()
        if int(counts.max()) > self.top:
            self._add_halves(queries, answers, scores)
            return
        if int((self._entered[queries] + counts).max()) > self.top:
            self._keep(queries)
        keys = to_keys(
            scores.view(-1).index_select(0, flat),
            answers.index_select(0, flat - (every[:-1] * len(answers)).repeat_interleave(counts)),
        )
        first = every[:-1] * (2 * self.top) + self._entered[queries] + counts - counts.cumsum(0)
        place = first.repeat_interleave(counts) + torch.arange(len(flat), device=flat.device)
        self._keys[queries].view(-1).index_copy_(0, place, keys)
        self._entered[queries] += counts

    def _add_halves(self, queries: slice, answers: Tensor, scores: Tensor) -> None:
        """More enter than fit: the first half raises the floor for the second."""
        middle = len(answers) // 2
        if middle < self.top:
            self._add_all(queries, answers, scores)
            return
        self._add(queries, answers[:middle], scores[:, :middle])
        self._keep(queries)
        self._add(queries, answers[middle:], scores[:, middle:])

    def _add_all(self, queries: slice, answers: Tensor, scores: Tensor) -> None:
        keys = torch.cat([self._keys[queries], to_keys(scores, answers)], dim=1)
        self._keys[queries] = _best_last(keys, self.top)[:, -2 * self.top :]
        self._settle(queries)

    def _keep(self, queries: slice) -> None:
        """Keep the best of what there is, and raise the floors."""
        own = self._keys[queries]
        best = _best_last(own, self.top)
        if best.data_ptr() != own.data_ptr():
            own.copy_(best)
        self._settle(queries)

    def _settle(self, queries: slice) -> None:
        self._floor[queries] = _scores(self._keys[queries, self.top])
        self._keys[queries, : self.top] = EMPTY
        self._entered[queries] = 0

    def sorted_keys(self) -> Tensor:
        """(n, top), best first; EMPTY behind the end of a short list."""
        return self._keys.topk(self.top, dim=1).values

    def load(self, keys: Tensor, *, seen: int) -> None:
        """Go on from what sorted_keys gave after so many answers."""
        self._keys[:, : self.top] = keys.to(self._keys.device)
        self._keep(slice(0, len(self)))
        self._seen[:] = seen


def _best_last(keys: Tensor, count: int) -> Tensor:
    """Each row with its largest keys behind all others, the smallest of these first; may work in place."""
    if keys.device.type != "cpu":
        return keys.sort(dim=1).values
    keys.numpy().partition(keys.shape[1] - count, axis=1)  # measured: a third of the time of topk
    return keys


def to_keys(scores: Tensor, answers: Tensor) -> Tensor:
    """Scores and the numbers of their answers -> keys that sort by score, then by earlier answer."""
    bits = scores.float().contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats sort backwards as integers
    keys = (ordered.long() << 32) | (_LOW - answers)
    return keys.masked_fill_(scores == float("-inf"), EMPTY)


def _scores(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return scores.masked_fill(keys == EMPTY, float("-inf"))


def from_keys(keys: Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Keys -> the answers' numbers, -1 where there is none, and their scores."""
    answers = (_LOW - (keys & _LOW)).masked_fill(keys == EMPTY, -1)
    return answers.cpu().numpy(), _scores(keys).cpu().numpy()
