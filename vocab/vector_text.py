"""GloVe's and word2vec's text files -> the vectors of wanted words; every line is counted, few are parsed.

A file of 400,000 lines with 300 numbers has 120 million of them, and a vocabulary needs a few per cent. So
the spaces of a line are counted (a bit per byte, then population counts), the word is looked up, and only
wanted lines are turned into floats, many at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from .row_sink import RowSink

_PARSE_LINES = 64  # wanted lines turned into floats at a time
_LONGEST_LINE = 1 << 24


@dataclass(frozen=True)
class _Layout:
    dim: int
    announced: int | None  # rows promised by a header line 'rows dim', as word2vec writes it
    trailing: bool  # a space before every line end, as word2vec and fastText write it


@dataclass
class _Wanted:
    line: int
    rows: list[int]
    numbers: bytes


def read_text_vectors(blocks: Iterable[bytes], sink: RowSink, *, where: str) -> None:
    """Blocks of a text file -> the sink's matrix."""
    layout: _Layout | None = None
    text = b""
    line = 1  # the number of the first line in `text`
    waiting: list[_Wanted] = []
    for block in blocks:
        text += block
        stop = text.rfind(b"\n") + 1
        if stop == 0 and len(text) > _LONGEST_LINE:
            raise InputError(
                f"{where}: line {line} is longer than {_LONGEST_LINE} bytes; not a text of vectors"
            )
        if layout is None:
            if text.count(b"\n") < 2:
                continue
            layout = _find_layout(text, where=where)
            sink.set_dim(layout.dim)
        line += _scan(text, stop, sink, layout=layout, line=line, waiting=waiting, where=where)
        text = text[stop:]
        if len(waiting) >= _PARSE_LINES:
            _parse(waiting, sink, dim=layout.dim, where=where)
            waiting.clear()
    if layout is None:
        layout = _find_layout(text, where=where)
        sink.set_dim(layout.dim)
    if text:
        text = text if text.endswith(b"\n") else text + b"\n"
        line += _scan(text, len(text), sink, layout=layout, line=line, waiting=waiting, where=where)
    _parse(waiting, sink, dim=layout.dim, where=where)
    rows = line - 2  # without the header
    if layout.announced is not None and rows < layout.announced:
        raise InputError(
            f"{where}: {rows} vectors found, line 1 announces {layout.announced}; fetch the file again"
        )


def _find_layout(text: bytes, *, where: str) -> _Layout:
    first, _, rest = text.partition(b"\n")
    second = rest.partition(b"\n")[0]
    fields = first.split()
    announced = None
    line = first
    # Two whole numbers are a header, unless one number per word is what the next line has as well.
    pair = len(fields) == 2 and all(field.isdigit() for field in fields)
    if pair and (len(second.split()) != 2 or fields[1] == b"1"):
        announced, line = int(fields[0]), second
        dim = int(fields[1])
    else:
        # The word itself may look like a number, and may contain spaces.
        dim = 0
        while dim < len(fields) - 1 and _is_number(fields[-1 - dim]):
            dim += 1
    if dim < 1:
        shown = first[:40].decode("utf-8", "replace")
        raise InputError(f"{where}: line 1 is {shown!r}, expected a word and the numbers of its vector")
    return _Layout(dim=dim, announced=announced, trailing=line.rstrip(b"\r").endswith(b" "))


def _scan(
    text: bytes,
    stop: int,
    sink: RowSink,
    *,
    layout: _Layout,
    line: int,
    waiting: list[_Wanted],
    where: str,
) -> int:
    """The whole lines in text[:stop] -> their number; wanted ones are added to `waiting`."""
    find, interesting = text.find, sink.interesting
    header = line == 1 and layout.announced is not None
    begin = find(b"\n") + 1 if header else 0
    ends = []
    end = find(b"\n", begin, stop)
    while end >= 0:
        ends.append(end)
        end = find(b"\n", end + 1, stop)
    begins = [begin, *(end + 1 for end in ends)]
    begins.pop()
    words = [text[begin : find(b" ", begin)] for begin in begins]
    found = [
        position
        for position, word in enumerate(words)
        if word in interesting or word.lower() in interesting or not word.isascii()
    ]
    regular = _are_regular(text, begins, ends, layout)
    if not regular.all():
        # Words with spaces, missing or extra numbers: look at such lines one by one.
        found = sorted({*found, *np.flatnonzero(~regular).tolist()})
    for position in found:
        content = text[begins[position] : ends[position]]
        number = line + header + position
        if regular[position]:
            word, _, numbers = content.partition(b" ")
        elif content.strip():
            word, numbers = _split_odd_line(content, layout.dim, line=number, where=where)
        else:
            continue
        rows = sink.claim(word)
        if rows:
            waiting.append(_Wanted(line=number, rows=rows, numbers=numbers.strip()))
    return header + len(ends)


