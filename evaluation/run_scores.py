"""Runs and a split -> score matrices, ensembles, and reranking with what it costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import MismatchError
from ..manifests.dataset import Dataset
from ..models.encoded import Encoded
from ..models.matcher import Matcher
from ..models.scratch import scratch
from ..models.tiles import CPU_TILE_BYTES, GPU_TILE_BYTES, score_matrix, tile_pairs
from ..progress import ProgressFactory, no_progress
from .eval_ranks import EvalRanks
from .recall import summarize
from .rerank import ScorePairs, mean_scores, parse_top, rerank
from .run_folder import Run
from .score_store import is_long, open_store
from .split_scores import RowScorer, SplitRows, encode_captions, encode_images, open_split, score_split

Ints = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]
QUERIES_TIMED = 20


@dataclass(frozen=True)
class RunScores:
    """A run's model over a split."""

    model: Matcher
    rows: SplitRows
    device: torch.device
    folder: Path  # where a long matrix is kept as it grows
    name: str  # of the split and checkpoint
    identity: str  # of all that the scores depend on

    def matrix(
        self,
        *,
        keep: bool | None = None,
        dtype: str = "float32",
        ranks: EvalRanks = EvalRanks(),  # noqa: B008 - frozen
        progress: ProgressFactory = no_progress,
    ) -> Matrix:
        """Every image with every caption -> (I, C).

        A matrix that takes long, or `keep`, is kept in blocks as it grows: the next call goes on where this
        one was killed. With several ranks each computes a part of the blocks, and all return the whole.
        """
        shape = (len(self.rows.image_ids), len(self.rows.caption_ids))
        words = float(self.rows.tokens.lengths[self.rows.caption_rows].mean())
        floats = self.model.pair_floats(self.rows.features.spec.regions, int(words))
        if ranks.world_size == 1 and not (is_long(shape, pair_floats=floats) if keep is None else keep):
            scores = score_split(self.model, self.rows, device=self.device, progress=progress)
            return scores.astype(dtype, copy=False)
        store = open_store(
            self.folder, self.name, identity=self.identity, shape=shape, pair_floats=floats, dtype=dtype
        )
        missing = store.missing(rank=ranks.rank, world_size=ranks.world_size)
        with progress("scoring", sum(rows.stop - rows.start for _, rows in missing), "images") as bar:
            scorer = RowScorer.of(self.model, self.rows, device=self.device) if missing else None
            for path, rows in missing:
                assert scorer is not None
                store.write(path, scorer.score(rows))
                bar.advance(rows.stop - rows.start)
        ranks.wait()
        return store.read()


def open_run_scores(
    run: Run,
    *,
    split: str = "test",
    dataset: Path | None = None,
    checkpoint: str = "best",
    device: torch.device,
    limit: int = 0,
) -> RunScores:
    """A run -> its model and the split it is measured on."""
    opened: Dataset = run.dataset(dataset)
    features = run.features(opened)
    rows = open_split(
        opened,
        split=split,
        features=features,
        vocab=run.vocab_name(opened),
        vocabulary=run.vocabulary(),
        max_words=run.max_words,
        limit=limit,
    )
    model = run.load_model(checkpoint=checkpoint, device=device)
    return run_scores(run, model, rows, dataset=opened, split=split, checkpoint=checkpoint, device=device)


def run_scores(
    run: Run,
    model: Matcher,
    rows: SplitRows,
    *,
    dataset: Dataset,
    split: str,
    checkpoint: str,
    device: torch.device,
) -> RunScores:
    """What is open already -> the same."""
    identity = run.identity(dataset, rows.features, split=split, checkpoint=checkpoint)
    return RunScores(model, rows, device, run.folder / "scores", f"{split}-{checkpoint}", identity)


def ensemble_scores(members: Sequence[RunScores], **options: Any) -> Matrix:
    """The mean matrix of several runs over the same images and captions; options are those of `matrix`."""
    check_same_rows(members)
    if len(members) == 1:
        return members[0].matrix(**options)
    return mean_scores(member.matrix(**options) for member in members)


def check_same_rows(members: Sequence[RunScores]) -> None:
    """Refuse runs that would score other images or captions."""
    first = members[0].rows
    for other in members[1:]:
        same_images = np.array_equal(first.image_ids, other.rows.image_ids)
        if not (same_images and np.array_equal(first.caption_ids, other.rows.caption_ids)):
            raise MismatchError(
                f"found {len(other.rows.image_ids)} images and {len(other.rows.caption_ids)} captions, "
                f"expected the same {len(first.image_ids)} and {len(first.caption_ids)}; "
                "do both runs have all features?"
            )


