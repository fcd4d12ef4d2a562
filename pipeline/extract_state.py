"""A feature folder -> how its extraction was begun, and which units are done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MismatchError, VerificationError
from ..files import read_sealed, write_atomic, write_sealed
from .feature_index import check_compatible, finished_marker
from .feature_spec import FeatureSpec
from .plan import Unit

CONTROL_FOLDER = ".extraction"
STATE_FILE = "state.json"
NAME_FILES = {"class_names": "class_names.txt", "attribute_names": "attribute_names.txt"}


@dataclass(frozen=True, kw_only=True)
class ExtractState:
    """What was asked for and what the first worker said: a re-run needs no model to know what is done."""

    identity: Mapping[str, Any]  # of the options
    description: Mapping[str, Any]  # of the extractor
    fingerprint: str  # of the features

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": dict(self.identity),
            "description": dict(self.description),
            "fingerprint": self.fingerprint,
        }


def control_folder(folder: Path) -> Path:
    return folder / CONTROL_FOLDER


def read_state(folder: Path) -> ExtractState | None:
    """How the extraction was begun; None where it was not, or where that is no longer readable."""
    try:
        return ExtractState(**read_sealed(control_folder(folder) / STATE_FILE))
    except (FileNotFoundError, VerificationError, TypeError):
        return None


def write_state(folder: Path, state: ExtractState) -> None:
    write_sealed(control_folder(folder) / STATE_FILE, state.to_json())


def begin_extraction(
    folder: Path, state: ExtractState, *, spec: FeatureSpec, provenance: Mapping[str, Any]
) -> None:
    """Write the state, unless the folder holds features of another kind."""
    check_compatible(folder, spec=spec, provenance=provenance)
    for part, file in NAME_FILES.items():
        names = state.description[part]
        if names is not None:
            write_atomic(folder / file, "".join(f"{name}\n" for name in names).encode())
    write_state(folder, state)


def check_same_request(folder: Path, state: ExtractState, identity: Mapping[str, Any]) -> None:
    """Refuse to go on with other options than the extraction was begun with."""
    differences = [
        f"{name} {state.identity.get(name)!r}, not {identity[name]!r}"
        for name in identity
        if state.identity.get(name) != identity[name]
    ]
    if differences:
        raise MismatchError(
            f"{folder}: begun with {'; '.join(differences)}; choose another --name, or remove the folder"
        )


@dataclass(frozen=True, slots=True)
class FinishedUnit:
    """What the driver keeps of a marker; there may be many thousands."""

    fingerprint: str
    rows: int
    bytes: int
    reasons: tuple[str, ...]  # of its failures


def finished_units(folder: Path, units: Iterable[Unit], *, fingerprint: str) -> dict[str, FinishedUnit]:
    """Shard -> what came of it, for the units that are done."""
    finished = {}
    for unit in units:
        marker = finished_marker(folder, unit.shard, unit.fingerprint(fingerprint))
        if marker is not None:
            finished[unit.shard] = FinishedUnit(
                fingerprint=marker["fingerprint"],
                rows=marker["rows"],
                bytes=marker["bytes"],
                reasons=tuple(sys.intern(failure["reason"]) for failure in marker["failures"]),
            )
    return finished


def write_suspect(folder: Path, shard: str, image_id: int) -> None:
    """Name the image a careful worker is about to touch, for the driver to find if that kills the worker."""
    path = control_folder(folder) / "at" / shard
    path.parent.mkdir(exist_ok=True)
    path.write_text(str(image_id))


def read_suspect(folder: Path, shard: str) -> int | None:
    """The image a careful worker was at when it died."""
    try:
        return int((control_folder(folder) / "at" / shard).read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_names(folder: Path, part: str) -> list[str] | None:
    """The class_names or attribute_names of a feature set, where it has them."""
    try:
        text = (folder / NAME_FILES[part]).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return text.splitlines()
