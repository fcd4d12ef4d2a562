"""The TSV readers: real rows, a slow oracle, and everything that goes wrong in such files."""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.pipeline.layouts import tsv
from camp.pipeline.layouts.record import ForeignRow

LXMERT_TYPES = {"objects_id": "<i8", "objects_conf": "<f4", "attrs_id": "<i8", "attrs_conf": "<f4"}
MakeRows = Callable[..., list[ForeignRow]]


def slow_rows(path: Path, columns: tsv.Columns) -> list[dict[str, Any]]:
    """The oracle: Python's csv and base64 modules."""
    csv.field_size_limit(sys.maxsize)
    rows = []
    with path.open(newline="") as stream:
        for item in csv.DictReader(stream, delimiter="\t", fieldnames=columns.names):
            row: dict[str, Any] = dict(item)
            for name in ("boxes", "features"):
                row[name] = np.frombuffer(base64.b64decode(row[name]), np.float32).reshape(
                    int(row["num_boxes"]), -1
                )
            for name, dtype in LXMERT_TYPES.items():
                if name in row:
                    row[name] = np.frombuffer(base64.b64decode(row[name]), dtype)
            rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("anderson_1_image.tsv", tsv.ANDERSON),
        ("detectron2_same_image.tsv", tsv.ANDERSON),
        ("lxmert_10_images.tsv", tsv.LXMERT),
    ],
)
def test_real_files(name: str, columns: tsv.Columns, shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "bottomup" / name
    layout = tsv.TsvLayout(path, columns=columns)
    expected = slow_rows(path, columns)
    assert list(layout.ids) == [row["image_id"] for row in expected]
    for number, row in enumerate(expected):
        regions = layout.read(number).regions
        np.testing.assert_array_equal(regions.boxes, row["boxes"])
        np.testing.assert_array_equal(regions.features, row["features"])
        assert (regions.width, regions.height) == (int(row["image_w"]), int(row["image_h"]))
        # Height and width the right way round: no box leaves the image.
        assert (regions.boxes[:, 2] <= regions.width).all()
        assert (regions.boxes[:, 3] <= regions.height).all()
        if columns is tsv.LXMERT:
            np.testing.assert_array_equal(regions.classes, row["objects_id"])
            np.testing.assert_array_equal(regions.class_scores, row["objects_conf"])
            np.testing.assert_array_equal(regions.attributes, row["attrs_id"])
            np.testing.assert_array_equal(regions.attribute_scores, row["attrs_conf"])
    copy = tmp_path / "copy.tsv"
    tsv.write_tsv((layout.read(number) for number in range(len(expected))), copy, columns=columns)
    layout.close()
    assert copy.read_bytes() == path.read_bytes()


def encode(values: np.ndarray[Any, Any], dtype: str, *, wrapped: bool) -> str:
    text = base64.b64encode(values.astype(dtype).tobytes())
    return repr(text) if wrapped else text.decode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    lxmert=st.booleans(),
    wrapped=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
    blank=st.booleans(),
    names=st.booleans(),
)
def test_any_mixture_of_lines(
    counts: list[int],
    lxmert: bool,
    wrapped: bool,
    end: str,
    last_end: bool,
    blank: bool,
    names: bool,
    make_rows: MakeRows,
    tmp_path: Path,
) -> None:
    """Lines of all lengths, jumped to or searched for, are what the slow way reads."""
    columns = tsv.LXMERT if lxmert else tsv.ANDERSON
    rows = make_rows(counts, ids=[f"photo.{n}.é x" if names else str(n) for n in range(len(counts))], dim=5)
    lines = []
    for row in rows:
        regions = row.regions
        fields = {
            "image_id": row.image_id,
            "image_w": str(regions.width),
            "image_h": f"{regions.height}.0",
            "num_boxes": str(len(regions.boxes)),
            "boxes": encode(regions.boxes, "<f4", wrapped=wrapped),
            "features": encode(regions.features, "<f4", wrapped=wrapped),
        }
        for field, dtype, name in columns.arrays:
            fields[field] = encode(getattr(regions, name), dtype, wrapped=wrapped)
        lines.append("\t".join(fields[name] for name in columns.names))
        if blank:
            lines.append("")
    path = tmp_path / "rows.tsv"
    path.write_bytes((end.join(lines) + (end if last_end else "")).encode())
    layout = tsv.TsvLayout(path, columns=columns)
    try:
        assert list(layout.ids) == [row.image_id for row in rows]
        assert layout.findings.as_dict() == {}
        assert layout.max_regions(range(len(rows))) == max(counts)
        for number in reversed(range(len(rows))):
            found, expected = layout.read(number).regions, rows[number].regions
            np.testing.assert_array_equal(found.features, expected.features)
            np.testing.assert_array_equal(found.boxes, expected.boxes)
            assert (found.width, found.height) == (expected.width, expected.height)
    finally:
        layout.close()


@pytest.fixture
def lines(make_rows: MakeRows, tmp_path: Path) -> list[bytes]:
    """Three good lines of 3, 3 and 2 boxes."""
    tsv.write_tsv(make_rows((3, 3, 2)), tmp_path / "good.tsv", columns=tsv.ANDERSON)
    return (tmp_path / "good.tsv").read_bytes().splitlines(keepends=True)


def opened(tmp_path: Path, content: bytes) -> tsv.TsvLayout:
    path = tmp_path / "made.tsv"
    path.write_bytes(content)
    return tsv.open_anderson(path)


