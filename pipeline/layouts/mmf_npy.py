"""mmf's folder of <name>.npy and <name>_info.npy <-> foreign rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...manifests.source import Findings
from ...pickles import load_npy
from ...progress import ProgressFactory, no_progress
from .folders import atomic_folder, file_below
from .mmf import info_from_regions, regions_from_info
from .record import ExportShape, ForeignRow
from .source_files import edges_digest, find_files, name_without

_EDGE_BYTES = 4096
_COMPANIONS = ("_info.npy", "_full.npy")  # beside the features of an image, not features themselves


class NpyLayout:
    """A folder of .npy files, one an image; without their _info.npy there are no boxes."""

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        found = find_files(source, wanted=lambda name: name.endswith(".npy"), what=".npy files")
        self._paths = [path for path in found if not path.name.endswith(_COMPANIONS)]
        if not self._paths:
            raise InputError(f"{source}: nothing but _info.npy files, expected <name>.npy beside each")
        root = source if source.is_dir() else source.parent
        self.findings = Findings()
        self.ids = [name_without(path, root=root, suffix=".npy") for path in self._paths]
        self.has_boxes = any(_info_path(path).exists() for path in self._paths)
        self._marks: list[str] = []
        self._counts: list[int] = []
        with progress("read headers", len(self._paths), "files") as bar:
            for path in self._paths:
                self._counts.append(_count(path))
                self._marks.append(edges_digest(path, edge_bytes=_EDGE_BYTES))
                bar.advance()

    def mark(self, row: int) -> str:
        return self._marks[row]

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._counts[row] for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        pass

    def read(self, row: int) -> ForeignRow:
        """A position -> the regions in that pair of files."""
        path, where = self._paths[row], f"{self.ids[row]}.npy"
        features = load_npy(path.read_bytes(), name=where)
        info = None
        if self.has_boxes:
            info_path = _info_path(path)
            try:
                info = _as_dict(load_npy(info_path.read_bytes(), name=info_path.name), name=info_path.name)
            except FileNotFoundError:
                raise InputError(f"{where}: no {info_path.name} beside it, as others have") from None
        return ForeignRow(self.ids[row], regions_from_info(where, features, info))

    def close(self) -> None:
        pass


def _info_path(path: Path) -> Path:
    return path.with_name(f"{path.name[: -len('.npy')]}_info.npy")


def _as_dict(value: Any, *, name: str) -> dict[str, Any]:
    """The 0-dimensional array of objects that numpy.save makes of a dictionary -> the dictionary."""
    if value.size != 1 or not isinstance(value.reshape(()).item(), dict):
        raise InputError(f"{name}: found an array of shape {value.shape}, expected one dictionary")
    found: dict[str, Any] = value.reshape(()).item()
    return found


def _count(path: Path) -> int:
    """Regions from the header alone; a damaged file says so when it is read."""
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                return np.lib.format.read_array_header_1_0(stream)[0][0]
            return np.lib.format.read_array_header_2_0(stream)[0][0]
    except (ValueError, IndexError, EOFError):
        return 0


def write_npy(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    """Rows -> a folder with two files an image."""
    with atomic_folder(destination) as folder:
        for row in rows:
            path = file_below(folder, f"{row.image_id}.npy")
            np.save(path, row.regions.features)
            np.save(_info_path(path), np.array(info_from_regions(row.image_id, row.regions), dtype=object))
