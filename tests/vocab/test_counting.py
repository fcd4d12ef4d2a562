"""Counts against the loop everybody writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.manifests.dataset import Dataset
from camp.vocab.counting import (
    CHUNK_CAPTIONS,
    caption_lines,
    check_caption_file,
    count_tokens,
    file_chunks,
    table_chunks,
)
from camp.vocab.tokenizer import Tokenizer

PLAIN = Tokenizer("plain", version="1")
DATA_FREE = Tokenizer("nltk")


@given(captions=st.lists(st.text(max_size=20), max_size=10))
def test_counts_are_those_of_the_loop(captions: list[str]) -> None:
    expected: Counter[str] = Counter()
    for caption in captions:
        expected.update(DATA_FREE.tokenize(caption))
    counts = count_tokens([captions[:3], captions[3:]], tokenizer=DATA_FREE)
    assert counts.counter == expected
    assert counts.captions == len(captions)
    assert counts.tokens == expected.total()


def test_two_processes_count_the_same(punkt: None) -> None:
    chunks = [[f"dog number {number}.", "the street. the end.", "it's 5"] for number in range(8)]
    tokenizer = Tokenizer("nltk", punkt=True)
    alone = count_tokens(chunks, tokenizer=tokenizer)
    assert count_tokens(chunks, tokenizer=tokenizer, workers=2) == alone
    assert alone.counter["street"] == 8  # the workers found the data that is not where NLTK looks by itself


def test_progress_counts_captions(recorded_progress: tuple[object, list[int]]) -> None:
    factory, advances = recorded_progress
    count_tokens([["a", "b"], ["c"]], tokenizer=PLAIN, progress=factory)  # type: ignore[arg-type]
    assert advances == [2, 1]


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "caps.txt"
    path.write_bytes("\ufeffA dog .\r\nline\u2028separator\n\n  last".encode())
    assert list(caption_lines(path)) == ["A dog .", "line\u2028separator", "", "last"]
    assert list(file_chunks([path, path])) == [list(caption_lines(path)) * 2]


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "caps.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"caps.txt: line 2 is not UTF-8 \(byte 3: 0xe9\)"):
        list(caption_lines(path))


def test_files_that_cannot_be_captions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.txt: no such file, expected one caption per line"):
        check_caption_file(tmp_path / "absent.txt")
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(InputError, match="'camp-data import'"):
        check_caption_file(tmp_path / "dataset.json")


def test_a_table_comes_in_chunks(make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset({"train": 2000}, captions_per_image=5)
    chunks = list(table_chunks(dataset.captions))
    assert max(map(len, chunks)) == CHUNK_CAPTIONS
    assert [text for chunk in chunks for text in chunk] == dataset.captions["text"].to_pylist()
