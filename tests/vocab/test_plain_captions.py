"""The fast path against NLTK itself: all short strings, generated captions, real ones."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nltk.tokenize import word_tokenize

from camp.vocab.plain_captions import END, HOLE, fill, is_plain, sift, split_plain
from camp.vocab.tokenizer import Tokenizer, open_tokenizer

WITH_DATA = Tokenizer("nltk", punkt=True)
DATA_FREE = Tokenizer("nltk", punkt=False)

FRAGMENTS = (
    "a man's dogs' cannot gonna gimme lemme wanna gotta d'ye more'n 'tis 'twas don't they're i'll it's u.s. "
    "mr. st. e.g. 3.5 1,000 10:14 12,a t-shirt -- --- a--b ... .. . , ,, ,. : ; ! ? !? \" '' ' `` ` ( ) [ ] "
    "{ } < > ('s) \"'s 's s' & # $5 50% @home * / a/b - – — “ ” ‘ ’ « » „ … it’s café İstanbul ΣΑΣ ß ﬁ 日本 "
    "\u00a0 \u2028 \x1c \x85 \x00 \x01 _ _'s +1 = ~ ^ \\ | \n \t \r\n 's, 's. wannabe cannot-do"
)
WORDS = st.sampled_from(FRAGMENTS.split(" "))
GLUE = st.sampled_from(["", " ", " ", " ", "  ", "\n", ", ", ". ", '"'])
CAPTIONS = st.lists(st.tuples(WORDS, GLUE), max_size=8).map(lambda parts: "".join(map("".join, parts)))
MORE = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def all_strings(letters: str, longest: int) -> list[str]:
    return [
        "".join(parts) for length in range(longest + 1) for parts in itertools.product(letters, repeat=length)
    ]


def test_every_short_string(punkt: None) -> None:
    plain = [text for text in all_strings("as1 -,.'\":!", 3) if is_plain(text)]
    assert len(plain) > 500
    for text in plain:
        tokens = split_plain([text])[:-1]
        assert tokens == word_tokenize(text), text
        assert tokens == word_tokenize(text, preserve_line=True), text


@MORE
@given(caption=CAPTIONS | st.text(max_size=40))
def test_generated_captions(punkt: None, caption: str) -> None:
    expected = word_tokenize(caption.lower())
    assert WITH_DATA.tokenize(caption) == expected
    assert list(WITH_DATA.tokenize_many([caption, "", caption])) == [expected, [], expected]


@MORE
@given(caption=CAPTIONS | st.text(max_size=40))
def test_generated_captions_without_data(no_punkt: None, caption: str) -> None:
    assert DATA_FREE.tokenize(caption) == word_tokenize(caption.lower(), preserve_line=True)


@MORE
@given(text=st.text(alphabet=sorted("as1x -,.'\":;!?&/\n"), max_size=30))
def test_plain_texts(punkt: None, text: str) -> None:
    if is_plain(text):
        assert split_plain([text])[:-1] == word_tokenize(text)


@pytest.mark.slow
def test_real_captions(punkt: None, shared_data: Path) -> None:
    captions = [
        annotation["caption"]
        for file in (
            "coco-captions/captions_val2017.json",
            "coco-mini/annotations/captions_train2017.json",
            "coco-mini/annotations/captions_val2017.json",
        )
        for annotation in json.loads((shared_data / file).read_bytes())["annotations"]
    ]
    for part in ("dev", "test"):
        path = shared_data / "scan-captions" / "f30k_precomp" / f"{part}_caps.txt"
        captions += path.read_text(encoding="utf-8").splitlines()
    assert len(captions) > 35_000
    tokenizer = open_tokenizer("nltk")
    different = [
        caption
        for caption, tokens in zip(captions, tokenizer.tokenize_many(captions), strict=True)
        if tokens != word_tokenize(caption.lower())
    ]
    assert different == []
    _, holes = sift([caption.lower() for caption in captions])
    assert len(holes) < 0.01 * len(captions)  # the point of it: nearly all captions are plain


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("", []),
        (" . ", ["."]),
        ("two dogs, a t-shirt.\n", ["two", "dogs", ",", "a", "t-shirt", "."]),
        ("a man's hat", ["a", "man", "'s", "hat"]),
        ('a "stop" sign!', ["a", "``", "stop", "''", "sign", "!"]),
        ("r&b", ["r", "&", "b"]),
    ],
)
def test_plain_examples(caption: str, tokens: list[str]) -> None:
    assert is_plain(caption)
    assert split_plain([caption]) == [*tokens, END]


@pytest.mark.parametrize(
    "caption",
    [
        "a. b",
        "a.. ",
        "1,000",
        "a--b",
        "i cannot",
        "don't",
        "a ,, b",
        '""',
        "(a)",
        "café",
        "a\nb",
        "A",
        "\x01",
    ],
)
def test_not_plain(caption: str) -> None:
    assert not is_plain(caption)


def test_holes_are_found_and_filled() -> None:
    captions = ["a dog.", "he cannot run", "(b)", "a cat"]
    sifted, holes = sift(captions)
    assert sifted == ["a dog.", HOLE, HOLE, "a cat"]
    assert holes == [1, 2]
    tokens = fill(split_plain(sifted), hole=HOLE, replacements=[["x", "y"], []])
    assert tokens == ["a", "dog", ".", END, "x", "y", END, END, "a", "cat", END]


def test_long_runs_take_linear_time() -> None:
    for unit in (" ", "a ", "- ", ", "):
        assert not is_plain(unit * 100_000 + "~")  # a quadratic pattern would not return


def test_the_marks_cannot_occur_in_plain_captions() -> None:
    assert not is_plain(END)
    assert not is_plain(HOLE)
    assert not re.search(r"\s", END + HOLE)
    assert END.split() == [END]
    assert HOLE.split() == [HOLE]
