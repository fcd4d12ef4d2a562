"""Options -> a ready extractor, what is kept of it, and the fingerprint of the features it makes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..extractors.extractor import Extractor
from ..extractors.photograph import MAX_PIXELS
from ..files import fingerprint
from .extract_options import ExtractOptions


def choose_device(wanted: str) -> str:
    """auto | cpu | cuda -> cpu or cuda. A GPU that was asked for and is not there is an error."""
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise InputError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device; check nvidia-smi and the torch "
            "build, or use --device cpu"
        )
    return "cpu"


def build_from_options(options: ExtractOptions, *, device: str) -> Extractor:
    """Options -> the extractor they name."""
    module, _, function = options.builder.partition(":")
    builder = getattr(importlib.import_module(module), function)
    extractor: Extractor = builder(
        options.model,
        weights=options.weights,
        sha256=options.sha256,
        policy=options.policy,
        device=device,
        compile=options.compile,
        **options.settings,
    )
    return extractor


def describe(extractor: Extractor) -> dict[str, Any]:
    """An extractor -> what the plan and the index keep of it."""
    return {
        "config": dict(extractor.config),
        "dim": extractor.dim,
        "class_names": None if extractor.class_names is None else list(extractor.class_names),
        "attribute_names": None if extractor.attribute_names is None else list(extractor.attribute_names),
    }


def provenance(options: ExtractOptions, description: Mapping[str, Any]) -> dict[str, Any]:
    """How the features were made: the same for the whole set, kept in its index."""
    return {
        "extractor": dict(description["config"]),
        # The names themselves would be repeated in every marker; they have files of their own.
        "class_names": fingerprint(description["class_names"]),
        "attribute_names": fingerprint(description["attribute_names"]),
        "decoding": {"exif": options.exif, "max_pixels": options.max_pixels or MAX_PIXELS},
    }


def features_fingerprint(options: ExtractOptions, description: Mapping[str, Any]) -> str:
    """32 hex digits that change when the same image would get another row."""
    return fingerprint(
        {
            "provenance": provenance(options, description),
            "spec": options.feature_spec(description).to_json(),
        }
    )
