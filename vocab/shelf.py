"""A data set -> its vocabularies by name."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import InputError
from ..manifests.dataset import Dataset
from .vocabulary import Vocabulary

DEFAULT_NAME = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_name(name: str) -> str:
    """Refuse a name that cannot be a file's; dots part a vocabulary from its vectors."""
    if not _NAME.fullmatch(name):
        raise InputError(f"vocabulary name {name!r}: expected letters, digits, '-' and '_' alone")
    return name


def name_from_file(path: Path) -> str:
    """A foreign file -> the name its import gets: f30k_precomp_vocab.json -> f30k_precomp_vocab."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.name.split(".")[0]).lstrip("-_") or DEFAULT_NAME


def vocabulary_names(dataset: Dataset) -> list[str]:
    """The data set's vocabularies, in alphabetical order."""
    found = (dataset.root / "vocab").glob("*.json")
    return sorted(path.stem for path in found if _NAME.fullmatch(path.stem))


def choose_name(dataset: Dataset, name: str | None = None) -> str:
    """The named vocabulary, else the only one, else the one called 'default'."""
    names = vocabulary_names(dataset)
    if name is not None:
        if check_name(name) not in names:
            there = f"there are {', '.join(names)}" if names else "there is none yet"
            raise InputError(
                f"{dataset.root}: no vocabulary {name!r}, {there}; make it with 'camp-data build-vocab'"
            )
        return name
    if not names:
        raise InputError(
            f"{dataset.root}: no vocabulary yet; make one with 'camp-data build-vocab {dataset.root}'"
        )
    if len(names) > 1 and DEFAULT_NAME not in names:
        raise InputError(
            f"{dataset.root}: several vocabularies ({', '.join(names)}); choose one with --vocab"
        )
    return names[0] if len(names) == 1 else DEFAULT_NAME


def open_vocabulary(dataset: Dataset, name: str | None = None) -> tuple[str, Vocabulary]:
    """A data set and perhaps a name -> the vocabulary's name and the vocabulary."""
    chosen = choose_name(dataset, name)
    return chosen, Vocabulary.load(dataset.vocab_file(chosen))
