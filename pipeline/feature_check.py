"""A feature set and the manifest -> everything that is wrong with it, by shard and row, and its gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CampError, VerificationError
from ..files import checksum_file
from ..progress import ProgressFactory, no_progress
from .feature_index import (
    FAILURES_FILE,
    INDEX_FILE,
    FeatureIndex,
    companion_checksums,
    list_markers,
    marker_entry,
    marker_path,
    read_marker,
    sort_shards,
)
from .feature_spec import STORES, FeatureSpec, is_shard_name, parse_shard_name
from .finding import MAX_ROWS, Finding
from .shard_check import Problem, check_bytes, check_rows, check_schema
from .shard_reader import Shard

Ids = npt.NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)


@dataclass
class FeatureCheck:
    """What was found in one feature set."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)  # image ids neither in a shard nor among the failures
    shards: int = 0
    rows: int = 0
    bytes: int = 0

    def note(self, file: str, problem: str, *, row: int | None = None, image_id: int | None = None) -> None:
        path = f"features/{self.name}/{file}".rstrip("/")
        self.findings.append(Finding(path, problem, row, image_id))

    def note_all(self, file: str, problems: Iterable[Problem]) -> bool:
        """Note what is wrong with a shard -> whether anything was."""
        before = len(self.findings)
        for problem in problems:
            self.note(file, problem.text, row=problem.row, image_id=problem.image_id)
        return len(self.findings) > before