def rerank_runs(cheap: RunScores, dear: RunScores, *, tops: Sequence[str]) -> list[dict[str, Any]]:
    """A cheap run orders, a dear one re-scores the top: recall and time, for several shares.

    Times are of scoring from encoded images and captions: the whole test, and one caption against all images.
    """
    check_same_rows([cheap, dear])
    images, captions = len(dear.rows.image_ids), len(dear.rows.caption_ids)
    owner = dear.rows.caption_image
    cheap_images, cheap_texts = _encode(cheap)
    dear_images, dear_texts = _encode(dear)
    matrix, cheap_seconds = _timed(lambda: score_matrix(cheap.model, cheap_images, cheap_texts).cpu().numpy())
    scorer = pair_scorer(dear.model, dear_images, dear_texts)
    results = []
    for top in tops:
        k_captions, k_images = parse_top(top, captions), parse_top(top, images)
        again, seconds = _timed(
            lambda c=k_captions, i=k_images: rerank(matrix, owner, scorer, captions=c, images=i)
        )
        one_query = _one_query_seconds(cheap.model, cheap_images, cheap_texts, scorer, top=k_images)
        results.append(
            {
                "top": top,
                "pairs": again.pairs,
                "pairs_share": again.pairs / (images * captions),
                "seconds": cheap_seconds + seconds,
                "query_seconds": one_query,
                **summarize(again.ranks),
            }
        )
    return results


def pair_scorer(model: Matcher, images: Encoded, texts: Encoded) -> ScorePairs:
    """Encodings -> a function that scores pairs, captions of like length together."""
    lengths = texts.lengths.cpu().numpy()
    device = images.mask.device
    gather_bytes = CPU_TILE_BYTES if device.type == "cpu" else GPU_TILE_BYTES
    image_bytes = 1 + sum(tensor[:1].numel() * tensor.element_size() for tensor in images.floats())

    @torch.no_grad()
    def score(rows: Ints, columns: Ints) -> npt.NDArray[np.float32]:
        scores = np.empty(len(rows), np.float32)
        order = np.argsort(lengths[columns], kind="stable")
        ordered = lengths[columns[order]]
        start = 0
        while start < len(order):
            length = int(ordered[start])
            size = min(
                tile_pairs(model, images, length),
                max(1, gather_bytes // image_bytes),
            )
            # Only one length in a chunk: nothing is padded.
            same = int(np.searchsorted(ordered, length, side="right"))
            some = order[start : min(start + size, same)]
            pair_images = gathered("images", images, torch.from_numpy(rows[some]).to(device))
            pair_texts = gathered("texts", texts, torch.from_numpy(columns[some]).to(device)).trim(length)
            scores[some] = model.score_pairs(pair_images, pair_texts).float().cpu().numpy()
            start += len(some)
        return scores

    return score


def gathered(name: str, encoded: Encoded, rows: Tensor) -> Encoded:
    """Some rows in scratch memory, valid until the next call of that name."""
    numbers = count()
    return encoded.map(
        lambda tensor: torch.index_select(
            tensor,
            0,
            rows,
            out=scratch(f"{name} {next(numbers)}", (len(rows), *tensor.shape[1:]), like=tensor),
        )
    )


def _one_query_seconds(
    cheap_model: Matcher,
    cheap_images: Encoded,
    cheap_texts: Encoded,
    scorer: ScorePairs,
    *,
    top: int,
) -> float:
    """Median seconds for one caption: rank all images cheaply, re-score the top."""
    seconds = []
    for query in np.linspace(0, len(cheap_texts) - 1, QUERIES_TIMED).astype(np.int64):
        start = time.perf_counter()
        one = cheap_texts.index(slice(int(query), int(query) + 1)).trim()
        with torch.no_grad():
            column = cheap_model.score_block(cheap_images, one).flatten()
        best = column.topk(min(top, len(column))).indices.cpu().numpy()
        scorer(best, np.full(len(best), query))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _encode(scores: RunScores) -> tuple[Encoded, Encoded]:
    images = encode_images(scores.model, scores.rows, slice(None), device=scores.device)
    return images, encode_captions(scores.model, scores.rows, device=scores.device)


def _timed(function: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start
