"""Flat ids against encoding one caption after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from camp.vocab.encoding import LONG_CAPTION, encode_captions
from camp.vocab.tokenizer import Tokenizer
from camp.vocab.vocabulary import SPECIAL_WORDS, Specials, Vocabulary

WORDS = ("a", "dog", "'s", ".", "can", "not", "\x01", "\x00")
USUAL = Vocabulary(
    words=(*SPECIAL_WORDS, *WORDS),
    specials=Specials(pad=0, start=1, end=2, unk=3),
    tokenizer=Tokenizer("nltk"),
)
BARE = Vocabulary(words=(*WORDS, "<unk>"), specials=Specials(unk=8), tokenizer=Tokenizer("nltk"))
CAPTIONS = st.lists(
    st.lists(st.sampled_from(["a", "dog's", "cannot", "flies", ".", "\x01", "\x00", "("]), max_size=6).map(
        " ".join
    ),
    max_size=6,
)


@given(captions=CAPTIONS, vocabulary=st.sampled_from([USUAL, BARE]), max_words=st.none() | st.integers(1, 4))
def test_ids_are_those_of_one_caption_after_another(
    captions: list[str], vocabulary: Vocabulary, max_words: int | None
) -> None:
    tokens = [vocabulary.tokenizer.tokenize(caption) for caption in captions]
    expected = [vocabulary.encode(words[:max_words]) for words in tokens]
    [encoded] = encode_captions([captions], vocabulary=vocabulary, max_words=max_words)
    split = np.split(encoded.values, np.cumsum(encoded.lengths)[:-1]) if captions else []
    assert [ids.tolist() for ids in split] == expected
    assert encoded.values.dtype == np.int32
    assert encoded.words == sum(map(len, tokens))
    assert encoded.unknown == sum(word not in WORDS for words in tokens for word in words)
    assert encoded.truncated == sum(len(words) > (max_words or 99) for words in tokens)
    assert encoded.empty == sum(not words for words in tokens)
    assert encoded.longest == max(map(len, tokens), default=0)


def test_long_captions_are_counted() -> None:
    captions = [" ".join(["a"] * length) for length in (LONG_CAPTION, LONG_CAPTION + 1, 80)]
    [encoded] = encode_captions([captions], vocabulary=USUAL)
    assert (encoded.long_captions, encoded.longest, encoded.truncated) == (2, 80, 0)


def test_two_processes_encode_the_same() -> None:
    chunks = [["a dog's .", "it cannot"], ["flies"], [""]]
    alone = list(encode_captions(chunks, vocabulary=USUAL))
    together = list(encode_captions(chunks, vocabulary=USUAL, workers=2))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.lengths, other.lengths)
