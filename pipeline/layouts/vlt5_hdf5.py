"""VL-T5's HDF5 <-> foreign rows: a group per image.

In it: features (n, D), boxes (n, 4), obj_id, obj_conf, attr_id, attr_conf (n), img_w and img_h.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import h5py
import numpy as np

from ...errors import InputError
from ...manifests.source import Findings
from ...progress import Bar, ProgressFactory, no_progress
from .arrays import make_regions
from .hdf5_file import atomic_hdf5, is_hdf5, open_hdf5
from .record import ExportShape, ForeignRow
from .source_files import edges_digest, find_files

_OPTIONAL = {
    "obj_id": "classes",
    "obj_conf": "class_scores",
    "attr_id": "attributes",
    "attr_conf": "attribute_scores",
}


class Vlt5Layout:
    """One HDF5 or a folder of them."""

    has_boxes = True

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        self._paths = find_files(source, wanted=is_hdf5, what=".h5 files", any_name=True)
        self.findings = Findings()
        self.ids: list[str] = []
        self._file: list[int] = []
        self._files = []
        self._seen: set[str] = set()
        try:
            with progress("list groups", None, "images") as bar:
                for path in self._paths:
                    self._files.append(open_hdf5(path))
                    self._collect(self._files[-1], bar)
            if not self.ids:
                found = sorted(self._files[0])[:5]
                raise InputError(f"{source}: no group with features found, but {found}; is --format right?")
        except BaseException:
            self.close()
            raise
        self._marks = [edges_digest(path) for path in self._paths]

    def _collect(self, group: h5py.Group, bar: Bar) -> None:
        """Note every group that holds features; ids with slashes are groups in groups."""
        for member in group.values():
            if not isinstance(member, h5py.Group):
                continue
            if "features" not in member:
                self._collect(member, bar)
                continue
            image_id = member.name.lstrip("/")
            bar.advance()
            if image_id in self._seen:
                self.findings.note("rows with an id seen before, left out", image_id)
                continue
            self._seen.add(image_id)
            self.ids.append(image_id)
            self._file.append(len(self._files) - 1)

    def mark(self, row: int) -> str:
        return f"{self._marks[self._file[row]]}:{self.ids[row]}"

    def max_regions(self, rows: Sequence[int]) -> int:
        return max((self._group(row)["features"].shape[0] for row in rows), default=0)

    def will_need(self, rows: Sequence[int]) -> None:
        pass

    def _group(self, row: int) -> h5py.Group:
        return self._files[self._file[row]][self.ids[row]]

    def read(self, row: int) -> ForeignRow:
        """A position -> the regions in that group."""
        where = f"{self._paths[self._file[row]].name}: {self.ids[row]}"
        group = self._group(row)
        if "boxes" not in group:
            raise InputError(f"{where}: no boxes in this group, found {sorted(group)}")
        try:
            regions = make_regions(
                where,
                features=group["features"][:],
                boxes=group["boxes"][:],
                width=group["img_w"][()] if "img_w" in group else 0,
                height=group["img_h"][()] if "img_h" in group else 0,
                **{ours: group[theirs][:] for theirs, ours in _OPTIONAL.items() if theirs in group},
            )
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error})") from None
        return ForeignRow(self.ids[row], regions)

    def close(self) -> None:
        for file in self._files:
            file.close()


def write_vlt5(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    """Rows -> one HDF5."""
    with atomic_hdf5(destination) as file:
        for row in rows:
            regions = row.regions
            group = file.create_group(row.image_id)
            group["features"] = regions.features
            group["boxes"] = regions.boxes
            group["img_w"] = regions.width
            group["img_h"] = regions.height
            for theirs, ours in _OPTIONAL.items():
                values = getattr(regions, ours)
                if values is not None:
                    group[theirs] = values.astype(np.int64) if theirs.endswith("_id") else values
