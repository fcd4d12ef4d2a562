"""Tokenizers by name and by record, with and without NLTK's data."""

from __future__ import annotations

import nltk
import pytest

from camp.errors import CampError, InputError, MismatchError
from camp.vocab.tokenizer import (
    Tokenizer,
    download_punkt,
    open_tokenizer,
    recorded_tokenizer,
    require_runnable,
)

TWO_SENTENCES = "A sign on the street. The U.S. flag is up."


def test_nltk_with_data_splits_sentences(punkt: None) -> None:
    tokenizer = open_tokenizer("nltk")
    assert tokenizer.punkt
    assert " ".join(tokenizer.tokenize(TWO_SENTENCES)) == "a sign on the street . the u.s. flag is up ."
    assert tokenizer.record() == {
        "name": "nltk",
        "lowercase": True,
        "punkt": "present",
        "version": nltk.__version__,
    }


def test_nltk_without_data_works_and_records_it(no_punkt: None) -> None:
    tokenizer = open_tokenizer("nltk")
    assert not tokenizer.punkt
    assert " ".join(tokenizer.tokenize(TWO_SENTENCES)) == "a sign on the street. the u.s. flag is up ."
    assert tokenizer.record()["punkt"] == "absent"


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A man's T-shirt, isn't it?", ["a", "man's", "t-shirt", "isn't", "it"]),
        ("about 3.5 or 1,000 dogs...", ["about", "3.5", "or", "1,000", "dogs"]),
        ("café -- 'quoted' _x_ (y)", ["café", "quoted", "x", "y"]),
        ("it’s", ["it’s"]),
        ("", []),
    ],
)
def test_plain_pattern(caption: str, tokens: list[str]) -> None:
    tokenizer = open_tokenizer("plain")
    assert tokenizer.tokenize(caption) == tokens
    assert list(tokenizer.tokenize_many([caption, "b"])) == [tokens, ["b"]]


def test_control_characters_are_tokens_like_any_other(no_punkt: None) -> None:
    captions = ["a \x01 b \x00", "\x00", "\x01", "a b"]
    tokens = [["a", "\x01", "b", "\x00"], ["\x00"], ["\x01"], ["a", "b"]]
    assert list(Tokenizer("nltk").tokenize_many(captions)) == tokens


def test_unknown_name() -> None:
    with pytest.raises(InputError, match=r"'bert' is unknown; there are nltk, plain"):
        open_tokenizer("bert")


@pytest.mark.parametrize(
    "tokenizer",
    [Tokenizer("nltk", punkt=True, version="3.9"), Tokenizer("nltk", version="3.9"), open_tokenizer("plain")],
)
def test_a_record_gives_the_tokenizer_back(tokenizer: Tokenizer) -> None:
    assert recorded_tokenizer(tokenizer.record(), where="v.json") == tokenizer


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"name": "bert", "version": "1"}, "not one of this release's"),
        (
            {"name": "nltk", "version": "3.9", "punkt": "present", "lowercase": False},
            "not one of this release's",
        ),
        ({}, "not one of this release's"),
        (
            {"name": "plain", "lowercase": True, "pattern": "9", "version": "9"},
            "version 9 of the plain tokenizer",
        ),
    ],
)
def test_a_foreign_record_is_refused(record: dict[str, object], message: str) -> None:
    with pytest.raises(MismatchError, match=f"v.json: .*{message}"):
        recorded_tokenizer(record, where="v.json")


def test_a_tokenizer_with_data_is_not_imitated_without(no_punkt: None) -> None:
    require_runnable(Tokenizer("nltk", punkt=False), where="x")
    require_runnable(Tokenizer("plain"), where="x")
    with pytest.raises(MismatchError, match="x: made with NLTK's punkt_tab data, which is not found here"):
        require_runnable(Tokenizer("nltk", punkt=True), where="x")


def test_download_asks_nltk(no_punkt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(name: str, quiet: bool) -> bool:
        asked.append(name)
        return False

    monkeypatch.setattr(nltk, "download", download)
    with pytest.raises(CampError, match="punkt_tab could not be downloaded; check the network"):
        download_punkt()
    assert asked == ["punkt_tab"]


def test_download_is_not_needed_twice(punkt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("downloaded again"))
    download_punkt()
