"""A text or an image -> the best images or captions of a split, cheaply or re-scored by a second run."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..errors import MismatchError
from ..models.encoded import Encoded
from ..models.tiles import score_matrix
from ..progress import ProgressFactory, no_progress
from ..schema import Regions
from .nearest import Nearest, best_rows, open_nearest
from .query import QueryEncoder
from .search_index import open_index, open_split_of
from .split_scores import IMAGE_ROWS, encode_captions, encode_images

RERANKED = 100  # candidates that the second run scores again

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hit:
    """One answer. `text` and `caption_id` are None where images are searched."""

    rank: int
    score: float  # a probability where the model that scored last gives one
    image_id: int
    key: str
    file: str
    caption_id: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Answer:
    """The best hits, how many there were to choose from, and the seconds it took."""

    hits: list[Hit]
    searched: int
    rescored: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "searched": self.searched,
            "rescored": self.rescored,
            "seconds": round(self.seconds, 4),
            "hits": [
                {name: value for name, value in asdict(hit).items() if value is not None} for hit in self.hits
            ],
        }


class Search:
    """An opened split. `rerank` re-scores the first hundred of every query."""

    def __init__(
        self,
        encoder: QueryEncoder,
        *,
        split: str = "test",
        checkpoint: str = "best",
        rerank: QueryEncoder | None = None,
        faiss: bool | None = None,
        progress: ProgressFactory = no_progress,
    ) -> None:
        if rerank is not None and rerank.dataset.fingerprint != encoder.dataset.fingerprint:
            raise MismatchError(
                f"{rerank.run.folder}: reads {rerank.dataset.root}, but {encoder.run.folder} reads "
                f"{encoder.dataset.root}; expected runs of one data set"
            )
        self.encoder, self.rerank, self.split = encoder, rerank, split
        self.index = open_index(encoder, split=split, checkpoint=checkpoint, progress=progress)
        self._progress, self._faiss = progress, faiss
        rows = None if self.index else open_split_of(encoder, split=split)
        self._rows = rows
        source = self.index or rows
        assert source is not None
        self.image_ids: Ints = source.image_ids
        self.caption_ids: Ints = source.caption_ids

    @property
    def indexed(self) -> bool:
        """False for a model without global vectors: every query is scored against everything."""
        return self.index is not None

    def images(self, text: str, *, top: int = 10) -> Answer:
        """A text -> the images it fits best."""
        nearest = self._nearest_images if self.index else None  # FAISS may have to make its index first
        start = time.perf_counter()
        query = self.encoder.texts([text])
        count = max(top, RERANKED) if self.rerank else top
        if nearest:
            rows, scores = nearest(_vector(query), count)
        else:
            rows, scores = _best(self._all_images(query), count)
        if self.rerank:
            rows, scores = _reordered(rows, self._rescore_images(rows, text), top)
        final = _shown(scores, logits=(self.rerank or self.encoder).model.scores_are_logits)
        hits = [
            Hit(rank, float(score), **image)
            for rank, (score, image) in enumerate(
                zip(final, self._describe(self.image_ids[rows]), strict=True), start=1
            )
        ]
        return self._answer(hits, len(self.image_ids), count, start)

    def captions(self, regions: Regions, *, top: int = 10) -> Answer:
        """An image's regions -> the captions that fit it best."""
        nearest = self._nearest_captions if self.index else None
        start = time.perf_counter()
        query = self.encoder.regions([regions])
        count = max(top, RERANKED) if self.rerank else top
        if nearest:
            rows, scores = nearest(_vector(query), count)
        else:
            rows, scores = _best(self._all_captions(query), count)
        if self.rerank:
            rows, scores = _reordered(rows, self._rescore_captions(rows, regions), top)
        final = _shown(scores, logits=(self.rerank or self.encoder).model.scores_are_logits)
        texts, owners = self._caption_texts(self.caption_ids[rows])
        hits = [
            Hit(rank, float(score), caption_id=int(self.caption_ids[row]), text=text, **image)
            for rank, (row, score, text, image) in enumerate(
                zip(rows, final, texts, self._describe(owners), strict=True), start=1
            )
        ]
        return self._answer(hits, len(self.caption_ids), count, start)

    def _answer(self, hits: list[Hit], searched: int, count: int, start: float) -> Answer:
        rescored = min(count, searched) if self.rerank else 0
        return Answer(hits, searched, rescored, time.perf_counter() - start)

    @cached_property
    def _nearest_images(self) -> Nearest:
        return self._nearest("image_vectors")

    @cached_property
    def _nearest_captions(self) -> Nearest:
        return self._nearest("caption_vectors")

    def _nearest(self, name: str) -> Nearest:
        assert self.index is not None
        return open_nearest(
            getattr(self.index, name),
            self.index.folder / f"{name}.faiss",
            faiss=self._faiss,
            progress=self._progress,
        )

    def _all_images(self, query: Encoded) -> Array:
        assert self._rows is not None
        encoder, count = self.encoder, len(self.image_ids)
        scores = np.empty(count, np.float32)
        with self._progress("scoring", count, "images") as bar:
            for start in range(0, count, IMAGE_ROWS):
                part = slice(start, min(start + IMAGE_ROWS, count))
                images = encode_images(encoder.model, self._rows, part, device=encoder.device)
                scores[part] = score_matrix(encoder.model, images, query)[:, 0].cpu().numpy()
                bar.advance(part.stop - start)
        return scores

    def _all_captions(self, query: Encoded) -> Array:
        assert self._rows is not None
        captions = encode_captions(self.encoder.model, self._rows, device=self.encoder.device)
        scores: Array = score_matrix(self.encoder.model, query, captions)[0].cpu().numpy()
        return scores

    def _rescore_images(self, rows: Ints, text: str) -> Array:
        assert self.rerank is not None
        images = self.rerank.image_ids(self.image_ids[rows].tolist())
        scores: Array = score_matrix(self.rerank.model, images, self.rerank.texts([text]))[:, 0].cpu().numpy()
        return scores

    def _rescore_captions(self, rows: Ints, regions: Regions) -> Array:
        assert self.rerank is not None
        texts, _ = self._caption_texts(self.caption_ids[rows])
        encoded = self.rerank.texts(texts)
        scores: Array = (
            score_matrix(self.rerank.model, self.rerank.regions([regions]), encoded)[0].cpu().numpy()
        )
        return scores

    def _describe(self, image_ids: npt.ArrayLike) -> list[dict[str, Any]]:
        table = _rows_of(self.encoder.dataset.images, "image_id", image_ids)
        columns = [table[name].to_pylist() for name in ("image_id", "key", "file")]
        return [
            {"image_id": number, "key": key, "file": file or ""}
            for number, key, file in zip(*columns, strict=True)
        ]

    def _caption_texts(self, caption_ids: npt.ArrayLike) -> tuple[list[str], list[int]]:
        table = _rows_of(self.encoder.dataset.captions, "caption_id", caption_ids)
        return table["text"].to_pylist(), table["image_id"].to_pylist()