def check_features(
    folder: Path,
    *,
    images: Mapping[str, Ids] | None,  # split -> image ids of the manifest; None where it cannot be read
    progress: ProgressFactory = no_progress,
) -> FeatureCheck:
    """Every checksum, schema, id, number and box of a feature set, and whether images are missing."""
    check = FeatureCheck(folder.name)
    index = _open_index(folder, check)
    entries = _entries(folder, index, check)
    seen: dict[str, list[Ids]] = {}
    sizes = {shard: max(1, entry["bytes"] // 1_000_000) for shard, entry in entries.items()}
    with progress(f"verify {folder.name}", sum(sizes.values()), "MB") as bar:
        for shard, entry in entries.items():
            spec = _spec(entry, index, folder)
            ids = _check_shard(folder, entry, spec=spec, check=check)
            split, _ = parse_shard_name(shard)
            _check_split(ids, file=entry["file"], split=split, images=images, check=check)
            seen.setdefault(split, []).append(ids)
            bar.advance(sizes[shard])
            check.shards, check.bytes = check.shards + 1, check.bytes + entry["bytes"]
    failed = _check_failures(folder, index, check)
    if index is not None:
        _check_companions(folder, index, check)
    _check_once(seen, failed, check)
    if images is not None:
        _find_gaps(images, seen, failed, check)
    return check


def _open_index(folder: Path, check: FeatureCheck) -> FeatureIndex | None:
    try:
        return FeatureIndex.open(folder)
    except CampError as error:
        check.note(INDEX_FILE, str(error).removeprefix(f"{folder / INDEX_FILE}: "))
        return None


def _entries(folder: Path, index: FeatureIndex | None, check: FeatureCheck) -> dict[str, dict[str, Any]]:
    """Shard -> the fullest record of it, in index order; records that disagree are noted."""
    listed = {entry["shard"]: entry for entry in index.shards} if index else {}
    entries: dict[str, dict[str, Any]] = {}
    for shard in sort_shards({*listed, *list_markers(folder), *shards_on_disk(folder)}):
        file = marker_path(folder, shard).name
        try:
            marker = read_marker(folder, shard)
        except CampError as error:
            check.note(file, str(error).removeprefix(f"{folder / file}: "))
            marker = None
        else:
            if marker is None and shard in listed:
                check.note(file, "missing, but the index lists its shard; run 'camp-data verify --repair'")
            elif marker is None:
                check.note(shard, "no marker and not in the index: unfinished; run the command that makes it")
        if index is not None and marker is not None:
            if shard not in listed:
                check.note(file, "done, but not in the index; run the command that made it again")
            elif marker_entry(marker) != listed[shard]:
                check.note(file, "disagrees with the index; run 'camp-data verify --repair'")
            elif marker["spec"] != index.spec.to_json() or marker["provenance"] != index.provenance:
                check.note(file, "made in another way than the index says; extract it again")
        if marker is not None or shard in listed:
            entries[shard] = marker or listed[shard]
    return entries


def shards_on_disk(folder: Path) -> list[str]:
    """The names of all shard files of a folder, finished or not."""
    paths = [path for suffix in STORES.values() for path in folder.glob(f"*{suffix}")]
    return [path.stem for path in paths if is_shard_name(path.stem)]


def _spec(entry: Mapping[str, Any], index: FeatureIndex | None, folder: Path) -> FeatureSpec:
    if "spec" in entry:
        return FeatureSpec.from_json(entry["spec"], source=marker_path(folder, entry["shard"]))
    assert index is not None
    return index.spec


def _check_shard(folder: Path, entry: Mapping[str, Any], *, spec: FeatureSpec, check: FeatureCheck) -> Ids:
    """The ids in an intact shard; none where they cannot be trusted."""
    file = entry["file"]
    if check.note_all(file, check_bytes(folder, entry, spec=spec)):
        return _NO_IDS
    if check.note_all(file, check_schema(folder, entry, spec=spec)):
        return _NO_IDS
    shard = Shard(folder, entry, spec=spec)
    check.note_all(file, check_rows(shard))
    check.rows += shard.rows
    return np.array(shard.column("image_id"))


def _check_split(
    ids: Ids, *, file: str, split: str, images: Mapping[str, Ids] | None, check: FeatureCheck
) -> None:
    """Every row's image must be one of the manifest's, in the shard's split."""
    if images is None:
        return
    strange = np.flatnonzero(~np.isin(ids, images.get(split, _NO_IDS)))
    if len(strange) > MAX_ROWS:
        check.note(file, f"{len(strange):,} rows of images that are not of {split} in the manifest")
    for row in strange[:MAX_ROWS].tolist():
        image_id = int(ids[row])
        other = next((name for name, members in images.items() if image_id in members), None)
        problem = "not in the manifest" if other is None else f"belongs to {other}, not to {split}"
        check.note(file, problem, row=row, image_id=image_id)


def _check_failures(folder: Path, index: FeatureIndex | None, check: FeatureCheck) -> Ids:
    """The ids among the recorded failures; of the markers where there is no index."""
    from_markers = []
    for shard in list_markers(folder):
        try:
            marker = read_marker(folder, shard)
        except CampError:
            continue
        if marker is not None:
            from_markers += [failure["image_id"] for failure in marker["failures"]]
    ids = np.array(sorted(from_markers), np.int64)
    if index is None:
        return ids
    try:
        found = checksum_file(folder / FAILURES_FILE)
        if found != index.value["failures"]["checksum"]:
            raise VerificationError("checksum differs: damaged or replaced")
        table = index.failures()
    except FileNotFoundError:
        check.note(FAILURES_FILE, "missing, but the index records its checksum")
        return ids
    except CampError as error:
        check.note(FAILURES_FILE, str(error))
        return ids
    return np.array(table["image_id"].to_numpy(), np.int64)


def _check_companions(folder: Path, index: FeatureIndex, check: FeatureCheck) -> None:
    found = companion_checksums(folder)
    for file, checksum in index.value["companions"].items():
        if file not in found:
            check.note(file, "missing, but the index records its checksum")
        elif found[file] != checksum:
            check.note(file, "checksum differs: damaged or replaced")


def _check_once(seen: Mapping[str, list[Ids]], failed: Ids, check: FeatureCheck) -> None:
    """No image twice: not in two rows, and not in a row and among the failures."""
    rows = np.concatenate([_NO_IDS, *(ids for parts in seen.values() for ids in parts)])
    for what, ids in (("in more than one row", rows), ("recorded as failed more than once", failed)):
        values, counts = np.unique(ids, return_counts=True)
        for image_id in values[counts > 1].tolist():
            check.note("", what, image_id=image_id)
    for image_id in np.intersect1d(rows, failed).tolist():
        check.note("", f"in a row and in {FAILURES_FILE}", image_id=image_id)


def _find_gaps(
    images: Mapping[str, Ids],
    seen: Mapping[str, list[Ids]],
    failed: Ids,
    check: FeatureCheck,
) -> None:
    """Images of the splits that have shards, but with neither an intact row nor a reason."""
    for split, parts in seen.items():
        missing = np.setdiff1d(images.get(split, _NO_IDS), np.concatenate([*parts, failed]))
        if len(missing):
            check.gaps += missing.tolist()
            check.note(
                "",
                f"{len(missing):,} images of {split} neither in an intact shard nor in {FAILURES_FILE}, the "
                f"first is image {missing[0]}; run the command that makes the features again",
            )
