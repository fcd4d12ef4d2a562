"""SCAN's arrays: mapped whatever their size, five-fold rows found and compared, ids or positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.layouts.record import ExportShape, ForeignRow
from camp.pipeline.layouts.scan_npy import ScanLayout, ScanSplit, write_scan

MakeRows = Callable[..., list[ForeignRow]]
ShapeOf = Callable[[Sequence[ForeignRow]], ExportShape]
ROWS = np.random.default_rng(0).standard_normal((10, 3, 8)).astype(np.float32) + 0.1


def save(
    folder: Path, rows: np.ndarray, *, name: str = "test", captions: int | None = None, ids: int | None = None
) -> None:
    np.save(folder / f"{name}_ims.npy", rows)
    if captions is not None:
        text = "\n".join(f"caption {number} ." for number in range(captions))  # no newline at the end
        (folder / f"{name}_caps.txt").write_text(text)
    if ids is not None:
        (folder / f"{name}_ids.txt").write_text("".join(f"{1000 + number}\n" for number in range(ids)))


@pytest.mark.parametrize(
    ("rows", "captions", "images"),
    [
        (ROWS, 50, 10),  # one row an image
        (np.repeat(ROWS, 5, axis=0), 50, 10),  # one row a caption
        (ROWS, 10, 10),  # one caption an image
        (np.repeat(ROWS, 5, axis=0), None, 10),  # the rows alone tell
        (ROWS, None, 10),
    ],
)
def test_the_rule_of_five(rows: np.ndarray, captions: int | None, images: int, tmp_path: Path) -> None:
    save(tmp_path, rows, captions=captions)
    layout = ScanLayout(tmp_path)
    assert len(layout.ids) == images
    assert not layout.has_boxes
    for row in range(images):
        np.testing.assert_array_equal(layout.read(row).regions.features, ROWS[row])
    stored_once = layout.findings.count("files whose rows stand 5 times, stored once")
    assert stored_once == (len(rows) == 50)
    layout.will_need(range(images))
    layout.close()


def test_repetitions_that_differ_are_found(tmp_path: Path) -> None:
    rows = np.repeat(np.random.default_rng(1).random((400, 2, 4)) + 0.1, 5, axis=0).astype(np.float32)
    rows[5 * 7 + 3, 1, 1] += 1  # image 7 is none of those that are looked at first
    save(tmp_path, rows, captions=2000)
    layout = ScanLayout(tmp_path)
    assert len(layout.ids) == 400
    layout.read(6)
    with pytest.raises(InputError, match=r"test_ims\.npy: rows 35 and 38 differ, expected the same five"):
        layout.read(7)
    layout.close()


@pytest.mark.parametrize("ids", [10, 50])
def test_ids_one_an_image_or_five(ids: int, tmp_path: Path) -> None:
    save(tmp_path, ROWS, captions=50, ids=ids)
    layout = ScanLayout(tmp_path)
    assert layout.ids[:2] == (["1000", "1001"] if ids == 10 else ["1000", "1005"])
    layout.close()


def test_without_ids_rows_have_a_position(tmp_path: Path) -> None:
    save(tmp_path, ROWS, name="train")
    save(tmp_path, ROWS, name="dev")
    layout = ScanLayout(tmp_path)
    assert layout.ids[0] == "train-000000"
    assert layout.ids[-1] == "dev-000009"
    layout.close()


def test_testall_stands_for_test(tmp_path: Path) -> None:
    save(tmp_path, ROWS, name="testall")
    save(tmp_path, ROWS[:2], name="test")
    layout = ScanLayout(tmp_path)
    assert len(layout.ids) == 10
    assert layout.findings.count("files left out") == 1
    layout.close()


def test_33_gigabytes_are_mapped_not_loaded(tmp_path: Path) -> None:
    """The size of COCO's training file, sparse: opening it and reading two rows takes no time and memory."""
    shape = (113_287, 36, 2048)
    path = tmp_path / "train_ims.npy"
    last = np.ones(shape[1:], "<f4")
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        header = stream.tell()
        stream.write(last.tobytes())
        stream.seek(header + (shape[0] - 1) * last.nbytes)
        stream.write((last * 2).tobytes())
    assert path.stat().st_size > 33e9
    (tmp_path / "train_caps.txt").write_text("a\n" * shape[0] * 5)
    layout = ScanLayout(tmp_path)
    assert len(layout.ids) == shape[0]
    layout.will_need([0])
    np.testing.assert_array_equal(layout.read(0).regions.features, last)
    np.testing.assert_array_equal(layout.read(shape[0] - 1).regions.features, last * 2)
    with pytest.raises(InputError, match="row 1: nothing but zeros"):
        layout.read(1)
    layout.close()


@pytest.mark.parametrize(
    ("rows", "captions", "ids", "message"),
    [
        (ROWS[0], None, None, r"float32 of shape \(3, 8\), expected floats of shape"),
        (ROWS.astype(np.int64), None, None, "int64"),
        (ROWS, 49, None, "10 rows, expected 49 as the captions, or a fifth of it"),
        (ROWS, 50, 7, "7 ids, expected 10 or 50"),
    ],
)
def test_files_that_do_not_fit(
    rows: np.ndarray, captions: int | None, ids: int | None, message: str, tmp_path: Path
) -> None:
    save(tmp_path, rows, captions=captions, ids=ids)
    with pytest.raises(InputError, match=message):
        ScanLayout(tmp_path)


def test_truncated_and_pickled(tmp_path: Path) -> None:
    save(tmp_path, ROWS)
    path = tmp_path / "test_ims.npy"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"test_ims\.npy: cannot be mapped, it is cut off"):
        ScanLayout(tmp_path)
    np.save(path, np.array([{}], dtype=object))
    with pytest.raises(InputError, match="or holds no plain numbers"):
        ScanLayout(tmp_path)


def test_export_pads_and_import_cuts(tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf) -> None:
    rows = make_rows((3, 1, 2))
    split = ScanSplit(name="val", ids=[row.image_id for row in rows], rows=rows, captions=["a \n b"] * 15)
    write_scan([split], tmp_path / "out", shape_of(rows))
    assert np.load(tmp_path / "out" / "dev_ims.npy").shape == (3, 3, 8)
    assert (tmp_path / "out" / "dev_caps.txt").read_text() == "a b\n" * 15
    layout = ScanLayout(tmp_path / "out")
    for number, row in enumerate(rows):
        found = layout.read(number)
        assert found.image_id == row.image_id
        np.testing.assert_array_equal(found.regions.features, row.regions.features)
    layout.close()
