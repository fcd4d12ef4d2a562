"""The streaming text reader against reading the file line by line, whatever the blocks are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.vocab import vector_text
from camp.vocab.row_sink import MISSING, RowSink
from camp.vocab.vector_text import _population, _population_by_hand, read_text_vectors

WORDS = ["dog", "Dog", "a", ".", "at home", "7", "0.5", "naïve", "NAÏVE", "", "x y z", "\u00a0"]
WANTED = ["dog", "a", "at home", "7", "naïve", "x y z", "z", ".", "at"]
NUMBERS = st.sampled_from(["0.25", "-1", "3e-3", "1.5E+2", "0", "-0.0001", "12345.678"])


@st.composite
def files(draw: st.DrawFn) -> tuple[list[tuple[str, list[str]]], str]:
    dim = draw(st.integers(1, 5))
    words = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=12))
    rows = [(word, draw(st.lists(NUMBERS, min_size=dim, max_size=dim))) for word in words]
    # The first line tells the dimension, so its word must not be a number; a lone digit could be a header.
    rows[0] = ("first", rows[0][1])
    style = draw(st.sampled_from(["plain", "trailing", "crlf", "header"]))
    return rows, style


def written(rows: Sequence[tuple[str, list[str]]], style: str) -> bytes:
    end = {"trailing": " \n", "crlf": "\r\n"}.get(style, "\n")
    text = "".join(f"{word} {' '.join(numbers)}{end}" for word, numbers in rows)
    if style == "header":
        text = f"{len(rows)} {len(rows[0][1])}\n{text}"
    return text.encode()


def oracle(rows: Sequence[tuple[str, list[str]]]) -> dict[str, list[float]]:
    """Best spelling of every wanted word: its own, else the first that differs in case alone."""
    found: dict[str, list[float]] = {}
    for wanted in WANTED:
        exact = [numbers for word, numbers in rows if word == wanted]
        other = [numbers for word, numbers in rows if word.lower() == wanted.lower()]
        if exact or other:
            found[wanted] = [float(number) for number in (exact or other)[0]]
    return found


@settings(max_examples=200)
@example(file=([("first", ["0.25"]), ("dog", ["0.5"])], "header"), size=1)
@given(file=files(), size=st.integers(1, 80))
def test_any_file_in_any_blocks(file: tuple[list[tuple[str, list[str]]], str], size: int) -> None:
    rows, style = file
    content = written(rows, style)
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    sink = RowSink(WANTED)
    read_text_vectors(blocks, sink, where="v.txt")
    expected = oracle(rows)
    assert sink.matrix is not None
    for row, word in enumerate(WANTED):
        if word in expected:
            np.testing.assert_array_equal(sink.matrix[row], np.array(expected[word], np.float32))
        else:
            assert sink.rank[row] == MISSING


@settings(max_examples=100)
@given(
    lines=st.integers(1, 30),
    bad=st.integers(1, 30),
    change=st.sampled_from([-2, -1, 1, 2]),
    size=st.integers(1, 300),
)
def test_a_wrong_line_is_named_even_if_nobody_wants_it(lines: int, bad: int, change: int, size: int) -> None:
    bad = min(bad, lines) + 1  # the first line sets the dimension
    rows = [f"word{n} " + " ".join(["0.5"] * (5 + change * (n == bad))) for n in range(1, lines + 2)]
    content = ("\n".join(rows) + "\n").encode()
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    with pytest.raises(InputError, match=rf"v.txt: line {bad} has {5 + change} numbers, expected 5 "):
        read_text_vectors(blocks, RowSink(["dog"]), where="v.txt")


def test_two_wrong_lines_do_not_make_up_for_each_other() -> None:
    content = b"a 1 2 3\nb 1 2\nc 1 2 3 4\nd 1 2 3\n"
    with pytest.raises(InputError, match="line 2 has 2 numbers, expected 3"):
        read_text_vectors([content], RowSink(["dog"]), where="v")


def test_many_wanted_lines_are_parsed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_text, "_PARSE_LINES", 4)
    words = [f"w{number}" for number in range(30)]
    lines = [f"{word} {number} {number / 2}\n".encode() for number, word in enumerate(words)]
    sink = RowSink(words)
    read_text_vectors(lines, sink, where="v")
    assert sink.matrix is not None
    assert sink.matrix.tolist() == [[number, number / 2] for number in range(30)]


def test_a_file_without_line_ends_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_text, "_LONGEST_LINE", 100)
    with pytest.raises(InputError, match="v: line 1 is longer than 100 bytes"):
        read_text_vectors(iter([b"x" * 60] * 1000), RowSink(["dog"]), where="v")


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_population_counts(values: list[int]) -> None:
    array = np.array(values, np.uint64)
    expected = [value.bit_count() for value in values]
    assert _population(array).tolist() == _population_by_hand(array).tolist() == expected