def _vector(query: Encoded) -> Array:
    found: Array = query.glob[0].float().cpu().numpy()
    return found


def _best(scores: Array, count: int) -> tuple[Ints, Array]:
    rows = best_rows(scores, count)
    return rows, scores[rows]


def _reordered(rows: Ints, again: Array, top: int) -> tuple[Ints, Array]:
    """Candidates and their new scores -> the best, best first."""
    order = np.argsort(-again, kind="stable")[:top]
    return rows[order], again[order]


def score_texts(encoder: QueryEncoder, regions: Regions, texts: list[str]) -> list[float]:
    """An image's regions and some texts -> one score each, a probability where the model gives one."""
    images, encoded = encoder.regions([regions]), encoder.texts(texts)
    scores: Array = score_matrix(encoder.model, images, encoded)[0].cpu().numpy()
    return [float(score) for score in _shown(scores, logits=encoder.model.scores_are_logits)]


def _rows_of(table: pa.Table, column: str, ids: npt.ArrayLike) -> pa.Table:
    """The rows with these ids, in their order."""
    return table.take(pc.index_in(pa.array(np.asarray(ids, np.int64)), table[column].combine_chunks()))


def _shown(scores: Array, *, logits: bool) -> Array:
    return torch.from_numpy(np.array(scores)).sigmoid().numpy() if logits else scores
