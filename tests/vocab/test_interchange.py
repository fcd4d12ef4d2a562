"""Vocabularies of other projects in and out; nothing in their pickles is run."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from camp.errors import InputError
from camp.vocab.interchange import export_vocabulary, import_vocabulary
from camp.vocab.tokenizer import Tokenizer
from camp.vocab.vocabulary import Specials, Vocabulary

PLAIN = Tokenizer("plain", version="1")
WORDS = ["<pad>", "<unk>", "<start>", "<end>", "dog", "café"]  # another project's order


def read(path: Path, format: str) -> Vocabulary:
    return import_vocabulary(path, format=format, tokenizer=PLAIN).vocabulary


@pytest.fixture
def foreign_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """`vocab.Vocabulary` as VSE++ and its descendants have it."""

    class ForeignVocabulary:
        word2idx: dict[str, int]
        idx2word: dict[int, str]
        idx: int

    ForeignVocabulary.__name__ = ForeignVocabulary.__qualname__ = "Vocabulary"
    ForeignVocabulary.__module__ = "vocab"
    module = types.ModuleType("vocab")
    module.Vocabulary = ForeignVocabulary  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vocab", module)
    return ForeignVocabulary


def foreign_object(foreign_class: type, words: list[str]) -> Any:
    foreign = foreign_class()
    foreign.word2idx = {word: number for number, word in enumerate(words)}
    foreign.idx2word = dict(enumerate(words))
    foreign.idx = len(words)
    return foreign


@pytest.mark.parametrize("format", ["scan-json", "pickle"])
def test_round_trip(tmp_path: Path, format: str) -> None:
    vocabulary = Vocabulary(
        words=tuple(WORDS), specials=Specials(pad=0, unk=1, start=2, end=3), tokenizer=PLAIN
    )
    export_vocabulary(vocabulary, tmp_path / "file", format=format)
    imported = import_vocabulary(tmp_path / "file", format=format, tokenizer=PLAIN)
    assert imported.vocabulary.words == vocabulary.words
    assert imported.vocabulary.specials == vocabulary.specials
    assert imported.vocabulary.fingerprint == vocabulary.fingerprint
    assert imported.vocabulary.counts is None
    assert imported.vectors is None
    assert imported.warnings == ()
    assert imported.vocabulary.source["file"] == "file"
    assert imported.vocabulary.source["checksum"].startswith("xxh3:")


def test_scan_json_is_as_scan_writes_it(tmp_path: Path) -> None:
    vocabulary = Vocabulary(words=("<unk>", "dog"), specials=Specials(unk=0), tokenizer=PLAIN)
    export_vocabulary(vocabulary, tmp_path / "v.json", format="scan-json")
    assert json.loads((tmp_path / "v.json").read_bytes()) == {
        "word2idx": {"<unk>": 0, "dog": 1},
        "idx2word": {"0": "<unk>", "1": "dog"},
        "idx": 2,
    }


def test_other_projects_load_our_pickle(tmp_path: Path, foreign_class: type) -> None:
    vocabulary = Vocabulary(words=tuple(WORDS), specials=Specials(unk=1), tokenizer=PLAIN)
    export_vocabulary(vocabulary, tmp_path / "v.pkl", format="pickle")
    foreign = pickle.loads((tmp_path / "v.pkl").read_bytes())
    assert type(foreign) is foreign_class
    assert vars(foreign) == vars(foreign_object(foreign_class, WORDS))
    assert (tmp_path / "v.pkl").read_bytes()[:2] == b"\x80\x02"  # protocol 2, for Python 2 readers


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("module", ["vocab", "__main__"])
def test_pickles_of_every_protocol(tmp_path: Path, foreign_class: type, protocol: int, module: str) -> None:
    content = pickle.dumps(foreign_object(foreign_class, WORDS), protocol)
    if protocol < 4:  # frames of protocol 4 carry lengths
        content = content.replace(b"cvocab\n", f"c{module}\n".encode())
    (tmp_path / "v.pkl").write_bytes(content)
    assert read(tmp_path / "v.pkl", "pickle").words == tuple(WORDS)


# What Python 2 writes: `str` is bytes (opcode U or T), an old-style class is made by `i` or `o`.
PYTHON_2_DICTS = (
    b"}(U\x08word2idx}(U\x05<unk>K\x00U\x05caf\xc3\xa9K\x01u"
    b"U\x08idx2word}(K\x00U\x05<unk>K\x01U\x05caf\xc3\xa9uU\x03idxK\x02u"
)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cvocab\nVocabulary\n)\x81" + PYTHON_2_DICTS + b"b.",
        b"(i__main__\nVocabulary\n" + PYTHON_2_DICTS + b"b.",
        b"\x80\x02(c__main__\nVocabulary\no" + PYTHON_2_DICTS + b"b.",
    ],
)
def test_python_2_pickles(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.pkl").write_bytes(content)
    assert read(tmp_path / "v.pkl", "pickle").words == ("<unk>", "café")


def test_python_2_strings_in_latin_1(tmp_path: Path) -> None:
    content = b"\x80\x02cvocab\nVocabulary\n)\x81" + PYTHON_2_DICTS + b"b."
    (tmp_path / "v.pkl").write_bytes(content.replace(b"U\x05caf\xc3\xa9", b"U\x04caf\xe9"))
    imported = import_vocabulary(tmp_path / "v.pkl", format="pickle", tokenizer=PLAIN)
    assert imported.vocabulary.words == ("<unk>", "café")
    assert "Latin-1" in imported.warnings[0]


def test_a_pickled_dictionary_will_do(tmp_path: Path) -> None:
    document = {"word2idx": {"<unk>": 0}, "idx2word": {0: "<unk>"}, "idx": 1}
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(document))
    assert read(tmp_path / "v.pkl", "pickle").words == ("<unk>",)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"cposix\nsystem\n(S'touch /tmp/owned'\ntR.", "posix.system"),
        (b"c__builtin__\neval\n(S'1'\ntR.", "__builtin__.eval"),
        (b"\x80\x02cvocab\nOther\n)\x81.", "vocab.Other"),
        (b"\x80\x02cother.vocab\nVocabulary\n)\x81.", "other.vocab.Vocabulary"),
        (b"\x80\x04\x8c\x05vocab\x8c\x13Vocabulary.__init__\x93.", "vocab.Vocabulary.__init__"),
    ],
)
def test_any_other_class_is_refused_by_name(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / "v.pkl").write_bytes(content)
    with pytest.raises(InputError, match=f"v.pkl: the pickle contains {name}, expected .*not loaded"):
        read(tmp_path / "v.pkl", "pickle")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02cvocab\nVocabulary\n(K\x01tR.", b"Pid\n."])
def test_damaged_pickles(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.pkl").write_bytes(content)
    with pytest.raises(InputError, match=r"v\.pkl: "):
        read(tmp_path / "v.pkl", "pickle")


def test_words_that_were_bytes_are_warned_about(tmp_path: Path) -> None:
    document = {"word2idx": {"<unk>": 0, "b'dog'": 1}, "idx2word": {"0": "<unk>", "1": "b'dog'"}, "idx": 2}
    (tmp_path / "v.json").write_text(json.dumps(document))
    imported = import_vocabulary(tmp_path / "v.json", format="scan-json", tokenizer=PLAIN)
    assert "1 words look like b'dog'" in imported.warnings[0]
    assert imported.vocabulary.words == ("<unk>", "b'dog'")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[]", "no word2idx and idx2word found"),
        ("{", "not JSON"),
        ('{"word2idx": {"a": 0}, "idx2word": {"1": "a"}}', "the ids of idx2word are not 0 to 0"),
        ('{"word2idx": {"a": 0}, "idx2word": {"x": "a"}}', "the ids of idx2word are not 0 to 0"),
        ('{"word2idx": {"a": 1}, "idx2word": {"0": "a"}}', "idx2word has 'a' at 0, word2idx says 1"),
        ('{"word2idx": {"a": 0, "b": 1}, "idx2word": {"0": "a"}}', "2 words in word2idx, 1 in idx2word"),
        ('{"word2idx": {"a": 0}, "idx2word": {"0": "a"}}', "no word for unknown words"),
    ],
)
def test_inconsistent_files(tmp_path: Path, document: str, message: str) -> None:
    (tmp_path / "v.json").write_text(document)
    with pytest.raises(InputError, match=f"v.json: .*{message}"):
        read(tmp_path / "v.json", "scan-json")


def test_unknown_formats_and_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'word2vec' is unknown; there are scan-json, pickle, torchtext"):
        import_vocabulary(tmp_path, format="word2vec", tokenizer=PLAIN)
    with pytest.raises(InputError, match="absent: no such file"):
        import_vocabulary(tmp_path / "absent", format="pickle", tokenizer=PLAIN)
    vocabulary = Vocabulary(words=("<unk>",), specials=Specials(unk=0), tokenizer=PLAIN)
    with pytest.raises(InputError, match="'csv' is unknown"):
        export_vocabulary(vocabulary, tmp_path / "v", format="csv")
