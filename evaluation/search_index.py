"""A run and a split -> every image's and caption's vector on disk, made once and mapped ever after.

`RUN/index/<split>-<checkpoint>/` holds the vectors as .npy files and `index.json`, written last, which names
what they were made from: an index of another checkpoint, of other features or of a data set that has grown
since is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CampError
from ..files import atomic_writer, fingerprint, read_sealed, write_sealed
from ..models.encoded import Encoded
from ..models.matcher import Matcher
from ..progress import ProgressFactory, no_progress
from .query import QueryEncoder
from .split_scores import ENCODE_ROWS, SplitRows, encode_images, open_split

INDEX_VERSION = 1
_HEADER = "index.json"
_PARTS = ("image_vectors", "caption_vectors", "image_ids", "caption_ids", "caption_image")

Vectors = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SearchIndex:
    """One vector per image and caption; a pair's score is their dot product."""

    folder: Path
    image_vectors: Vectors  # (I, d), mapped
    caption_vectors: Vectors  # (C, d), mapped
    image_ids: Ints  # (I,)
    caption_ids: Ints  # (C,)
    caption_image: Ints  # (C,) row of each caption's image


def has_global_vectors(model: Matcher, images: Encoded, texts: Encoded) -> bool:
    """Whether a score is the dot product of one vector per image and one per caption, tried on some pairs."""
    width = images.glob.shape[1]
    if not width or texts.glob.shape[1] != width:
        return False
    count = min(len(images), len(texts), 4)
    some_images, some_texts = images.index(slice(0, count)), texts.index(slice(0, count))
    with torch.no_grad():
        scores = model.score_pairs(some_images, some_texts)
        products = (some_images.glob * some_texts.glob).sum(dim=-1)
    return bool(torch.allclose(scores, products, atol=1e-5))


def open_index(
    encoder: QueryEncoder,
    *,
    split: str,
    checkpoint: str = "best",
    progress: ProgressFactory = no_progress,
) -> SearchIndex | None:
    """The index of a split, made where there is none or it is out of date; None without global vectors."""
    folder = encoder.run.folder / "index" / f"{split}-{checkpoint}"
    identity = _identity(encoder, split=split, checkpoint=checkpoint)
    found = _read(folder, identity)
    if found is not None:
        return found
    rows = open_split_of(encoder, split=split)
    first_images = encode_images(encoder.model, rows, slice(0, 4), device=encoder.device)
    with torch.no_grad():
        first_texts = encoder.model.encode_text(*rows.words(slice(0, 4), encoder.device))
    if not has_global_vectors(encoder.model, first_images, first_texts):
        return None
    _write(folder, identity, encoder, rows, progress=progress)
    written = _read(folder, identity)
    assert written is not None, f"{folder} was just written"
    return written


def open_split_of(encoder: QueryEncoder, *, split: str) -> SplitRows:
    """The rows of a split as the run reads them."""
    return open_split(
        encoder.dataset,
        split=split,
        features=encoder.features,
        vocab=encoder.run.vocab_name(encoder.dataset),
        vocabulary=encoder.vocabulary,
        max_words=encoder.run.max_words,
    )


def _identity(encoder: QueryEncoder, *, split: str, checkpoint: str) -> str:
    scored = encoder.run.identity(encoder.dataset, encoder.features, split=split, checkpoint=checkpoint)
    return fingerprint({"version": INDEX_VERSION, "identity": scored})


def _read(folder: Path, identity: str) -> SearchIndex | None:
    """The index in a folder if it is whole and of this identity."""
    try:
        header = read_sealed(folder / _HEADER)
        parts = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _PARTS}
    except (OSError, ValueError, CampError):  # absent or damaged: it is made again
        return None
    return SearchIndex(folder, **parts) if _is_whole(header, parts, identity) else None


def _is_whole(header: Mapping[str, Any], parts: Mapping[str, npt.NDArray[Any]], identity: str) -> bool:
    shapes = {name: list(part.shape) for name, part in parts.items()}
    return header.get("identity") == identity and header.get("shapes") == shapes


def _write(
    folder: Path, identity: str, encoder: QueryEncoder, rows: SplitRows, *, progress: ProgressFactory
) -> None:
    (folder / _HEADER).unlink(missing_ok=True)  # whatever lies here is not whole until the new header is
    for old in folder.glob("*.faiss"):
        old.unlink()
    parts: dict[str, npt.NDArray[Any]] = {
        "image_ids": rows.image_ids,
        "caption_ids": rows.caption_ids,
        "caption_image": rows.caption_image,
    }
    images, captions = len(rows.image_ids), len(rows.caption_ids)
    with progress("indexing", images + captions, "rows") as bar, torch.no_grad():
        vectors = []
        for start in range(0, images, ENCODE_ROWS):
            part = slice(start, min(start + ENCODE_ROWS, images))
            encoded = encode_images(encoder.model, rows, part, device=encoder.device)
            vectors.append(encoded.glob.float().cpu().numpy())
            bar.advance(part.stop - start)
        parts["image_vectors"] = np.concatenate(vectors)
        vectors = []
        for start in range(0, captions, ENCODE_ROWS):
            part = slice(start, min(start + ENCODE_ROWS, captions))
            encoded = encoder.model.encode_text(*rows.words(part, encoder.device))
            vectors.append(encoded.glob.float().cpu().numpy())
            bar.advance(part.stop - start)
        parts["caption_vectors"] = np.concatenate(vectors)
    for name in _PARTS:
        with atomic_writer(folder / f"{name}.npy") as stream:
            np.save(stream, parts[name])
    shapes = {name: list(parts[name].shape) for name in _PARTS}
    write_sealed(folder / _HEADER, {"identity": identity, "shapes": shapes})
