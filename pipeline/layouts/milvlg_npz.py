"""MILVLG's folder of .npz, one an image <-> foreign rows.

Members: x (n, D) (some people hold (D, n)), bbox (n, 4), num_bbox, image_h, image_w and info, a pickled
dictionary of classes, attributes and their scores, of which only plain arrays are ever read. Class and
attribute ids are kept as they are written there.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...manifests.source import Findings
from ...pickles import load_npy
from ...progress import ProgressFactory, no_progress
from .arrays import make_regions, real_count
from .folders import atomic_folder, file_below
from .record import ExportShape, ForeignRow
from .source_files import find_files, name_without

_INFO = {
    "objects_id": "classes",
    "objects_conf": "class_scores",
    "attrs_id": "attributes",
    "attrs_conf": "attribute_scores",
}
_DAMAGED = (OSError, zipfile.BadZipFile, EOFError, ValueError, KeyError, NotImplementedError)


class NpzLayout:
    """A folder of .npz files."""

    has_boxes = True

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        self._paths = find_files(source, wanted=lambda name: name.endswith(".npz"), what=".npz files")
        root = source if source.is_dir() else source.parent
        self.findings = Findings()
        self.ids = [name_without(path, root=root, suffix=".npz") for path in self._paths]
        self._marks: list[str] = []
        self._counts: list[int] = []
        with progress("read headers", len(self._paths), "files") as bar:
            for path in self._paths:
                count, checks = _header(path)
                self._counts.append(count)
                self._marks.append(checks)
                bar.advance()

    def mark(self, row: int) -> str:
        return self._marks[row]

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._counts[row] for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        pass

    def read(self, row: int) -> ForeignRow:
        """A position -> the regions in that file."""
        path, where = self._paths[row], f"{self.ids[row]}.npz"
        try:
            with zipfile.ZipFile(path) as archive:
                names = set(archive.namelist())
                missing = {"x.npy", "bbox.npy"} - names
                if missing:
                    raise InputError(f"{where}: no {min(missing)[:-4]} in it, found {sorted(names)}")
                members = {
                    name: load_npy(archive.read(f"{name}.npy"), name=f"{where}: {name}")
                    for name in ("x", "bbox", "num_bbox", "image_w", "image_h")
                    if f"{name}.npy" in names
                }
                raw_info = archive.read("info.npy") if "info.npy" in names else None
        except InputError:
            raise
        except _DAMAGED as error:
            raise InputError(f"{where}: not a readable .npz ({error})") from None
        boxes = members["bbox"]
        features = _upright(members["x"], len(boxes), where=where)
        declared = int(members["num_bbox"]) if "num_bbox" in members else len(features)
        count = real_count(features, declared)
        info = {} if raw_info is None else self._info(raw_info, where)
        regions = make_regions(
            where,
            features=features[:count],
            boxes=boxes[:count],
            width=members.get("image_w", info.get("image_w")),
            height=members.get("image_h", info.get("image_h")),
            **{ours: np.asarray(info[theirs])[:count] for theirs, ours in _INFO.items() if theirs in info},
        )
        return ForeignRow(self.ids[row], regions)

    def _info(self, content: bytes, where: str) -> dict[str, Any]:
        try:
            info = load_npy(content, name=f"{where}: info").item()
        except (InputError, ValueError) as error:
            self.findings.note("info that is not plain data, left out", str(error))
            return {}
        return info if isinstance(info, dict) else {}

    def close(self) -> None:
        pass


def _header(path: Path) -> tuple[int, str]:
    """A file -> how many boxes it has, and its members' checksums; a damaged one says so when it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            with archive.open("bbox.npy") as stream:
                shape = _shape(stream)
            return shape[0], "-".join(f"{member.CRC:08x}" for member in archive.infolist())
    except (*_DAMAGED, IndexError):
        return 0, f"{path.stat().st_size} bytes, damaged"


def _shape(stream: Any) -> tuple[int, ...]:
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return header(stream)[0]


def _upright(features: npt.NDArray[Any], count: int, *, where: str) -> npt.NDArray[Any]:
    """(n, D) as it is; (D, n) turned."""
    if features.ndim == 2 and features.shape[0] != count and features.shape[1] == count:
        return features.T
    if features.ndim != 2 or features.shape[0] != count:
        raise InputError(f"{where}: x of shape {features.shape}, expected {count} rows as bbox has")
    return features


def write_npz(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    """Rows -> a folder of .npz, uncompressed (a third larger than zlib makes them, and 20 times faster)."""
    with atomic_folder(destination) as folder:
        for row in rows:
            regions = row.regions
            count = len(regions.features)
            members: dict[str, Any] = {
                "x": regions.features,
                "bbox": regions.boxes,
                "num_bbox": count,
                "image_h": regions.height,
                "image_w": regions.width,
            }
            columns = {theirs: getattr(regions, ours) for theirs, ours in _INFO.items()}
            info: dict[str, Any] = {
                "image_id": row.image_id,
                "image_h": regions.height,
                "image_w": regions.width,
                "num_boxes": count,
                **{name: values for name, values in columns.items() if values is not None},
            }
            buffer = io.BytesIO()
            np.savez(buffer, **members, info=np.array(info, dtype=object))
            file_below(folder, f"{row.image_id}.npz").write_bytes(buffer.getvalue())
