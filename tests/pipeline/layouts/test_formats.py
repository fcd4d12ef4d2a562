"""Every layout: what is written is read again exactly, is whole or not there, and says what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from camp.commands.import_features import FORMATS as COMMAND_FORMATS
from camp.errors import InputError, MissingPackageError
from camp.pipeline.layouts.formats import FORMATS, open_layout
from camp.pipeline.layouts.record import ExportShape, ForeignRow

STREAMED = [name for name, layout in FORMATS.items() if layout.write is not None]
OPTIONAL = ("classes", "class_scores", "attributes", "attribute_scores")
MakeRows = Callable[..., list[ForeignRow]]
ShapeOf = Callable[[Sequence[ForeignRow]], ExportShape]


def destination(folder: Path, format: str) -> Path:
    return folder / f"features{'.tsv' if 'tsv' in format else '.h5' if 'hdf5' in format else ''}"


def write(format: str, rows: Sequence[ForeignRow], path: Path, shape: ExportShape) -> None:
    writer = FORMATS[format].write
    assert writer is not None
    writer(iter(rows), path, shape)


@pytest.mark.parametrize("format", STREAMED)
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 7, 2, 100)])
def test_round_trip_is_exact(
    format: str, counts: tuple[int, ...], tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    rows = make_rows(counts)
    path = destination(tmp_path, format)
    write(format, rows, path, shape_of(rows))
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]
    layout = open_layout(path, format=format)
    try:
        assert sorted(layout.ids) == sorted(row.image_id for row in rows)
        assert layout.has_boxes
        assert layout.findings.as_dict() == {}
        assert layout.max_regions(range(len(rows))) == max(counts)
        layout.will_need(range(len(rows)))
        assert len({layout.mark(row) for row in range(len(rows))}) == len(rows)
        for row in rows:
            found = layout.read(layout.ids.index(row.image_id))
            assert found.image_id == row.image_id
            np.testing.assert_array_equal(found.regions.features, row.regions.features)
            np.testing.assert_array_equal(found.regions.boxes, row.regions.boxes)
            assert (found.regions.width, found.regions.height) == (row.regions.width, row.regions.height)
            for column in OPTIONAL:
                if column in FORMATS[format].holds:
                    np.testing.assert_array_equal(
                        getattr(found.regions, column), getattr(row.regions, column)
                    )
                else:
                    assert getattr(found.regions, column) is None
    finally:
        layout.close()


@pytest.mark.parametrize("format", STREAMED)
def test_the_mark_of_a_row_follows_its_source(
    format: str, tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    marks = []
    for number, seed in enumerate((0, 0, 1)):
        rows = make_rows(seed=seed)
        (tmp_path / str(number)).mkdir()
        path = destination(tmp_path / str(number), format)
        write(format, rows, path, shape_of(rows))
        layout = open_layout(path, format=format)
        marks.append([layout.mark(row) for row in range(len(rows))])
        layout.close()
    assert marks[0] == marks[1]
    assert not set(marks[0]) & set(marks[2])


@pytest.mark.parametrize("format", STREAMED)
def test_a_writer_that_fails_leaves_nothing(
    format: str, tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    rows = make_rows()

    def broken() -> Iterator[ForeignRow]:
        yield rows[0]
        raise RuntimeError("the shard is gone")

    writer = FORMATS[format].write
    assert writer is not None
    with pytest.raises(RuntimeError, match="the shard is gone"):
        writer(broken(), destination(tmp_path, format), shape_of(rows))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["milvlg-npz", "mmf-npy", "mmf-lmdb"])
def test_leftovers_of_a_killed_export_are_cleared(
    format: str, tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    rows = make_rows()
    left = tmp_path / ".features.tmp"
    left.mkdir()
    (left / "stray.npz").write_bytes(b"x")
    write(format, rows, tmp_path / "features", shape_of(rows))
    assert [path.name for path in tmp_path.iterdir()] == ["features"]
    assert not (tmp_path / "features" / "stray.npz").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_not_there_or_something_else(format: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        open_layout(tmp_path / "missing", format=format)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        open_layout(tmp_path / "empty", format=format)
    noise = tmp_path / "noise.tsv"
    noise.write_bytes(b"this is no feature file\n")
    with pytest.raises(InputError, match=r"noise\.tsv"):
        open_layout(noise, format=format)
    if format in ("milvlg-npz", "mmf-npy"):  # one bad file of many is one bad row
        noise = noise.rename(noise.with_suffix(f".{format[-3:]}"))
        layout = open_layout(noise, format=format)
        with pytest.raises(InputError, match=r"noise\.np[zy]: not a readable \.np"):
            layout.read(0)


@pytest.mark.parametrize("format", ["milvlg-npz", "mmf-npy"])
def test_names_with_dots_and_folders(
    format: str, tmp_path: Path, make_rows: MakeRows, shape_of: ShapeOf
) -> None:
    rows = make_rows((2, 2), ids=["val2014/photo.0001.x", "a b.c"])
    write(format, rows, tmp_path / "out", shape_of(rows))
    layout = open_layout(tmp_path / "out", format=format)
    assert sorted(layout.ids) == ["a b.c", "val2014/photo.0001.x"]
    with pytest.raises(InputError, match="points outside the folder"):
        write(format, make_rows((2,), ids=["../escape"]), tmp_path / "bad", shape_of(rows))
    assert not (tmp_path / "bad").exists()


def test_lmdb_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingPackageError, match=r"camp-toolkit\[lmdb\]"):
        open_layout(tmp_path, format="mmf-lmdb")


def test_the_command_offers_every_format() -> None:
    assert set(COMMAND_FORMATS) == set(FORMATS)
    with pytest.raises(InputError, match="format 'x', expected one of anderson-tsv"):
        open_layout(Path("x"), format="x")
