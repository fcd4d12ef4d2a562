"""SCAN's {train,dev,test}_ims.npy <-> foreign rows: (n, R, D) float32, no boxes, no sizes.

The training file of COCO has 33 GB: it is memory-mapped, and only the rows in question are ever in memory.
Rows are one per image, or five times the same; the number of captions tells which, and every repetition is
compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...manifests.source import Findings, numbered_lines
from ...progress import ProgressFactory, no_progress
from .arrays import make_regions, trailing_zeros
from .folders import atomic_folder
from .record import ExportShape, ForeignRow
from .source_files import advise_will_need, edges_digest

REPETITIONS = 5
SPLIT_NAMES = {"train": "train", "val": "dev", "test": "test", "all": "all"}  # ours -> SCAN's
_FILES = ("train", "dev", "test", "testall", "all")
_PROBED = 50  # images whose five rows are compared before the file is taken for a five-fold one


@dataclass(frozen=True)
class _SplitFile:
    name: str
    path: Path
    rows: npt.NDArray[Any]  # (n, R, D), mapped
    repetitions: int
    ids: list[str]
    descriptor: int

    @property
    def row_bytes(self) -> int:
        return self.rows[0].nbytes


class ScanLayout:
    """A folder of *_ims.npy, or one of them."""

    has_boxes = False

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        self.findings = Findings()
        self._splits: list[_SplitFile] = []
        self.ids: list[str] = []
        self._place: list[tuple[_SplitFile, int]] = []
        seen: set[str] = set()
        try:
            for name, path in _split_files(source, self.findings):
                split = _open_split(name, path, self.findings)
                self._splits.append(split)
                for number, image_id in enumerate(split.ids):
                    if image_id in seen:
                        self.findings.note("rows with an id seen before, left out", image_id)
                        continue
                    seen.add(image_id)
                    self.ids.append(image_id)
                    self._place.append((split, number))
        except BaseException:
            self.close()
            raise
        self._marks = {split.name: edges_digest(split.path) for split in self._splits}

    def mark(self, row: int) -> str:
        split, number = self._place[row]
        return f"{self._marks[split.name]}:{number}"

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._place[row][0].rows.shape[1] for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        for row in rows:
            split, number = self._place[row]
            length = split.row_bytes * split.repetitions
            header = split.path.stat().st_size - split.rows.nbytes
            advise_will_need(split.descriptor, header + number * length, length)

    def read(self, row: int) -> ForeignRow:
        """A position -> the image's regions; zeros at the end are padding."""
        split, number = self._place[row]
        first = number * split.repetitions
        features = split.rows[first]
        for other in range(first + 1, first + split.repetitions):
            if not np.array_equal(features, split.rows[other]):
                raise InputError(
                    f"{split.path.name}: rows {first} and {other} differ, expected the same five times "
                    "as in the rest of the file"
                )
        where = f"{split.path.name}: row {first}"
        kept = len(features) - trailing_zeros(features)
        if kept == 0:
            raise InputError(f"{where}: nothing but zeros")
        return ForeignRow(self.ids[row], make_regions(where, features=features[:kept], boxes=None))

    def close(self) -> None:
        for split in self._splits:
            os.close(split.descriptor)
        self._splits = []


def _split_files(source: Path, findings: Findings) -> list[tuple[str, Path]]:
    if source.is_file():
        return [(source.name.removesuffix(".npy").removesuffix("_ims"), source)]
    found = [(name, source / f"{name}_ims.npy") for name in _FILES]
    found = [(name, path) for name, path in found if path.is_file()]
    if not found:
        raise InputError(f"{source}: no train_ims.npy, dev_ims.npy or test_ims.npy found")
    names = [name for name, _ in found]
    if "testall" in names and "test" in names:
        findings.note("files left out", "test_ims.npy (testall_ims.npy holds the whole test split)")
        found = [(name, path) for name, path in found if name != "test"]
    return found


