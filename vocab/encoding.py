"""Captions -> token ids as flat arrays, with what was unknown, long or cut counted."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .counting import tokenizer_setup
from .plain_captions import END, HOLE, fill
from .tokenizer import Tokenizer
from .vocabulary import Specials, Vocabulary
from .workers import map_chunks

LONG_CAPTION = 50  # words; what the published models read at most
_CLOSE, _HOLE = -1, -2


@dataclass(frozen=True)
class EncodedCaptions:
    """Ids of some captions, one after another; all counts are of words, without start and end."""

    values: npt.NDArray[np.int32]  # (ids,)
    lengths: npt.NDArray[np.int64]  # (captions,) ids of each, start and end included
    words: int
    unknown: int
    longest: int
    long_captions: int  # of more than LONG_CAPTION words
    empty: int
    truncated: int  # cut to max_words


def join_encoded(parts: Iterable[EncodedCaptions]) -> EncodedCaptions:
    """Captions of several parts, one after another."""
    found = list(parts)
    return EncodedCaptions(
        values=np.concatenate([np.empty(0, np.int32), *(part.values for part in found)]),
        lengths=np.concatenate([np.empty(0, np.int64), *(part.lengths for part in found)]),
        words=sum(part.words for part in found),
        unknown=sum(part.unknown for part in found),
        longest=max((part.longest for part in found), default=0),
        long_captions=sum(part.long_captions for part in found),
        empty=sum(part.empty for part in found),
        truncated=sum(part.truncated for part in found),
    )


class _Index(dict[str, int]):
    """Word -> id, where what is missing is the unknown word."""

    def __init__(self, words: Iterable[str], *, unk: int) -> None:
        super().__init__((word, number) for number, word in enumerate(words))
        self.unk = unk

    def __missing__(self, word: str) -> int:
        return self.unk


@dataclass
class _Encoder:
    tokenizer: Tokenizer
    index: _Index
    marked: _Index  # the same with END and HOLE
    specials: Specials
    max_words: int | None


def encode_captions(
    chunks: Iterable[Sequence[str]],
    *,
    vocabulary: Vocabulary,
    max_words: int | None = None,
    workers: int | None = 1,
) -> Iterator[EncodedCaptions]:
    """Chunks of captions -> their ids, chunk by chunk."""
    setup = functools.partial(
        _make_encoder,
        tokenizer_setup(vocabulary.runnable_tokenizer),
        vocabulary.words,
        vocabulary.specials,
        max_words,
    )
    return map_chunks(_encode_chunk, chunks, setup=setup, workers=workers)


def _make_encoder(
    make_tokenizer: functools.partial[Tokenizer],
    words: Sequence[str],
    specials: Specials,
    max_words: int | None,
) -> _Encoder:
    marked = _Index(words, unk=specials.unk)
    marked[END], marked[HOLE] = _CLOSE, _HOLE
    return _Encoder(
        tokenizer=make_tokenizer(),
        index=_Index(words, unk=specials.unk),
        marked=marked,
        specials=specials,
        max_words=max_words,
    )


def _encode_chunk(encoder: _Encoder, captions: Sequence[str]) -> EncodedCaptions:
    flat = encoder.tokenizer.flat(captions)
    numbers = list(map(encoder.marked.__getitem__, flat.tokens))
    if flat.odd:
        odd = ([encoder.index[token] for token in tokens] for tokens in flat.odd)
        numbers = fill(numbers, hole=_HOLE, replacements=odd)
    ids = np.array(numbers, np.int32)
    closes = np.flatnonzero(ids == _CLOSE)  # (captions,)
    lengths = np.diff(closes, prepend=-1) - 1
    words = ids[ids != _CLOSE]
    unknown = int(np.count_nonzero(words == encoder.specials.unk))
    kept = lengths
    if encoder.max_words is not None:
        kept = np.minimum(lengths, encoder.max_words)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        words = words[np.arange(len(words)) - starts < encoder.max_words]
    values, wrapped = _wrap(words, kept, encoder.specials)
    return EncodedCaptions(
        values=values,
        lengths=wrapped,
        words=int(lengths.sum()),
        unknown=unknown,
        longest=int(lengths.max(initial=0)),
        long_captions=int(np.count_nonzero(lengths > LONG_CAPTION)),
        empty=int(np.count_nonzero(lengths == 0)),
        truncated=int(np.count_nonzero(kept < lengths)),
    )


def _wrap(
    words: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], specials: Specials
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Flat words (W,) and lengths (C,) -> the same with start and end around every caption."""
    before, after = int(specials.start is not None), int(specials.end is not None)
    wrapped = lengths + before + after
    stops = np.cumsum(wrapped)
    starts = stops - wrapped
    values = np.empty(int(wrapped.sum()), np.int32)
    caption = np.repeat(np.arange(len(lengths)), lengths)  # (W,)
    values[np.arange(len(words)) + caption * (before + after) + before] = words
    if specials.start is not None:
        values[starts] = specials.start
    if specials.end is not None:
        values[stops - 1] = specials.end
    return values, wrapped
