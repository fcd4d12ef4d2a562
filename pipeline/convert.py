"""A feature set -> the same rows in the other file format or another float type, shard by shard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError, VerificationError
from ..files import fingerprint, write_atomic
from ..manifests.dataset import Dataset
from ..progress import ProgressFactory, no_progress
from .feature_index import FeatureIndex, check_compatible, finalize, is_done
from .feature_spec import FeatureSpec
from .row_block import block_digest, content_checksum
from .shard_reader import Shard
from .shard_writer import ShardWriter


def converted_name(index: FeatureIndex, spec: FeatureSpec) -> str:
    """The default name of a conversion: what it came from and what changed."""
    changed = [
        now
        for now, before in ((spec.store, index.spec.store), (spec.dtype, index.spec.dtype))
        if now != before
    ]
    return "-".join([index.folder.name, *changed])


def convert_features(
    dataset: Dataset,
    *,
    features: str,
    store: str | None = None,
    dtype: str | None = None,
    name: str | None = None,  # of the new set; default: converted_name
    progress: ProgressFactory = no_progress,
) -> Path:
    """Write a second feature set beside the first -> its folder. Shards that are done stay as they are."""
    index = FeatureIndex.open(dataset.features_folder(features))
    spec = replace(index.spec, store=store or index.spec.store, dtype=dtype or index.spec.dtype)
    if spec == index.spec:
        raise InputError(
            f"{index.folder}: is {spec.store} {spec.dtype} already; choose another --store or --dtype"
        )
    folder = dataset.features_folder(name or converted_name(index, spec))
    if folder == index.folder:
        raise InputError(f"{folder}: cannot be converted into itself; choose another --name")
    provenance = _provenance(index)
    check_compatible(folder, spec=spec, provenance=provenance)
    failures = _failures_by_shard(index)
    with progress(f"convert {features}", sum(entry["rows"] for entry in index.shards), "rows") as bar:
        for entry in index.shards:
            unit = fingerprint({"from": entry["content"], "spec": spec.to_json()})
            if not is_done(folder, entry["shard"], unit):
                _convert_shard(
                    index,
                    entry,
                    folder=folder,
                    spec=spec,
                    unit=unit,
                    failures=failures,
                    provenance=provenance,
                )
            bar.advance(entry["rows"])
    for companion in index.value["companions"]:
        write_atomic(folder / companion, (index.folder / companion).read_bytes())
    finalize(
        folder,
        provenance=provenance,
        spec=spec,
        expected_shards=[entry["shard"] for entry in index.shards],
    )
    return folder


def _provenance(index: FeatureIndex) -> dict[str, Any]:
    """How the rows were made, and from which type they were converted; the first type counts."""
    origin = index.provenance.get("converted_from", {"dtype": index.spec.dtype})
    return {**index.provenance, "converted_from": origin}


def _failures_by_shard(index: FeatureIndex) -> dict[str, list[dict[str, Any]]]:
    by_shard: dict[str, list[dict[str, Any]]] = {}
    for failure in index.failures().to_pylist():
        by_shard.setdefault(failure["shard"], []).append(failure)
    return by_shard


def _convert_shard(
    index: FeatureIndex,
    entry: dict[str, Any],
    *,
    folder: Path,
    spec: FeatureSpec,
    unit: str,
    failures: dict[str, list[dict[str, Any]]],
    provenance: dict[str, Any],
) -> None:
    source = Shard(index.folder, entry, spec=index.spec)
    failed = failures.get(entry["shard"], [])
    digests = []
    with ShardWriter(
        folder,
        shard=entry["shard"],
        spec=spec,
        fingerprint=unit,
        capacity=source.rows + len(failed),
        provenance=provenance,
    ) as writer:
        for batch in source.batches():
            digests.append(block_digest(batch))
            writer.add_stored(batch)
        for failure in failed:
            writer.fail(failure["image_id"], failure["reason"])
        # Before the commit: a new checksum over damaged rows would make them look right.
        if content_checksum(digests) != entry["content"]:
            raise VerificationError(f"{source.path}: damaged; run 'camp-data verify' and extract it again")
        writer.commit()
