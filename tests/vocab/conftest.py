"""NLTK with and without its sentence splitter's data, and vocabularies made by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nltk
import pytest

from camp.progress import Bar, ProgressFactory
from camp.vocab.tokenizer import Tokenizer
from camp.vocab.vocabulary import SPECIAL_WORDS, Specials, Vocabulary

MakeVocabulary = Callable[..., Vocabulary]


def search_only(folders: list[str]) -> Iterator[None]:
    before = list(nltk.data.path)
    nltk.data.path[:] = folders
    nltk.tokenize._get_punkt_tokenizer.cache_clear()
    yield
    nltk.data.path[:] = before
    nltk.tokenize._get_punkt_tokenizer.cache_clear()


@pytest.fixture
def punkt(shared_data: Path) -> Iterator[None]:
    """NLTK finds punkt_tab."""
    yield from search_only([str(shared_data / "nltk_data")])


@pytest.fixture
def no_punkt(tmp_path: Path) -> Iterator[None]:
    """NLTK finds no data at all."""
    yield from search_only([str(tmp_path)])


@pytest.fixture
def make_vocabulary() -> MakeVocabulary:
    """Words -> a vocabulary of the plain tokenizer with the usual specials in front."""

    def make(words: Sequence[str], *, counts: Sequence[int] | None = None) -> Vocabulary:
        return Vocabulary(
            words=(*SPECIAL_WORDS, *words),
            specials=Specials(pad=0, start=1, end=2, unk=3),
            tokenizer=Tokenizer("plain", version="1"),
            counts=None if counts is None else (0, 0, 0, 0, *counts),
        )

    return make


@pytest.fixture
def recorded_progress() -> tuple[ProgressFactory, list[int]]:
    """A progress factory, and the list of what it was told."""
    advances: list[int] = []

    class Recorder:
        def advance(self, count: int = 1) -> None:
            advances.append(count)

        def note(self, text: str) -> None:
            pass

    @contextlib.contextmanager
    def factory(label: str, total: int | None, unit: str) -> Iterator[Bar]:
        yield Recorder()

    return factory, advances
