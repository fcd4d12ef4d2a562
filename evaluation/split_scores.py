"""A split's regions and captions, and a model -> the score matrix of every image with every caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError
from ..manifests.dataset import Dataset
from ..models.encoded import Encoded, cat
from ..models.matcher import Matcher
from ..models.tiles import score_matrix
from ..pipeline.caption_tokens import CaptionTokens
from ..pipeline.shard_reader import ShardReader
from ..pipeline.tokens import open_tokens
from ..progress import ProgressFactory, no_progress
from ..vocab.shelf import open_vocabulary
from ..vocab.vocabulary import Vocabulary

Ints = npt.NDArray[np.int64]

ENCODE_ROWS = 128  # images or captions that go through an encoder at once
IMAGE_ROWS = 512  # encoded images held at once; all captions are
CAPTION_ROWS = 1024  # captions of like length that are encoded and scored together


@dataclass(frozen=True)
class SplitRows:
    """The images of a split that have features and captions, in the manifest's order, and their captions."""

    features: ShardReader
    tokens: CaptionTokens
    image_ids: Ints  # (I,)
    caption_ids: Ints  # (C,)
    caption_rows: Ints  # (C,) row of each caption in the token file
    caption_image: Ints  # (C,) row of each caption's image
    missing: int  # images of the split without features

    @cached_property
    def _positions(self) -> Ints:
        return self.features.positions_of(self.image_ids)

    def regions(self, rows: slice, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Some images -> features (n, R, D), mask (n, R), boxes (n, R, 4)."""
        positions = self._positions[rows]
        features = torch.from_numpy(self.features.gather(positions)).to(device).float()
        count = torch.from_numpy(self.features.num_regions[positions].astype(np.int64))
        mask = torch.arange(features.shape[1]) < count.unsqueeze(1)
        boxes = torch.from_numpy(self.features.boxes[positions])
        return features, mask.to(device), boxes.to(device)

    def words(self, rows: slice | Ints, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some captions -> ids (n, N) padded with 0, lengths (n,)."""
        tokens, lengths = self.tokens.pad(self.caption_rows[rows])
        return torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device)

    @property
    def cut_captions(self) -> int:
        """How many captions are longer than the model reads."""
        return int(self.tokens.cut[self.caption_rows].sum())


def open_split(
    dataset: Dataset,
    *,
    split: str,
    features: ShardReader,
    vocab: str | None = None,
    vocabulary: Vocabulary | None = None,
    max_words: int = 50,
    limit: int = 0,
) -> SplitRows:
    """The rows of a split; `limit` takes its first so many images (0: all)."""
    table = dataset.select_images([split])
    ids = table["image_id"].to_numpy()
    tokens = open_tokens(dataset, split, vocab=vocab, vocabulary=vocabulary)
    has_features = np.isin(ids, features.image_ids)
    missing = int((~has_features).sum())
    ids = ids[has_features]
    ids = ids[np.isin(ids, tokens.image_ids)]
    ids = ids[:limit] if limit else ids
    if not len(ids):
        raise InputError(
            f"{dataset.root}: no image of split {split!r} has both features and captions; "
            "run 'camp-data extract' and 'camp-data tokenize', or choose another split"
        )
    row_of = np.full(dataset.images.num_rows, -1, np.int64)
    row_of[ids] = np.arange(len(ids))
    owner = row_of[tokens.image_ids]
    kept = owner >= 0
    order = np.argsort(owner[kept], kind="stable")  # captions stand with their image, whatever was appended
    captions = np.flatnonzero(kept)[order]
    specials = (vocabulary or open_vocabulary(dataset, vocab)[1]).specials
    return SplitRows(
        features=features,
        tokens=CaptionTokens.of(
            tokens.values, tokens.offsets, start=specials.start, end=specials.end, max_words=max_words
        ),
        image_ids=ids,
        caption_ids=tokens.caption_ids[captions],
        caption_rows=captions,
        caption_image=owner[captions],
        missing=missing,
    )


@torch.no_grad()
def encode_captions(
    model: Matcher, rows: SplitRows, part: slice = slice(None), *, device: torch.device
) -> Encoded:
    """Some captions of the split, by default all."""
    start, stop, _ = part.indices(len(rows.caption_ids))
    return cat(
        [
            model.encode_text(*rows.words(slice(start + some.start, start + some.stop), device))
            for some in _parts(stop - start, ENCODE_ROWS)
        ]
    )


@torch.no_grad()
def encode_images(model: Matcher, rows: SplitRows, part: slice, *, device: torch.device) -> Encoded:
    """Some images of the split."""
    start, stop, _ = part.indices(len(rows.image_ids))
    return cat(
        [
            model.encode_image(*rows.regions(slice(start + some.start, start + some.stop), device))
            for some in _parts(stop - start, ENCODE_ROWS)
        ]
    )


@dataclass(frozen=True)
class RowScorer:
    """Some images of a split -> their rows of the score matrix; the captions are encoded once."""

    model: Matcher
    rows: SplitRows
    device: torch.device
    captions: Sequence[tuple[Ints, Encoded]]  # columns and their captions, of like length: little is padded

    @classmethod
    def of(cls, model: Matcher, rows: SplitRows, *, device: torch.device) -> RowScorer:
        order = np.argsort(rows.tokens.lengths[rows.caption_rows], kind="stable")
        chunks = [order[part] for part in _parts(len(order), CAPTION_ROWS)]
        with torch.no_grad():
            encoded = [(chunk, model.encode_text(*rows.words(chunk, device))) for chunk in chunks]
        return cls(model, rows, device, encoded)

    def score(self, part: slice) -> npt.NDArray[np.float32]:
        """-> (images of the part, C)."""
        images = encode_images(self.model, self.rows, part, device=self.device)
        scores = np.empty((len(images), len(self.rows.caption_ids)), np.float32)
        for columns, texts in self.captions:
            scores[:, columns] = score_matrix(self.model, images, texts).float().cpu().numpy()
        return scores


def score_split(
    model: Matcher, rows: SplitRows, *, device: torch.device, progress: ProgressFactory = no_progress
) -> npt.NDArray[np.float32]:
    """Every image with every caption -> (I, C); memory holds the captions and a block of images."""
    scorer = RowScorer.of(model, rows, device=device)
    scores = np.empty((len(rows.image_ids), len(rows.caption_ids)), np.float32)
    with progress("scoring", len(rows.image_ids), "images") as bar:
        for part in _parts(len(rows.image_ids), IMAGE_ROWS):
            scores[part] = scorer.score(part)
            bar.advance(part.stop - part.start)
    return scores


def _parts(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