def _open_split(name: str, path: Path, findings: Findings) -> _SplitFile:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError):
        with path.open("rb") as stream:
            is_npy = stream.read(6) == np.lib.format.MAGIC_PREFIX
        reason = "it is cut off, or holds no plain numbers" if is_npy else "it is not a .npy file"
        raise InputError(f"{path}: cannot be mapped, {reason}") from None
    if not isinstance(rows, np.ndarray) or rows.ndim != 3 or rows.dtype.kind != "f" or 0 in rows.shape:
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}, expected floats of shape (images, regions, size)"
        )
    repetitions = _repetitions(path, rows, _count_captions(path.with_name(f"{name}_caps.txt")))
    if repetitions > 1:
        findings.note(f"files whose rows stand {repetitions} times, stored once", path.name)
    images = len(rows) // repetitions
    ids = _read_ids(path.with_name(f"{name}_ids.txt"), images=images, name=name)
    return _SplitFile(name, path, rows, repetitions, ids, os.open(path, os.O_RDONLY))


def _count_captions(path: Path) -> int | None:
    if not path.is_file():
        return None
    lines = [line for _, line in numbered_lines(path)]
    return len(lines) - (bool(lines) and not lines[-1])


def _repetitions(path: Path, rows: npt.NDArray[Any], captions: int | None) -> int:
    """SCAN's rule: as many rows as captions means a row per caption, so that each image is there five times.

    Unless the rows differ: then there is one caption an image. Without captions the rows alone decide.
    """
    if captions is not None and len(rows) * REPETITIONS == captions:
        return 1
    if captions is not None and len(rows) != captions:
        raise InputError(f"{path}: {len(rows)} rows, expected {captions} as the captions, or a fifth of it")
    if len(rows) % REPETITIONS or len(rows) == 0:
        return 1
    probed = np.unique(np.linspace(0, len(rows) // REPETITIONS - 1, _PROBED).astype(int)) * REPETITIONS
    same = all(
        np.array_equal(rows[first], rows[first + other])
        for first in probed
        for other in range(1, REPETITIONS)
    )
    return REPETITIONS if same else 1


def _read_ids(path: Path, *, images: int, name: str) -> list[str]:
    """One id per image or five; without the file, the split and the number of the row."""
    if not path.is_file():
        return [f"{name}-{number:06d}" for number in range(images)]
    ids = [line.strip() for _, line in numbered_lines(path) if line.strip()]
    if len(ids) == images * REPETITIONS:
        ids = ids[::REPETITIONS]
    if len(ids) != images:
        raise InputError(f"{path}: {len(ids)} ids, expected {images} or {images * REPETITIONS}")
    return ids


@dataclass(frozen=True, kw_only=True)
class ScanSplit:
    """One split of an export: as many rows as ids, and five captions for each, or none."""

    name: str  # ours: val, not dev
    ids: Sequence[str]
    rows: Iterable[ForeignRow]
    captions: Sequence[str] = ()


def write_scan(splits: Iterable[ScanSplit], destination: Path, shape: ExportShape) -> None:
    """Splits -> a folder as SCAN's; fewer regions than R are padded with zeros, as there is no count."""
    with atomic_folder(destination) as folder:
        for split in splits:
            name = SPLIT_NAMES[split.name]
            with (folder / f"{name}_ims.npy").open("wb") as stream:
                _write_rows(stream, split.rows, (len(split.ids), shape.regions, shape.dim))
            _write_lines(folder / f"{name}_ids.txt", split.ids)
            if split.captions:
                _write_lines(folder / f"{name}_caps.txt", split.captions)


def _write_rows(stream: BinaryIO, rows: Iterable[ForeignRow], shape: tuple[int, int, int]) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    block = np.zeros(shape[1:], "<f4")  # (R, D)
    for row in rows:
        count = len(row.regions.features)
        block[:count] = row.regions.features
        block[count:] = 0
        stream.write(block.data)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{' '.join(line.split())}\n" for line in lines), encoding="utf-8")
