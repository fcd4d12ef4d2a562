"""A data set -> the facts `camp-data info` shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dataset import Dataset


def summarize_manifest(dataset: Dataset) -> dict[str, Any]:
    """Counts, captions per image, caption lengths, sizes, labels and findings, as JSON."""
    split_of = dataset.images["split"].to_numpy(zero_copy_only=False)
    captions_of = np.bincount(dataset.captions["image_id"].to_numpy(), minlength=len(split_of))
    splits: dict[str, Any] = {}
    for split, counts in dataset.counts.items():
        per_image = captions_of[split_of == split]
        splits[split] = {
            **counts,
            "captions_per_image": {
                "min": int(per_image.min()) if len(per_image) else 0,
                "mean": round(float(per_image.mean()), 2) if len(per_image) else 0.0,
                "max": int(per_image.max()) if len(per_image) else 0,
            },
        }
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "generations": [
            {
                "format": generation["source"]["format"],
                "source": generation["source"]["name"],
                "images": generation["images"]["rows"],
                "captions": generation["captions"]["rows"],
            }
            for generation in dataset.generations
        ],
        "splits": splits,
        "image_roots": dataset.header["image_roots"],
        "sizes_known": len(split_of) - dataset.images["width"].null_count,
        "labels": dataset.label_names,
        "findings": _merged_findings(dataset),
    }


def _merged_findings(dataset: Dataset) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for generation in dataset.generations:
        for kind, finding in generation["findings"].items():
            entry = merged.setdefault(kind, {"count": 0, "examples": []})
            entry["count"] += finding["count"]
            entry["examples"] += finding["examples"]
    return merged
