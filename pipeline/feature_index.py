"""The markers of finished shards -> failures.parquet and index.json, the truth about a feature set."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, MismatchError, VerificationError
from ..files import atomic_writer, canonical_json, checksum_file, fingerprint, read_sealed, write_sealed
from ..schema import FEATURES_VERSION
from .feature_spec import FeatureSpec, is_shard_name, parse_shard_name
from .leftovers import remove_leftovers

INDEX_FILE = "index.json"
FAILURES_FILE = "failures.parquet"
FAILURES_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
# What the index repeats of each marker; never a time, a host, a path or a number of attempts.
_SHARD_FIELDS = ("shard", "file", "fingerprint", "rows", "bytes", "checksum", "content", "layout")


def plain_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read back: tuples become lists."""
    return dict(json.loads(canonical_json(dict(value))))


def marker_path(folder: Path, shard: str) -> Path:
    return folder / f"{shard}.json"


def read_marker(folder: Path, shard: str) -> dict[str, Any] | None:
    """A shard's done marker, or None where there is none; damaged ones are an error."""
    path = marker_path(folder, shard)
    try:
        marker = read_sealed(path)
    except FileNotFoundError:
        return None
    _check_version(marker, path)
    return marker


def is_done(folder: Path, shard: str, fingerprint: str) -> bool:
    """Whether a shard is there, whole by its size, and was made for this fingerprint."""
    return finished_marker(folder, shard, fingerprint) is not None


def finished_marker(folder: Path, shard: str, fingerprint: str) -> dict[str, Any] | None:
    """The marker of a shard that is done in the sense above, else None."""
    try:
        marker = read_marker(folder, shard)
    except VerificationError:
        return None
    if marker is None or marker["fingerprint"] != fingerprint:
        return None
    try:
        whole = (folder / marker["file"]).stat().st_size == marker["bytes"]
    except FileNotFoundError:
        return None
    return marker if whole else None


def list_markers(folder: Path) -> list[str]:
    """The shards of a folder that have a marker, in index order."""
    return sort_shards(path.stem for path in folder.glob("*.json") if is_shard_name(path.stem))


def sort_shards(names: Iterable[str]) -> list[str]:
    """Shard names by split, then by number."""
    return sorted(names, key=parse_shard_name)


def check_compatible(folder: Path, *, spec: FeatureSpec, provenance: Mapping[str, Any]) -> None:
    """Refuse to put features of another kind into a folder that has some; call it before any work."""
    found = _description(folder)
    if found is None:
        return
    source, found_spec, found_provenance = found
    differences = found_spec.differences(spec)
    wanted = plain_json(provenance)
    for name in sorted(set(found_provenance) | set(wanted)):
        before, now = found_provenance.get(name), wanted.get(name)
        if before != now:
            differences.append(f"{name} {_short(before)}, not {_short(now)}")
    if differences:
        raise MismatchError(
            f"{source}: made with {'; '.join(differences)}; choose another --name, or remove {folder}"
        )


def _description(folder: Path) -> tuple[Path, FeatureSpec, dict[str, Any]] | None:
    """What a folder holds, by its index or else by any of its markers."""
    if (folder / INDEX_FILE).exists():
        index = FeatureIndex.open(folder)
        return folder / INDEX_FILE, index.spec, dict(index.provenance)
    for shard in list_markers(folder):
        path = marker_path(folder, shard)
        try:
            marker = read_sealed(path)
        except (VerificationError, FileNotFoundError):
            continue  # its shard will be made again
        _check_version(marker, path)
        return path, FeatureSpec.from_json(marker["spec"], source=path), marker["provenance"]
    return None


def _short(value: Any) -> str:
    text = canonical_json(value).decode().strip() if isinstance(value, (dict, list)) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def finalize(
    folder: Path,
    *,
    provenance: Mapping[str, Any],  # extractor, weights hash, selection, ...
    spec: FeatureSpec,
    expected_shards: Sequence[str],
    companions: Mapping[str, str] | None = None,  # text file beside the shards -> checksum; default: as found
) -> dict[str, Any]:
    """All markers -> failures.parquet, then index.json, last; the same bytes in whatever order shards ended.

    Shards of earlier generations belong into `expected_shards` too: the index lists them all.
    """
    remove_leftovers(folder)
    markers = []
    for shard in sort_shards(expected_shards):
        marker = read_marker(folder, shard)
        if marker is None:
            raise InputError(f"{folder}: shard {shard} is not done; run the same command again")
        _check_marker(marker, folder=folder, spec=spec, provenance=provenance)
        markers.append(marker)
    failures = [
        {"image_id": failure["image_id"], "shard": marker["shard"], "reason": failure["reason"]}
        for marker in markers
        for failure in marker["failures"]
    ]
    failures.sort(key=lambda failure: failure["image_id"])
    with atomic_writer(folder / FAILURES_FILE) as stream:
        pq.write_table(pa.Table.from_pylist(failures, schema=FAILURES_SCHEMA), stream, compression="zstd")
    index = {
        "schema_version": FEATURES_VERSION,
        "spec": spec.to_json(),
        "provenance": dict(provenance),
        "splits": _split_counts(markers),
        "failures": {
            "rows": len(failures),
            "checksum": checksum_file(folder / FAILURES_FILE),
            "reasons": dict(sorted(Counter(failure["reason"] for failure in failures).items())),
        },
        "companions": dict(companions) if companions is not None else companion_checksums(folder),
        "shards": [marker_entry(marker) for marker in markers],
    }
    write_sealed(folder / INDEX_FILE, index)
    return index


