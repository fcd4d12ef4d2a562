"""The HDF5 of the VQA projects <-> foreign rows.

With a fixed number of boxes: image_features (N, R, D), image_bb (N, R, 4), spatial_features (N, R, 6).
Adaptive: the regions of all images end to end, and pos_boxes (N, 2) with the first and the one past the last
of each. Which image a row is stands in a pickle beside it, `<name>_imgid2idx.pkl`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...files import write_atomic
from ...manifests.source import Findings
from ...pickles import load_pickle_file
from ...progress import ProgressFactory, no_progress
from ...schema import Regions
from .arrays import make_regions
from .hdf5_file import SUFFIXES, atomic_hdf5, is_hdf5, open_hdf5
from .record import ExportShape, ForeignRow
from .source_files import edges_digest, find_files


class VqaLayout:
    """One HDF5 or a folder of them, each with its pickle."""

    has_boxes = True

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        paths = find_files(source, wanted=is_hdf5, what=".hdf5 files", any_name=True)
        self.findings = Findings()
        self.ids: list[str] = []
        self._rows: list[tuple[int, int]] = []  # file, row in it
        self._files: list[_VqaFile] = []
        self._marks: list[str] = []
        seen: set[str] = set()
        try:
            for number, path in enumerate(paths):
                file = _VqaFile(path)
                self._files.append(file)
                self._marks.append(edges_digest(path))
                for image_id, row in file.index.items():
                    if image_id in seen:
                        self.findings.note("rows with an id seen before, left out", image_id)
                        continue
                    seen.add(image_id)
                    self.ids.append(image_id)
                    self._rows.append((number, row))
        except BaseException:
            self.close()
            raise

    def mark(self, row: int) -> str:
        file, inner = self._rows[row]
        return f"{self._marks[file]}:{inner}"

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._files[self._rows[row][0]].count(self._rows[row][1]) for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        pass

    def read(self, row: int) -> ForeignRow:
        """A position -> the image's regions."""
        file, inner = self._rows[row]
        return ForeignRow(self.ids[row], self._files[file].read(inner, self.ids[row]))

    def close(self) -> None:
        for file in self._files:
            file.close()


class _VqaFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_hdf5(path)
        try:
            for name in ("image_features", "image_bb"):
                if name not in self._file:
                    raise InputError(f"{path}: no {name} in it, found {sorted(self._file)}")
            self._features, self._boxes = self._file["image_features"], self._file["image_bb"]
            self._spatial = self._file.get("spatial_features")
            self._spans: npt.NDArray[np.int64] | None = None
            if "pos_boxes" in self._file:
                self._spans = self._file["pos_boxes"][:].astype(np.int64)  # (N, 2)
            dims = 2 if self._spans is not None else 3
            if self._features.ndim != dims or self._boxes.shape[:-1] != self._features.shape[:-1]:
                raise InputError(
                    f"{path}: image_features {self._features.shape} and image_bb {self._boxes.shape}, "
                    f"expected {'(all regions, D)' if dims == 2 else '(N, R, D)'} and the same with 4"
                )
            rows = len(self._features) if self._spans is None else len(self._spans)
            self.index = _read_index(path, rows=rows)
        except BaseException:
            self.close()
            raise

    def count(self, row: int) -> int:
        if self._spans is None:
            return int(self._features.shape[1])
        return int(self._spans[row, 1] - self._spans[row, 0])

    def read(self, row: int, image_id: str) -> Regions:
        where = f"{self._path.name}: image {image_id} (row {row})"
        part: Any = row
        if self._spans is not None:
            first, last = (int(bound) for bound in self._spans[row])
            if not 0 <= first < last <= len(self._features):
                raise InputError(f"{where}: regions {first} to {last} of {len(self._features)}")
            part = slice(first, last)
        try:
            features, boxes = self._features[part], self._boxes[part]
            spatial = None if self._spatial is None else self._spatial[part]
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error})") from None
        width, height = _image_size(boxes, spatial)
        return make_regions(where, features=features, boxes=boxes, width=width, height=height)

    def close(self) -> None:
        self._file.close()


def _read_index(path: Path, *, rows: int) -> dict[str, int]:
    """The pickle beside an HDF5 -> image id -> row, in the order of the rows."""
    pickled = _index_path(path)
    if not pickled.is_file():
        raise InputError(f"{path}: no {pickled.name} beside it, which says whose each row is")
    index = load_pickle_file(pickled)
    if not isinstance(index, dict):
        raise InputError(
            f"{pickled}: found a {type(index).__name__}, expected a dictionary of image id -> row"
        )
    found: dict[str, int] = {}
    for image_id, row in sorted(index.items(), key=lambda item: item[1]):
        if not isinstance(row, int | np.integer) or not 0 <= row < rows:
            raise InputError(f"{pickled}: image {image_id!r} is at row {row!r}, expected one of {rows:,}")
        found[str(image_id)] = int(row)
    return found


def _index_path(path: Path) -> Path:
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
    return path.with_name(f"{path.name.removesuffix(suffix)}_imgid2idx.pkl")


def _image_size(boxes: npt.NDArray[Any], spatial: npt.NDArray[Any] | None) -> tuple[int, int]:
    """No sizes here, but spatial_features are boxes divided by them: the largest gives the size back."""
    if spatial is None or spatial.ndim != 2 or spatial.shape[1] < 4:
        return 0, 0
    sides = []
    for column in (2, 3):  # x2 and y2
        best = int(np.argmax(spatial[:, column]))
        scaled = float(spatial[best, column])
        side = float(boxes[best, column]) / scaled if scaled > 0 else 0.0
        # float32 keeps 7 digits; anything that is not nearly whole is no pixel size.
        sides.append(round(side) if abs(side - round(side)) < 1e-2 else 0)
    return sides[0], sides[1]


def write_vqa(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    """Rows -> an HDF5 and its pickle; adaptive when images differ in their number of regions."""
    adaptive = shape.total_regions != shape.images * shape.regions
    outer = (shape.total_regions,) if adaptive else (shape.images, shape.regions)
    index: dict[int | str, int] = {}
    with atomic_hdf5(destination) as file:
        features = file.create_dataset("image_features", (*outer, shape.dim), "f4")
        boxes = file.create_dataset("image_bb", (*outer, 4), "f4")
        spatial = file.create_dataset("spatial_features", (*outer, 6), "f4")
        spans = file.create_dataset("pos_boxes", (shape.images, 2), "i4") if adaptive else None
        first = 0
        for number, row in enumerate(rows):
            last = first + len(row.regions.boxes)
            part = slice(first, last) if adaptive else number
            features[part] = row.regions.features
            boxes[part] = row.regions.boxes
            spatial[part] = _spatial(row)
            if spans is not None:
                spans[number] = (first, last)
            index[int(row.image_id) if row.image_id.isdecimal() else row.image_id] = number
            first = last
        # The pickle first: the HDF5 under its own name is the sign that both are there.
        write_atomic(_index_path(destination), pickle.dumps(index, protocol=2))


def _spatial(row: ForeignRow) -> npt.NDArray[np.float32]:
    """Corners, width and height of each box as shares of the image. (n, 4) -> (n, 6)"""
    regions = row.regions
    if not regions.width or not regions.height:
        raise InputError(
            f"image {row.image_id}: its size is unknown, which this layout needs; "
            "import the photographs with --images DIR, or choose another layout"
        )
    scaled = regions.boxes / np.array([regions.width, regions.height] * 2, np.float32)
    return np.concatenate([scaled, scaled[:, 2:] - scaled[:, :2]], axis=1)
