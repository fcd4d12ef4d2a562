"""Anderson's and LXMERT's TSV <-> foreign rows: one image a line, arrays in base64.

A first pass finds where each line begins without reading what lies between: lines with the same number of
boxes are equally long, so that one jump lands on the newline, or else a search finds it. Rows are then read
by position.
"""

from __future__ import annotations

import binascii
import mmap
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase64

from ...errors import InputError
from ...files import atomic_writer
from ...manifests.source import Findings
from ...progress import Bar, ProgressFactory, no_progress
from ...schema import Regions
from .arrays import make_regions
from .record import ExportShape, ForeignRow
from .source_files import advise_will_need, edges_digest, find_files

_NEWLINE = ord("\n")
_SHOWN = 30  # characters of a bad field that a message repeats


@dataclass(frozen=True)
class Columns:
    """The order of the fields; `boxes` and `features` are always the last two."""

    names: tuple[str, ...]
    arrays: tuple[tuple[str, str, str], ...]  # (field, dtype, name in Regions)
    head_bytes: int  # what usually holds all fields before the boxes

    @property
    def leading(self) -> int:
        """How many fields stand before the boxes."""
        return self.names.index("boxes")


ANDERSON = Columns(
    names=("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"), arrays=(), head_bytes=256
)
LXMERT = Columns(
    # Height comes before width here.
    names=(
        *("image_id", "image_h", "image_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
        *("num_boxes", "boxes", "features"),
    ),
    arrays=(
        ("objects_id", "<i8", "classes"),
        ("objects_conf", "<f4", "class_scores"),
        ("attrs_id", "<i8", "attributes"),
        ("attrs_conf", "<f4", "attribute_scores"),
    ),
    head_bytes=4096,
)


class TsvLayout:
    """One TSV or a folder of them, memory-mapped."""

    has_boxes = True

    def __init__(self, source: Path, *, columns: Columns, progress: ProgressFactory = no_progress) -> None:
        self._columns = columns
        self.paths = find_files(source, wanted=lambda name: ".tsv" in name, what=".tsv files", any_name=True)
        self.findings = Findings()
        self.ids: list[str] = []
        self._seen: set[str] = set()
        # Per row: file, line, first byte, first byte of the boxes, end, number of boxes.
        self._file, self._line, self._count = array("q"), array("q"), array("q")
        self._start, self._boxes, self._end = array("q"), array("q"), array("q")
        self._maps: list[mmap.mmap] = []
        self._descriptors: list[int] = []
        try:
            sizes = [self._open(path) for path in self.paths]
            with progress("find rows", max(sum(sizes) >> 20, 1), "MB") as bar:
                for number in range(len(self.paths)):
                    self._scan(number, bar)
            if not self.ids:
                shown = self.findings.as_dict()
                reason = next(iter(shown.values()))["examples"][0] if shown else "no line has any text"
                raise InputError(
                    f"{source}: no row of {len(columns.names)} fields found ({reason}); is --format right?"
                )
        except BaseException:
            self.close()
            raise
        self._marks = [edges_digest(path) for path in self.paths]

    def _open(self, path: Path) -> int:
        size = path.stat().st_size
        if size == 0:
            raise InputError(f"{path}: the file is empty, expected rows of {len(self._columns.names)} fields")
        descriptor = os.open(path, os.O_RDONLY)
        self._descriptors.append(descriptor)
        self._maps.append(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        return size

    def _scan(self, number: int, bar: Bar) -> None:
        content = self._maps[number]
        if hasattr(content, "madvise"):
            content.madvise(mmap.MADV_RANDOM)  # a jump should cost its page, not its neighbourhood
        tails: dict[int, int] = {}  # number of boxes -> bytes from the boxes to the newline
        start = line = shown = 0
        while start < len(content):
            line += 1
            end = self._scan_line(number, line, start, tails)
            start = end + 1
            if (megabytes := start >> 20) > shown:
                bar.advance(megabytes - shown)
                shown = megabytes
        if hasattr(content, "madvise"):
            content.madvise(mmap.MADV_NORMAL)

    def _scan_line(self, number: int, line: int, start: int, tails: dict[int, int]) -> int:
        """Note the row that begins at `start`; return where its newline is, or the end of the file."""
        content, columns = self._maps[number], self._columns
        fields = self._head_fields(content, start)
        if len(fields) < columns.leading:
            end = content.find(b"\n", start)
            end = len(content) if end < 0 else end
            found = content[start:end].strip()
            if found:
                last = end == len(content)
                kind = "truncated last rows, left out" if last and self.ids else "lines that are not rows"
                count = found.count(b"\t") + 1
                self.findings.note(
                    kind, f"{self._where(number, line)}: {count} fields, expected {len(columns.names)}"
                )
            return end
        boxes = start + sum(map(len, fields)) + len(fields)
        raw_count = fields[columns.names.index("num_boxes")]
        try:
            count = int(raw_count)
            image_id = _unwrap(fields[0]).decode("utf-8")
        except ValueError:  # of which a decoding error is one
            end = content.find(b"\n", boxes)
            end = len(content) if end < 0 else end
            if not fields[1].strip().isdigit() and line == 1:
                self.findings.note("header lines, left out", self._where(number, line))
            else:
                shown = raw_count[:_SHOWN].decode("utf-8", "replace")
                self.findings.note(
                    "lines that are not rows", f"{self._where(number, line)}: number of boxes {shown!r}"
                )
            return end
        end = boxes + tails.get(count, len(content))
        if end >= len(content) or content[end] != _NEWLINE:
            end = content.find(b"\n", boxes)
            if end < 0:
                return self._last_row(number, line, start, boxes, count, image_id)
            tails[count] = end - boxes
        self._add(number, line, start, boxes, end, count, image_id)
        return end

    def _head_fields(self, content: mmap.mmap, start: int) -> list[bytes]:
        """The fields before the boxes; fewer when the line has fewer."""
        leading, reach = self._columns.leading, self._columns.head_bytes
        while True:
            window = content[start : start + reach]
            fields = window.split(b"\t", leading)
            whole = len(fields) > leading
            newline = window.find(b"\n")
            if newline >= 0 and newline < sum(map(len, fields[:leading])) + leading - 1:
                return []
            if whole:
                return fields[:leading]
            if newline >= 0 or start + reach >= len(content):
                return []
            reach *= 4

    def _last_row(self, number: int, line: int, start: int, boxes: int, count: int, image_id: str) -> int:
        """A row without a newline: whole, or cut off when its writer was stopped."""
        end = len(self._maps[number])
        self._add(number, line, start, boxes, end, count, image_id)
        if self._line and self._line[-1] == line and self._file[-1] == number:
            try:
                self.read(len(self.ids) - 1)
            except InputError as error:
                self._drop_last()
                self.findings.note("truncated last rows, left out", str(error))
        return end

    def _add(
        self, number: int, line: int, start: int, boxes: int, end: int, count: int, image_id: str
    ) -> None:
        if image_id in self._seen:
            self.findings.note("rows with an id seen before, left out", image_id)
            return
        self._seen.add(image_id)
        self.ids.append(image_id)
        for column, value in (
            (self._file, number),
            (self._line, line),
            (self._start, start),
            (self._boxes, boxes),
            (self._end, end),
            (self._count, count),
        ):
            column.append(value)

    def _drop_last(self) -> None:
        self._seen.discard(self.ids.pop())
        for column in (self._file, self._line, self._start, self._boxes, self._end, self._count):
            column.pop()

    def _where(self, number: int, line: int) -> str:
        return f"{self.paths[number].name}: line {line}"

    def mark(self, row: int) -> str:
        return f"{self._marks[self._file[row]]}:{self._start[row]}:{self._end[row]}"

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._count[row] for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        for row in rows:
            start = self._start[row]
            advise_will_need(self._descriptors[self._file[row]], start, self._end[row] - start)

    def read(self, row: int) -> ForeignRow:
        """A position -> the row's regions, each field's length checked."""
        content = self._maps[self._file[row]]
        where = self._where(self._file[row], self._line[row])
        count, boxes, end = self._count[row], self._boxes[row], self._end[row]
        names = self._columns.names
        head = dict(zip(names, content[self._start[row] : boxes].split(b"\t"), strict=False))
        features = content.find(b"\t", boxes, end) + 1
        if features == 0:
            raise InputError(f"{where}: {len(names) - 1} fields, expected {len(names)}; is the line cut off?")
        extra = content.find(b"\t", features, end)
        if extra >= 0:
            self.findings.note("fields after the features, left out", where)
            end = extra
        if count < 1:
            raise InputError(f"{where}: {count} boxes, expected at least one")
        arrays = {
            name: _decode(_unwrap(head[field]), dtype, count, where=where, field=field)
            for field, dtype, name in self._columns.arrays
        }
        start, stop = _bounds(content, boxes, features - 1)
        corners = _decode(content[start:stop], "<f4", count * 4, where=where, field="boxes")
        start, stop = _bounds(content, features, end)
        with memoryview(content)[start:stop] as encoded:
            values = _decode(encoded, "<f4", None, where=where, field="features")
        if values.size == 0 or values.size % count:
            raise InputError(
                f"{where}: features hold {values.size:,} numbers, expected a multiple of {count} boxes; "
                "is the line cut off?"
            )
        regions = make_regions(
            where,
            features=values.reshape(count, -1),
            boxes=corners.reshape(count, 4),
            width=head["image_w"].decode("utf-8", "replace"),
            height=head["image_h"].decode("utf-8", "replace"),
            **arrays,
        )
        return ForeignRow(self.ids[row], regions)

    def close(self) -> None:
        for content in self._maps:
            content.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._maps, self._descriptors = [], []


def _unwrap(field: bytes) -> bytes:
    """What stands in the field, without the b'…' that Python 3 prints around bytes."""
    start, end = _bounds(field, 0, len(field))
    return field[start:end]


def _bounds(content: bytes | mmap.mmap, start: int, end: int) -> tuple[int, int]:
    """Where a field's own characters are: inside a b'…' and before a carriage return."""
    while end > start and content[end - 1] in b" \r\n":
        end -= 1
    quote = content[start + 1 : start + 2]
    wrapped = content[start : start + 1] == b"b" and quote in (b"'", b'"') and end - start >= 3
    if wrapped and content[end - 1 : end] == quote:
        return start + 2, end - 1
    return start, end


def _decode(
    encoded: bytes | memoryview, dtype: str, size: int | None, *, where: str, field: str
) -> npt.NDArray[Any]:
    """base64 -> numbers, straight from the map."""
    try:
        raw = pybase64.b64decode(encoded, validate=True)  # eight times as fast as binascii
    except binascii.Error as error:
        raise InputError(f"{where}: {field} are not base64 ({error})") from None
    width = np.dtype(dtype).itemsize
    expected = len(raw) // width * width if size is None else size * width
    if len(raw) != expected or len(raw) != len(encoded) * 3 // 4 - bytes(encoded[-2:]).count(b"="):
        of = "a multiple of 4" if size is None else f"{expected:,}"
        raise InputError(
            f"{where}: {field} hold {len(raw):,} bytes in {len(encoded):,} characters of base64, "
            f"expected {of} bytes; is the line cut off?"
        )
    return np.frombuffer(raw, dtype)


def write_tsv(rows: Iterable[ForeignRow], path: Path, *, columns: Columns) -> None:
    """Rows -> one TSV with the line ends of the originals."""
    with atomic_writer(path) as stream:
        for row in rows:
            fields = _fields(row, columns)
            stream.write(b"\t".join(fields[name] for name in columns.names) + b"\r\n")


def _fields(row: ForeignRow, columns: Columns) -> dict[str, bytes]:
    regions: Regions = row.regions
    if any(character in row.image_id for character in "\t\r\n"):
        raise InputError(f"image id {row.image_id!r} holds a tab or a line end; export with --ids image-id")
    fields = {
        "image_id": row.image_id.encode("utf-8"),
        "image_w": b"%d" % regions.width,
        "image_h": b"%d" % regions.height,
        "num_boxes": b"%d" % len(regions.boxes),
        "boxes": _encode(regions.boxes, "<f4"),
        "features": _encode(regions.features, "<f4"),
    }
    for field, dtype, name in columns.arrays:
        fields[field] = _encode(getattr(regions, name), dtype)
    return fields


def _encode(values: npt.NDArray[Any], dtype: str) -> bytes:
    return pybase64.b64encode(np.ascontiguousarray(values, dtype).data)


def open_anderson(source: Path, *, progress: ProgressFactory = no_progress) -> TsvLayout:
    return TsvLayout(source, columns=ANDERSON, progress=progress)


def open_lxmert(source: Path, *, progress: ProgressFactory = no_progress) -> TsvLayout:
    return TsvLayout(source, columns=LXMERT, progress=progress)


def write_anderson(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    write_tsv(rows, destination, columns=ANDERSON)


def write_lxmert(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    write_tsv(rows, destination, columns=LXMERT)