def marker_entry(marker: Mapping[str, Any]) -> dict[str, Any]:
    """A marker -> what the index says of its shard."""
    return {
        **{name: marker[name] for name in _SHARD_FIELDS},
        "status": {"done": marker["rows"], "failed": len(marker["failures"])},
    }


def companion_checksums(folder: Path) -> dict[str, str]:
    """The text files beside the shards (names of classes and attributes) -> their checksums."""
    return {path.name: checksum_file(path) for path in sorted(folder.glob("*.txt"))}


def _check_marker(
    marker: Mapping[str, Any], *, folder: Path, spec: FeatureSpec, provenance: Mapping[str, Any]
) -> None:
    path = marker_path(folder, marker["shard"])
    found = FeatureSpec.from_json(marker["spec"], source=path)
    if differences := found.differences(spec):
        raise MismatchError(f"{path}: made with {'; '.join(differences)}; extract this shard again")
    if marker["provenance"] != plain_json(provenance):
        raise MismatchError(f"{path}: made in another way than the other shards; extract this shard again")
    try:
        size = (folder / marker["file"]).stat().st_size
    except FileNotFoundError:
        size = -1
    if size != marker["bytes"]:
        found_bytes = "missing" if size < 0 else f"{size:,} bytes"
        raise VerificationError(
            f"{folder / marker['file']}: {found_bytes}, expected {marker['bytes']:,} bytes; "
            f"remove {path.name} and run the same command again"
        )


def _split_counts(markers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for marker in markers:
        split, _ = parse_shard_name(marker["shard"])
        entry = counts.setdefault(split, {"shards": 0, "rows": 0, "failed": 0})
        entry["shards"] += 1
        entry["rows"] += marker["rows"]
        entry["failed"] += len(marker["failures"])
    return counts


def _check_version(value: Mapping[str, Any], path: Path) -> None:
    version = value.get("schema_version")
    if version != FEATURES_VERSION:
        raise MismatchError(
            f"{path}: schema version {version}, expected {FEATURES_VERSION}; "
            "extract again or use the release that wrote it"
        )


@dataclass(frozen=True)
class FeatureIndex:
    """An opened index.json."""

    folder: Path
    value: Mapping[str, Any]
    spec: FeatureSpec

    @classmethod
    def open(cls, folder: Path) -> FeatureIndex:
        """A feature folder -> its index, or an error that says what to run."""
        path = folder / INDEX_FILE
        try:
            value = read_sealed(path)
        except FileNotFoundError:
            if not folder.is_dir():
                raise InputError(f"{folder}: no such feature set; make it with 'camp-data extract'") from None
            raise InputError(
                f"{folder}: no {INDEX_FILE}, the features are not finished; "
                "run the command that makes them again, or 'camp-data verify --repair'"
            ) from None
        except VerificationError as error:
            raise VerificationError(f"{error}; run 'camp-data verify --repair'") from None
        _check_version(value, path)
        return cls(folder=folder, value=value, spec=FeatureSpec.from_json(value["spec"], source=path))

    @property
    def provenance(self) -> Mapping[str, Any]:
        return dict(self.value["provenance"])

    @property
    def shards(self) -> list[dict[str, Any]]:
        """One entry per shard, by split, then by number."""
        return list(self.value["shards"])

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """Split -> shards, rows, failed."""
        return dict(self.value["splits"])

    @property
    def fingerprint(self) -> str:
        """Of the rows and how they were made: the same whether they are kept as Arrow or as HDF5."""
        spec = {name: value for name, value in self.spec.to_json().items() if name != "store"}
        return fingerprint([spec, [(entry["shard"], entry["content"]) for entry in self.shards]])

    def failures(self) -> pa.Table:
        """image_id, shard, reason of every image without a row, by image id."""
        path = self.folder / FAILURES_FILE
        try:
            return pq.read_table(path, schema=FAILURES_SCHEMA)
        except (OSError, pa.ArrowInvalid) as error:
            raise VerificationError(
                f"{path}: cannot be read ({error}); run 'camp-data verify --repair'"
            ) from None