def test_a_truncated_last_row_is_reported(lines: list[bytes], tmp_path: Path) -> None:
    for cut in (3, 12, 60, len(lines[2]) - 10, len(lines[2]) - 3):
        layout = opened(tmp_path, lines[0] + lines[1] + lines[2][:cut])
        assert list(layout.ids) == ["500000", "500001"], cut
        [(kind, finding)] = layout.findings.as_dict().items()
        assert kind == "truncated last rows, left out"
        assert finding["count"] == 1
        assert "made.tsv: line 3" in finding["examples"][0]
        layout.close()


def test_a_whole_last_row_without_newline_counts(lines: list[bytes], tmp_path: Path) -> None:
    layout = opened(tmp_path, b"".join(lines).rstrip())
    assert len(layout.ids) == 3
    assert layout.findings.as_dict() == {}
    layout.close()


def test_repeated_ids_are_dropped_and_reported(lines: list[bytes], tmp_path: Path) -> None:
    layout = opened(tmp_path, lines[0] + lines[1] + lines[0] + lines[2])
    assert list(layout.ids) == ["500000", "500001", "500002"]
    assert layout.findings.as_dict() == {
        "rows with an id seen before, left out": {"count": 1, "examples": ["500000"]}
    }
    layout.close()


def test_a_header_and_lines_of_rubbish(lines: list[bytes], tmp_path: Path) -> None:
    header = "\t".join(tsv.ANDERSON.names).encode() + b"\r\n"
    layout = opened(tmp_path, header + lines[0] + b"what is this\r\n" + b"a\tb\tc\td\te\tf\r\n" + lines[1])
    assert list(layout.ids) == ["500000", "500001"]
    findings = layout.findings.as_dict()
    assert findings["header lines, left out"]["examples"] == ["made.tsv: line 1"]
    assert findings["lines that are not rows"]["examples"] == [
        "made.tsv: line 3: 1 fields, expected 6",
        "made.tsv: line 4: number of boxes 'd'",
    ]
    assert len(layout.read(1).regions.boxes) == 3
    layout.close()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (3, b"4", r"made\.tsv: line 2: boxes hold 48 bytes in 64 characters of base64, expected 64 bytes"),
        (3, b"0", "line 2: 0 boxes, expected at least one"),
        (4, b"!!!!", "line 2: boxes are not base64"),
        (4, b"A", "line 2: boxes are not base64"),
        (5, b"AAAAAAAA", r"line 2: features hold 6 bytes in 8 characters .* expected a multiple of 4"),
        (5, b"AAAAAA==", "line 2: features hold 1 numbers, expected a multiple of 3 boxes"),
        (5, b"", "line 2: features hold 0 numbers"),
        (1, b"wide", "line 2: image width 'wide', expected a number of pixels"),
        (2, b"-480", "line 2: image height '-480'"),
    ],
)
def test_a_bad_field_names_its_line(
    field: int, value: bytes, message: str, lines: list[bytes], tmp_path: Path
) -> None:
    fields = lines[1].rstrip().split(b"\t")
    fields[field] = value
    layout = opened(tmp_path, lines[0] + b"\t".join(fields) + b"\r\n" + lines[2])
    assert len(layout.ids) == 3
    with pytest.raises(InputError, match=message):
        layout.read(1)
    assert len(layout.read(0).regions.boxes) == 3
    assert len(layout.read(2).regions.boxes) == 2
    layout.close()


def test_a_missing_and_an_extra_field(lines: list[bytes], tmp_path: Path) -> None:
    short = b"\t".join(lines[0].split(b"\t")[:5]) + b"\r\n"
    extra = lines[1].rstrip() + b"\tAAAA\r\n"
    layout = opened(tmp_path, short + extra)
    with pytest.raises(InputError, match="line 1: 5 fields, expected 6; is the line cut off"):
        layout.read(0)
    assert layout.read(1).regions.features.shape == (3, 8)
    assert layout.findings.count("fields after the features, left out") == 1
    layout.close()


def test_a_folder_of_parts(lines: list[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "train.tsv.1").write_bytes(lines[2] + lines[0])
    (folder / "train.tsv.0").write_bytes(lines[0] + lines[1])
    layout = tsv.open_anderson(folder)
    assert list(layout.ids) == ["500000", "500001", "500002"]
    assert layout.findings.count("rows with an id seen before, left out") == 1
    assert len(layout.read(2).regions.boxes) == 2
    layout.close()


def test_the_other_tsv_is_not_mistaken(shared_data: Path) -> None:
    folder = shared_data / "bottomup"
    with pytest.raises(InputError, match="no row of 6 fields found .* is --format right"):
        tsv.open_anderson(folder / "lxmert_10_images.tsv")
    with pytest.raises(InputError, match="no row of 10 fields found .* is --format right"):
        tsv.open_lxmert(folder / "anderson_1_image.tsv")


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file is empty"):
        opened(tmp_path, b"")


def test_ids_that_would_break_a_line(make_rows: MakeRows, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a tab or a line end"):
        tsv.write_tsv(make_rows((1,), ids=["a\tb"]), tmp_path / "x.tsv", columns=tsv.ANDERSON)
    assert list(tmp_path.iterdir()) == []


def test_the_scan_jumps(lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between a line's head and its newline is searched once per number of boxes, not per line."""
    searches = 0

    original = tsv.TsvLayout._scan_line
    many = b"".join(lines[0].replace(b"500000", b"%06d" % number) for number in range(50))

    def counted(self: Any, number: int, line: int, start: int, tails: dict[int, int]) -> int:
        nonlocal searches
        before = dict(tails)
        end = original(self, number, line, start, tails)
        searches += before != tails
        return end

    monkeypatch.setattr(tsv.TsvLayout, "_scan_line", counted)
    layout = opened(tmp_path, many)
    assert len(layout.ids) == 50
    assert searches == 1
    layout.close()
