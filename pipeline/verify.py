"""A data set on disk -> everything that is wrong with it; with repair, what can be rebuilt is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CampError, MismatchError, VerificationError
from ..files import checksum_file, read_sealed
from ..manifests.dataset import DATASET_FILE, Dataset
from ..manifests.manifest import Manifest
from ..progress import ProgressFactory, no_progress
from ..vocab.shelf import vocabulary_names
from ..vocab.vocabulary import Vocabulary
from .feature_check import FeatureCheck, check_features
from .finding import Finding
from .repair import Repair, repair_features
from .tokens import TokenReader

Ids = npt.NDArray[np.int64]


@dataclass
class Verification:
    """What was looked at and what was found."""

    dataset: str
    findings: list[Finding] = field(default_factory=list)
    features: list[FeatureCheck] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        return not self.findings and not any(check.findings for check in self.features)

    def all_findings(self) -> list[Finding]:
        return [*self.findings, *(finding for check in self.features for finding in check.findings)]

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "intact": self.intact,
            "features": {
                check.name: {
                    "shards": check.shards,
                    "rows": check.rows,
                    "bytes": check.bytes,
                    "gaps": check.gaps,
                }
                for check in self.features
            },
            "findings": [finding.to_json() for finding in self.all_findings()],
            "repairs": {
                repair.name: {
                    "markers": repair.markers,
                    "index": repair.index,
                    "extract_again": repair.extract_again,
                }
                for repair in self.repairs
            },
        }


def verify_dataset(
    root: Path | str,
    *,
    features: list[str] | None = None,  # feature sets by name; default: all
    repair: bool = False,
    progress: ProgressFactory = no_progress,
) -> Verification:
    """Check every part of a data set; repair=True first rebuilds markers and indexes from intact shards."""
    dataset = Dataset.open(root)
    result = Verification(str(dataset.root))
    images = _check_manifest(dataset, result)
    _check_words(dataset, result)
    for name in features if features is not None else _feature_sets(dataset.root):
        folder = dataset.features_folder(name)
        if not folder.is_dir():
            have = ", ".join(_feature_sets(dataset.root)) or "none"
            raise MismatchError(f"{dataset.root}: no features {name!r}; this data set has {have}")
        if repair:
            result.repairs.append(repair_features(folder, progress=progress))
        result.features.append(check_features(folder, images=images, progress=progress))
    return result


def _feature_sets(root: Path) -> list[str]:
    folder = root / "features"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _check_manifest(dataset: Dataset, result: Verification) -> dict[str, Ids] | None:
    """Checksums, ids and counts of the manifest; gives its image ids by split, or None if unreadable."""
    try:
        read_sealed(dataset.root / DATASET_FILE)
        for generation in dataset.generations:
            for part in ("images", "captions"):
                _check_recorded(dataset.root, generation[part], result, root=dataset.root)
        if result.findings:
            return None  # damaged Parquet must not be parsed: it may say anything
        images, captions = dataset.images, dataset.captions
    except CampError as error:
        result.findings.append(Finding(DATASET_FILE, _without(error, dataset.root / DATASET_FILE)))
        return None
    for table, name in ((images, "image_id"), (captions, "caption_id")):
        values, counts = np.unique(table[name].to_numpy(), return_counts=True)
        for value in values[counts > 1][:1].tolist():
            result.findings.append(Finding("manifest", f"{name} {value} more than once"))
    try:
        if Manifest(images=images, captions=captions).split_counts() != dataset.counts:
            result.findings.append(Finding(DATASET_FILE, "counts per split differ from the manifest's"))
    except VerificationError as error:
        result.findings.append(Finding("manifest", str(error)))
    return {
        split: np.array(images.filter(pc.equal(images["split"], split))["image_id"].to_numpy(), np.int64)
        for split in dataset.splits
    }


def _check_words(dataset: Dataset, result: Verification) -> None:
    """Vocabularies, their word vectors and tokens, each by what it records of itself."""
    root = dataset.root
    vocabularies = [dataset.vocab_file(name) for name in vocabulary_names(dataset)]
    checks: list[tuple[Path, Callable[[Path], object]]] = [
        *((path, Vocabulary.load) for path in vocabularies),
        *((path, _check_tokens) for path in sorted(root.glob("tokens/*/*.arrow"))),
    ]
    for path, check in checks:
        try:
            check(path)
        except (CampError, pa.ArrowException, ValueError) as error:
            result.findings.append(Finding(path.relative_to(root).as_posix(), _without(error, path)))
    for matrix in sorted(root.glob("vocab/*.npy")):
        notes = matrix.with_suffix(".json")
        try:
            record = {"file": matrix.name, "checksum": json.loads(notes.read_bytes())["checksum"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"not the description of {matrix.name} ({error!r}); build the vectors again"
            result.findings.append(Finding(notes.relative_to(root).as_posix(), problem))
            continue
        _check_recorded(matrix.parent, record, result, root=root)


def _check_tokens(path: Path) -> None:
    TokenReader(path).verify()


def _check_recorded(folder: Path, record: Mapping[str, Any], result: Verification, *, root: Path) -> None:
    """A file against the checksum that is recorded of it."""
    path = folder / record["file"]
    file = path.relative_to(root).as_posix()
    try:
        found = checksum_file(path)
    except OSError as error:
        result.findings.append(Finding(file, f"cannot be read ({error.strerror}), but it is recorded"))
        return
    if found != record["checksum"]:
        result.findings.append(Finding(file, "checksum differs: damaged or replaced"))


def _without(error: Exception, path: Path) -> str:
    """An error's text without the path that the finding names already."""
    return str(error).removeprefix(f"{path}: ")
