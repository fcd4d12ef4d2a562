"""A damaged feature set -> markers and an index of its intact shards, and a list of what to extract again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CampError, VerificationError
from ..files import canonical_json, checksum_file, sealed, write_sealed
from ..progress import ProgressFactory, no_progress
from ..schema import FEATURES_VERSION
from .feature_check import shards_on_disk
from .feature_index import (
    FAILURES_FILE,
    INDEX_FILE,
    FeatureIndex,
    finalize,
    list_markers,
    marker_entry,
    marker_path,
    read_marker,
    sort_shards,
)
from .feature_spec import FeatureSpec
from .row_block import content_checksum
from .shard_check import check_bytes, check_digests, check_schema
from .shard_file import locate, read_meta


@dataclass
class Repair:
    """What was done to one feature set."""

    name: str
    markers: list[str] = field(default_factory=list)  # shards whose marker was written again
    index: bool = False  # whether the index was
    extract_again: dict[str, str] = field(default_factory=dict)  # shard -> why

    @property
    def changed(self) -> bool:
        return self.index or bool(self.markers) or bool(self.extract_again)


def repair_features(folder: Path, *, progress: ProgressFactory = no_progress) -> Repair:
    """Trust nothing but bytes that are proven: by a marker, by the index, or by a shard's own digests.

    A shard that cannot be proven loses its marker, so that the command that made it makes it again; no shard
    file is deleted.
    """
    repair = Repair(folder.name)
    index = _intact_index(folder)
    listed = {entry["shard"]: entry for entry in index.shards} if index else {}
    failures = _intact_failures(folder, index)
    markers: dict[str, dict[str, Any]] = {}
    names = sort_shards({*listed, *list_markers(folder), *shards_on_disk(folder)})
    with progress(f"repair {folder.name}", len(names), "shards") as bar:
        for shard in names:
            try:
                marker = _proven_marker(folder, shard, listed=listed.get(shard), failures=failures)
            except CampError as error:
                marker_path(folder, shard).unlink(missing_ok=True)
                repair.extract_again[shard] = str(error).removeprefix(f"{folder}/")
            else:
                markers[shard] = marker
            bar.advance()
    _keep_one_kind(markers, index, repair, folder)
    for shard, marker in markers.items():
        content = sealed(marker)
        path = marker_path(folder, shard)
        if not path.exists() or path.read_bytes() != content:
            write_sealed(path, marker)
            repair.markers.append(shard)
    if markers:
        _rebuild_index(folder, markers, index, repair)
    return repair


def _intact_index(folder: Path) -> FeatureIndex | None:
    try:
        return FeatureIndex.open(folder)
    except CampError:
        return None


def _intact_failures(folder: Path, index: FeatureIndex | None) -> dict[str, list[dict[str, Any]]] | None:
    """Shard -> its failures, if failures.parquet is the one the index speaks of."""
    path = folder / FAILURES_FILE
    if index is None or not path.exists() or checksum_file(path) != index.value["failures"]["checksum"]:
        return None
    by_shard: dict[str, list[dict[str, Any]]] = {entry["shard"]: [] for entry in index.shards}
    for row in index.failures().to_pylist():
        by_shard[row.pop("shard")].append(row)
    return by_shard


def _proven_marker(
    folder: Path,
    shard: str,
    *,
    listed: Mapping[str, Any] | None,
    failures: Mapping[str, list[dict[str, Any]]] | None,
) -> dict[str, Any]:
    """The marker of an intact shard: as it is, or made again from the shard and the index."""
    try:
        marker = read_marker(folder, shard)
    except CampError:
        marker = None
    if marker is not None:
        spec = FeatureSpec.from_json(marker["spec"], source=marker_path(folder, shard))
        _require(check_bytes(folder, marker, spec=spec), marker["file"])
        _require(check_schema(folder, marker, spec=spec), marker["file"])
        return marker
    marker = _marker_from_file(folder, shard)
    if listed is not None:
        if marker["checksum"] != listed["checksum"]:
            raise VerificationError(f"{marker['file']}: checksum differs from the index")
        if failures is not None:
            marker["failures"] = failures[shard]
        if marker_entry(marker) != listed:
            raise VerificationError(f"{marker['file']}: the reasons of its failed images are lost")
    elif marker["rows"] != marker["capacity"]:
        raise VerificationError(f"{marker['file']}: the reasons of its failed images are lost")
    return marker


def _require(problems: list[Any], file: str) -> None:
    if problems:
        raise VerificationError(f"{file}: {problems[0].text}")


def _marker_from_file(folder: Path, shard: str) -> dict[str, Any]:
    """A shard file that describes itself, and whose rows fit its own digests -> its marker."""
    paths = [path for path in folder.glob(f"{shard}.*") if path.suffix in (".arrow", ".h5")]
    if len(paths) != 1:
        found = ", ".join(path.name for path in paths) or "no file"
        raise VerificationError(f"{shard}: {found}, expected one shard file")
    path = paths[0]
    meta = read_meta(path)
    spec = FeatureSpec.from_json(meta["spec"], source=path)
    layout, digests = locate(path, spec, sealed(meta))
    marker = {
        "schema_version": FEATURES_VERSION,
        "shard": shard,
        "file": path.name,
        "spec": spec.to_json(),
        "provenance": meta["provenance"],
        "fingerprint": meta["fingerprint"],
        "capacity": meta["capacity"],
        "rows": layout.rows,
        "bytes": path.stat().st_size,
        "checksum": checksum_file(path),
        "content": content_checksum(digests),
        "digests": digests,
        "layout": layout.to_json(),
        "failures": [],
        "stats": {},
    }
    if meta["shard"] != shard or not check_digests(folder, marker, spec=spec):
        raise VerificationError(f"{path.name}: its rows do not fit its digests")
    return marker


def _keep_one_kind(
    markers: dict[str, dict[str, Any]], index: FeatureIndex | None, repair: Repair, folder: Path
) -> None:
    """One index describes shards made in one way: the index's, else that of most of them."""

    def kind(marker: Mapping[str, Any]) -> bytes:
        return canonical_json([marker["spec"], marker["provenance"]])

    if not markers:
        return
    wanted = Counter(kind(marker) for marker in markers.values()).most_common(1)[0][0]
    if index is not None:
        wanted = canonical_json([index.spec.to_json(), index.provenance])
    for shard in [shard for shard, marker in markers.items() if kind(marker) != wanted]:
        repair.extract_again[shard] = f"{markers.pop(shard)['file']}: made in another way than the others"
        marker_path(folder, shard).unlink(missing_ok=True)


def _rebuild_index(
    folder: Path, markers: Mapping[str, Mapping[str, Any]], index: FeatureIndex | None, repair: Repair
) -> None:
    first = next(iter(markers.values()))
    path = folder / INDEX_FILE
    before = path.read_bytes() if path.exists() else b""
    finalize(
        folder,
        provenance=first["provenance"],
        spec=FeatureSpec.from_json(first["spec"], source=folder),
        expected_shards=list(markers),
        # What an intact index says of its companions stays: a damaged one is not made right by recording it.
        companions=index.value["companions"] if index else None,
    )
    repair.index = path.read_bytes() != before
