"""A model's name and its weights -> a ready extractor.

Each module below has one function with this signature, imported only when its name is asked for:

    build(*, variant, weights, sha256, policy, device, compile, **options) -> Extractor

`variant` is what follows the colon of `grid:resnet101` ('' where there is none); `options` are the module's
own keywords, such as min_size, spelled out in its signature.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from ..errors import InputError
from .extractor import Extractor, RegionPolicy

EXTRACTORS = {
    "scenes-tiny": "scenes_tiny",
    "vg-r101-c4": "vg_r101_c4",
    "grid:<backbone>": "grid",
    "torchvision:<detector>": "torchvision_detector",
    "detectron2:<config>": "detectron2_backend",
}
_COMMON = {"variant", "weights", "sha256", "policy", "device", "compile"}


def build_extractor(
    model: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    policy: RegionPolicy | None = None,
    device: str = "cpu",
    compile: bool = False,
    **options: Any,
) -> Extractor:
    """A name such as 'scenes-tiny' or 'grid:resnet101' -> its extractor, in evaluation mode on the device.

    weights is a file, a URL (with its sha256) or a name the model knows; None takes what the package ships.
    """
    module, variant = find_module(model)
    build = importlib.import_module(f".{module}", __package__).build
    known = set(inspect.signature(build).parameters) - _COMMON
    unknown = sorted(set(options) - known)
    if unknown:
        there_are = ", ".join(sorted(known)) or "none of its own"
        raise InputError(f"{model}: no option {unknown[0]!r}; this model has {there_are}")
    extractor: Extractor = build(
        variant=variant,
        weights=weights,
        sha256=sha256,
        policy=policy or RegionPolicy(),
        device=device,
        compile=compile,
        **options,
    )
    return extractor


def find_module(model: str) -> tuple[str, str]:
    """A model's name -> (module, what follows the colon)."""
    family, colon, variant = model.partition(":")
    for name, module in EXTRACTORS.items():
        known, takes_variant, _ = name.partition(":")
        if family != known:
            continue
        if takes_variant and not variant:
            raise InputError(
                f"{model!r} names no model of that family; expected {name}, e.g. {_EXAMPLES[known]}"
            )
        if colon and not takes_variant:
            raise InputError(f"{model!r}: {known} has no variants; use {known!r}")
        return module, variant
    close = difflib.get_close_matches(
        family, [name.partition(":")[0] for name in EXTRACTORS], n=1, cutoff=0.5
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"no extractor {model!r}; there are {', '.join(EXTRACTORS)}{hint}")


_EXAMPLES = {
    "grid": "grid:resnet101",
    "torchvision": "torchvision:fasterrcnn_resnet50_fpn_v2",
    "detectron2": "detectron2:COCO-Detection/faster_rcnn_R_50_C4_3x.yaml",
}
