"""Captions of a data set or of text files -> how often each token occurs."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..progress import ProgressFactory, no_progress
from .plain_captions import END, HOLE
from .tokenizer import Tokenizer
from .workers import map_chunks

if TYPE_CHECKING:
    import pyarrow as pa  # worker processes import this module and do without it

CHUNK_CAPTIONS = 2048  # small enough that a chunk of odd captions, which NLTK takes, is over in a moment


@dataclass
class TokenCounts:
    """Occurrences of every token, and what they were counted over."""

    counter: Counter[str] = field(default_factory=Counter)
    captions: int = 0

    @property
    def tokens(self) -> int:
        return self.counter.total()


def count_tokens(
    chunks: Iterable[Sequence[str]],
    *,
    tokenizer: Tokenizer,
    total: int | None = None,
    workers: int | None = 1,
    progress: ProgressFactory = no_progress,
) -> TokenCounts:
    """Chunks of captions -> counts; memory holds a few chunks and the distinct tokens."""
    counts = TokenCounts()
    results = map_chunks(_count_chunk, chunks, setup=tokenizer_setup(tokenizer), workers=workers)
    with progress("counting words", total, "captions") as bar:
        for captions, counter in results:
            counts.counter.update(counter)
            counts.captions += captions
            bar.advance(captions)
    return counts


def _count_chunk(tokenizer: Tokenizer, captions: Sequence[str]) -> tuple[int, dict[str, int]]:
    flat = tokenizer.flat(captions)
    counter = Counter(flat.tokens)
    del counter[END], counter[HOLE]
    for tokens in flat.odd:
        counter.update(tokens)
    return len(captions), dict(counter)


def tokenizer_setup(tokenizer: Tokenizer) -> functools.partial[Tokenizer]:
    """A tokenizer -> what makes it work in another process, which must find the same NLTK data."""
    search_path: list[Any] = []
    if tokenizer.name == "nltk":
        import nltk

        search_path = list(nltk.data.path)
    return functools.partial(_tokenizer_with_data, tokenizer, search_path)


def _tokenizer_with_data(tokenizer: Tokenizer, search_path: list[Any]) -> Tokenizer:
    if tokenizer.name == "nltk":
        import nltk

        nltk.data.path[:] = search_path
    return tokenizer


def table_chunks(captions: pa.Table) -> Iterator[list[str]]:
    """A captions table -> its texts, a chunk at a time."""
    for batch in captions.select(["text"]).to_batches(max_chunksize=CHUNK_CAPTIONS):
        yield batch.column(0).to_pylist()


def file_chunks(paths: Iterable[Path]) -> Iterator[list[str]]:
    """Text files with one caption per line -> captions, a chunk at a time."""
    lines = itertools.chain.from_iterable(map(caption_lines, paths))
    while chunk := list(itertools.islice(lines, CHUNK_CAPTIONS)):
        yield chunk


def check_caption_file(path: Path) -> None:
    """Refuse what cannot be a file of captions, before anything is counted."""
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected one caption per line")
    if path.suffix == ".json":
        raise InputError(
            f"{path}: a JSON file, expected a text file with one caption per line; "
            "make a data set of it with 'camp-data import' and give that"
        )


def caption_lines(path: Path) -> Iterator[str]:
    """A UTF-8 text file -> its lines; only a line feed ends one, and the last may lack it."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}: line {number} is not UTF-8 (byte {error.start}: 0x{line[error.start]:02x}); "
                    "convert the file and run again"
                ) from None
            yield text.removeprefix("\ufeff").strip() if number == 1 else text.strip()
