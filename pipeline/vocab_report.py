"""A data set -> what its vocabularies, token files and word vectors hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import CampError
from ..manifests.dataset import Dataset
from ..vocab.shelf import vocabulary_names
from ..vocab.summary import summarize_vocabulary
from ..vocab.vocabulary import Vocabulary
from .tokens import TokenMetadata, open_tokens


def describe_vocabularies(dataset: Dataset) -> list[dict[str, Any]]:
    """Every vocabulary of a data set -> its facts, its tokens per split and its vectors.

    What cannot be used is described by its `error`, so that one damaged file hides nothing else.
    """
    return [_describe(dataset, name) for name in vocabulary_names(dataset)]


def _describe(dataset: Dataset, name: str) -> dict[str, Any]:
    path = dataset.vocab_file(name)
    try:
        vocabulary = Vocabulary.load(path)
    except CampError as error:
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        **summarize_vocabulary(vocabulary),
        "splits": {split: _describe_tokens(dataset, split, name) for split in dataset.splits},
        "vectors": [
            _describe_vectors(notes, vocabulary) for notes in sorted(path.parent.glob(f"{name}.*.json"))
        ],
    }


def _describe_tokens(dataset: Dataset, split: str, vocab: str) -> dict[str, Any]:
    try:
        return token_facts(open_tokens(dataset, split, vocab=vocab).metadata)
    except CampError as error:
        return {"error": str(error)}


def token_facts(metadata: TokenMetadata) -> dict[str, Any]:
    """What a token file says -> what people ask: how much is unknown, long or cut."""
    return {
        "captions": metadata.captions,
        "words": metadata.words,
        "unknown": metadata.unknown,
        "unknown_rate": metadata.unknown_rate,
        "longest": metadata.longest,
        "over_50_words": metadata.long_captions,
        "empty": metadata.empty,
        "max_words": metadata.max_words,
        "truncated": metadata.truncated,
    }


def _describe_vectors(notes: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    file = notes.with_suffix(".npy").name
    try:
        document = json.loads(notes.read_bytes())
        current = document["vocab_fingerprint"] == vocabulary.fingerprint
        facts = {"file": file, "dim": document["shape"][1], "source": document["source"]}
        coverage = document["coverage"]
    except (ValueError, KeyError, TypeError, IndexError):
        return {"file": file, "error": f"{notes}: not the notes of a word matrix; build it again"}
    if not current:
        facts["error"] = f"{file}: made for another vocabulary; run build-vocab with --vectors again"
    return {**facts, "coverage": coverage}
