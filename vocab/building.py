"""A data set's captions, or bare caption files -> a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError
from ..files import checksum_file
from ..manifests.dataset import Dataset
from ..progress import ProgressFactory, no_progress
from .counting import TokenCounts, check_caption_file, count_tokens, file_chunks, table_chunks
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary, vocabulary_from_counts

DEFAULT_MIN_COUNT = 4


def default_splits(dataset: Dataset) -> list[str]:
    """Train and val where they exist, or the one split of a folder; never test."""
    chosen: list[str] = [split for split in ("train", "val") if split in dataset.splits]
    if not chosen and "all" in dataset.splits:
        chosen = ["all"]
    if not chosen:
        raise InputError(
            f"{dataset.root}: no train or val split to count words in, only {', '.join(dataset.splits)}; "
            "name the splits with --splits"
        )
    return chosen


def build_vocabulary(
    dataset: Dataset,
    *,
    tokenizer: Tokenizer,
    splits: Sequence[str] | None = None,
    min_count: int = DEFAULT_MIN_COUNT,
    max_size: int | None = None,
    workers: int | None = 1,
    progress: ProgressFactory = no_progress,
    count: Callable[[Sequence[str]], TokenCounts] | None = None,
) -> Vocabulary:
    """The captions of some splits (default: train and val) -> a vocabulary.

    `count` counts the words of some splits, by default on this machine's cores.
    """
    splits = default_splits(dataset) if splits is None else list(splits)
    dataset.check_splits(splits)
    captions = sum(dataset.counts[split]["captions"] for split in splits)
    if captions == 0:
        raise InputError(f"{dataset.root}: no captions in {', '.join(splits)}; a vocabulary needs some")
    if count is None:
        chunks = table_chunks(dataset.select_captions(splits))
        counts = count_tokens(chunks, tokenizer=tokenizer, total=captions, workers=workers, progress=progress)
    else:
        counts = count(splits)
    return vocabulary_from_counts(
        counts,
        tokenizer=tokenizer,
        min_count=min_count,
        max_size=max_size,
        source={
            "kind": "dataset",
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "splits": list(splits),
        },
    )


def build_vocabulary_from_files(
    paths: Sequence[Path],
    *,
    tokenizer: Tokenizer,
    min_count: int = DEFAULT_MIN_COUNT,
    max_size: int | None = None,
    workers: int | None = 1,
    progress: ProgressFactory = no_progress,
) -> Vocabulary:
    """Text files with one caption per line -> a vocabulary."""
    for path in paths:
        check_caption_file(path)
    counts = count_tokens(file_chunks(paths), tokenizer=tokenizer, workers=workers, progress=progress)
    if not counts.captions:
        raise InputError(f"{paths[0]}: empty, expected one caption per line")
    return vocabulary_from_counts(
        counts,
        tokenizer=tokenizer,
        min_count=min_count,
        max_size=max_size,
        source={
            "kind": "files",
            "files": [{"name": path.name, "checksum": checksum_file(path)} for path in paths],
        },
    )
