"""A data set -> what each of its feature sets holds, for people and for --json."""

from __future__ import annotations

from typing import Any

from ..errors import CampError
from ..manifests.dataset import Dataset
from .feature_index import FeatureIndex, list_markers


def summarize_features(dataset: Dataset) -> list[dict[str, Any]]:
    """Every feature set: how it was made, its shape, type and store, rows by split, failures by reason."""
    folder = dataset.root / "features"
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [_summarize(dataset, name) for name in names]


def _summarize(dataset: Dataset, name: str) -> dict[str, Any]:
    folder = dataset.features_folder(name)
    try:
        index = FeatureIndex.open(folder)
    except CampError as error:
        return {"name": name, "finished": False, "shards": len(list_markers(folder)), "problem": str(error)}
    spec = index.spec
    return {
        "name": name,
        "finished": True,
        "extractor": index.provenance.get("extractor"),
        "regions": spec.regions,
        "dim": spec.dim,
        "dtype": spec.dtype,
        "store": spec.store,
        "columns": list(spec.columns),
        "boxes": spec.boxes,
        "shards": len(index.shards),
        "rows": {split: counts["rows"] for split, counts in index.splits.items()},
        "bytes": sum(entry["bytes"] for entry in index.shards),
        "failures": dict(index.value["failures"]["reasons"]),
        "provenance": dict(index.provenance),
    }