def _are_regular(text: bytes, begins: list[int], ends: list[int], layout: _Layout) -> npt.NDArray[np.bool_]:
    """Lines -> whether each has exactly the spaces of a word and its numbers. (lines,)"""
    if not ends:
        return np.ones(0, bool)
    characters = np.frombuffer(text, np.uint8)
    bits = np.packbits(characters == ord(" "), bitorder="little")  # one per byte of text
    words = np.zeros(len(text) // 64 + 1, "<u8")
    words.view(np.uint8)[: len(bits)] = bits
    before = np.zeros(len(words), np.int64)  # spaces before each 64 bytes of text
    np.cumsum(_population(words[:-1]), dtype=np.int64, out=before[1:])
    edges = np.array([begins[0], *ends], np.int64)  # (lines + 1,)
    below = (np.uint64(1) << (edges & 63).astype(np.uint64)) - np.uint64(1)
    upto = before[edges >> 6] + _population(words[edges >> 6] & below)
    trailing = characters[np.maximum(edges[1:] - 1, 0)] == ord(" ")
    return (np.diff(upto) == layout.dim + layout.trailing) & (trailing == layout.trailing)


def _population(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.integer]:
    """The number of set bits of each value."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(values)
    return _population_by_hand(values)  # NumPy before 2.0


def _population_by_hand(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.integer]:
    pairs = values - ((values >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = pairs & np.uint64(0x3333333333333333)
    fours += (pairs >> np.uint64(2)) & np.uint64(0x3333333333333333)
    eights = (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((eights * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


def _split_odd_line(text: bytes, dim: int, *, line: int, where: str) -> tuple[bytes, bytes]:
    """A line -> word and numbers, split from the right; what is left over belongs to the word."""
    fields = text.rsplit(None, dim)
    if len(fields) == dim and text[:1].isspace():
        return b"", b""  # the word is white space: nobody can want it
    extra = fields[0].split()[1:] if len(fields) > dim else []
    if len(fields) <= dim or any(_is_number(field) for field in extra):
        count = len(fields) - 1 if len(fields) <= dim else dim + len(extra)
        raise InputError(f"{where}: line {line} has {count} numbers, expected {dim} as on the lines before")
    return fields[0], b" ".join(fields[1:])


def _parse(waiting: list[_Wanted], sink: RowSink, *, dim: int, where: str) -> None:
    """Wanted lines -> rows of the matrix."""
    if not waiting:
        return
    vectors = _parse_many([entry.numbers for entry in waiting], dim)
    for position, entry in enumerate(waiting):
        vector = _parse_one(entry, dim, where=where) if vectors is None else vectors[position]
        sink.put(entry.rows, vector)


def _parse_many(lines: list[bytes], dim: int) -> npt.NDArray[np.float64] | None:
    """Lines of numbers with single spaces -> (lines, dim), or None where one of them is not clean.

    Arrow turns an array of strings into floats several times faster than Python or NumPy do; each string here
    is a number and the space behind it.
    """
    text = b" ".join([*lines, b""])
    offsets = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(" ")) + 1
    if len(offsets) != len(lines) * dim:
        return None
    offsets = np.concatenate([[0], offsets]).astype(np.int32)
    strings = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    try:
        floats = pc.ascii_trim_whitespace(strings).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    # Not to_numpy(): that imports pandas where it is installed.
    numbers = np.frombuffer(floats.buffers()[1], np.float64, len(floats))
    return numbers.reshape(len(lines), dim) if np.isfinite(numbers).all() else None


def _parse_one(entry: _Wanted, dim: int, *, where: str) -> npt.NDArray[np.float64]:
    fields = entry.numbers.split()
    if len(fields) != dim:
        raise InputError(
            f"{where}: line {entry.line} has {len(fields)} numbers, expected {dim} as on the lines before"
        )
    for field in fields:
        if not _is_number(field):
            shown = field[:40].decode("utf-8", "replace")
            raise InputError(f"{where}: line {entry.line} has {shown!r} where a finite number is expected")
    return np.array([float(field) for field in fields])


def _is_number(field: bytes) -> bool:
    try:
        return bool(np.isfinite(float(field)))
    except ValueError:
        return False
