"""Counts to ids and back, and the file in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError, MismatchError, VerificationError
from camp.vocab.counting import TokenCounts
from camp.vocab.summary import summarize_vocabulary
from camp.vocab.tokenizer import Tokenizer
from camp.vocab.vocabulary import (
    SPECIAL_WORDS,
    Specials,
    Vocabulary,
    find_specials,
    save_over,
    vocabulary_from_counts,
)

PLAIN = Tokenizer("plain", version="1")
COUNTS = TokenCounts(Counter({"dog": 5, "a": 9, "cat": 5, "rare": 1, "odd": 3, "<unk>": 7}), captions=4)


def build(min_count: int = 1, max_size: int | None = None) -> Vocabulary:
    return vocabulary_from_counts(
        COUNTS, tokenizer=PLAIN, min_count=min_count, max_size=max_size, source={"kind": "test"}
    )


def test_specials_then_count_then_alphabet() -> None:
    vocabulary = build(min_count=3)
    assert vocabulary.words == ("<pad>", "<start>", "<end>", "<unk>", "a", "cat", "dog", "odd")
    assert vocabulary.counts == (0, 0, 0, 0, 9, 5, 5, 3)
    assert vocabulary.statistics == {
        "captions": 4,
        "tokens": 23,
        "types": 5,
        "types_once": 1,
        "dropped_types": 1,
        "dropped_tokens": 1,
    }


def test_max_size_counts_words_without_specials() -> None:
    assert build(max_size=2).words[4:] == ("a", "cat")


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 6), max_size=12), st.integers(1, 5))
def test_order_is_that_of_a_naive_sort(counter: dict[str, int], min_count: int) -> None:
    counts = TokenCounts(Counter(counter), captions=1)
    vocabulary = vocabulary_from_counts(counts, tokenizer=PLAIN, min_count=min_count, source={})
    expected = [word for word, count in sorted(counter.items()) if count >= min_count]
    expected.sort(key=lambda word: counter[word], reverse=True)  # stable, so alphabetical among equals
    assert list(vocabulary.words[4:]) == expected


def test_encode_and_decode() -> None:
    vocabulary = build(min_count=3)
    assert vocabulary.encode(["a", "dog", "flies"]) == [1, 4, 6, 3, 2]
    assert vocabulary.encode_text("A dog!") == [1, 4, 6, 2]
    assert vocabulary.decode([1, 4, 6, 3, 2, 0, 0]) == ["a", "dog", "<unk>"]
    assert vocabulary.decode([4, 6]) == ["a", "dog"]


@given(st.lists(st.sampled_from(["a", "cat", "dog", "odd", "rare"]), max_size=8))
def test_known_words_survive_the_round_trip(tokens: list[str]) -> None:
    vocabulary = build()
    assert vocabulary.decode(vocabulary.encode(tokens)) == tokens


def test_the_file_gives_everything_back(tmp_path: Path) -> None:
    vocabulary = build(min_count=3)
    vocabulary.save(tmp_path / "v.json")
    loaded = Vocabulary.load(tmp_path / "v.json")
    assert loaded == vocabulary
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.parameters == {"min_count": 3, "max_size": None}
    first = (tmp_path / "v.json").read_bytes()
    loaded.save(tmp_path / "v.json")
    assert (tmp_path / "v.json").read_bytes() == first


def test_the_fingerprint_is_of_what_ids_mean() -> None:
    vocabulary = build()
    same = Vocabulary(words=vocabulary.words, specials=vocabulary.specials, tokenizer=PLAIN)
    assert same.fingerprint == vocabulary.fingerprint
    with_nltk = Vocabulary(words=vocabulary.words, specials=vocabulary.specials, tokenizer=Tokenizer("nltk"))
    other_data = Vocabulary(
        words=vocabulary.words, specials=vocabulary.specials, tokenizer=Tokenizer("nltk", punkt=True)
    )
    assert len({vocabulary.fingerprint, with_nltk.fingerprint, other_data.fingerprint}) == 3


def change(document: dict[str, object], **changes: object) -> dict[str, object]:
    return {**document, **changes}


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda d: change(d, words=["a", "a"]), InputError, "'a' is both word 0 and word 1"),
        (lambda d: change(d, words=["\ud800"]), InputError, "cannot be written as UTF-8"),
        (lambda d: change(d, words=[1]), InputError, "word 0 is 1, expected a string"),
        (lambda d: change(d, words=d["words"][::-1]), VerificationError, "changed by hand"),
        (lambda d: change(d, schema_version=9), MismatchError, "schema version 9, expected 1"),
        (lambda d: {key: d[key] for key in d if key != "specials"}, VerificationError, "incomplete"),
        (lambda d: {"word2idx": {}}, InputError, "SCAN's JSON goes through 'camp-data import-vocab'"),
        (lambda d: [], InputError, "no schema_version found"),
    ],
)
def test_damaged_files(
    tmp_path: Path, edit: Callable[[dict[str, object]], object], error: type[Exception], message: str
) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps(edit(build().to_json())))
    with pytest.raises(error, match=f"v.json: .*{message}"):
        Vocabulary.load(path)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v.json: not found; make it with 'camp-data build-vocab'"):
        Vocabulary.load(tmp_path / "v.json")
    (tmp_path / "v.json").write_text("{")
    with pytest.raises(VerificationError, match="v.json: not JSON"):
        Vocabulary.load(tmp_path / "v.json")


def test_foreign_orders_of_specials() -> None:
    words = ["<PAD>", "<UNK>", "<sos>", "<eos>", "dog"]
    assert find_specials(words, where="x") == Specials(pad=0, unk=1, start=2, end=3)
    assert find_specials(["dog", "<unk>"], where="x") == Specials(unk=1)
    with pytest.raises(InputError, match="x: no word for unknown words found, expected one of <unk>"):
        find_specials(["<pad>", "dog"], where="x")


def test_a_vocabulary_without_start_and_end() -> None:
    vocabulary = Vocabulary(words=("dog", "<unk>"), specials=Specials(unk=1), tokenizer=PLAIN)
    assert vocabulary.encode(["dog", "cat"]) == [0, 1]
    assert vocabulary.decode([0, 1]) == ["dog", "<unk>"]


def test_save_over(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    assert save_over(path, build()) == "new"
    assert save_over(path, build()) == "unchanged"
    assert save_over(path, build(min_count=2)) == "replaced one of 9 words"
    path.write_text("a caption\n")
    with pytest.raises(InputError, match="exists and is not a vocabulary of this release; it is left alone"):
        save_over(path, build())
    assert path.read_text() == "a caption\n"


def test_summary_shows_head_and_tail() -> None:
    facts = summarize_vocabulary(build(min_count=3))
    assert facts["size"] == 8
    assert facts["specials"] == {word: number for number, word in enumerate(SPECIAL_WORDS)}
    assert facts["head"][0] == {"word": "a", "count": 9}
    assert facts["tail"][-1] == {"word": "odd", "count": 3}
    assert facts["covered_by_first"] == {"4": 22 / 23}
    json.dumps(facts)
    assert "head" not in summarize_vocabulary(
        Vocabulary(words=("<unk>",), specials=Specials(unk=0), tokenizer=PLAIN)
    )
