"""What the user wants extracted <-> JSON: what every worker gets, and what of it decides the output."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..errors import InputError
from ..extractors.build import find_module
from ..extractors.extractor import RegionPolicy
from ..files import checksum_file
from .feature_spec import FeatureSpec
from .plan import DEFAULT_SHARD_SIZE

DEFAULT_MODEL = "scenes-tiny"
DEVICES = ("auto", "cpu", "cuda")
_BUILDER = "camp.extractors.build:build_extractor"


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """How features are made. Paths are absolute, so that any process on any machine can use them."""

    kind: ClassVar[str] = "features"
    model: str = DEFAULT_MODEL
    weights: str | None = None  # a file, a URL or a name the model knows
    sha256: str | None = None
    policy: RegionPolicy = field(default_factory=lambda: RegionPolicy(with_labels=True))
    settings: Mapping[str, Any] = field(default_factory=dict)  # the model's own, such as min_size
    exif: bool = True
    max_pixels: int | None = None  # None: the decoder's own limit
    store: str = "arrow"
    dtype: str = "float16"
    short: str = "pad-zero"
    shard_size: int = DEFAULT_SHARD_SIZE
    device: str = "auto"
    compile: bool = False
    # One thread a worker and one worker a core: the same sums in the same order on every machine.
    threads: int = 1
    decoders: int | None = None  # None: two beside a GPU, else one, as there is a worker for every core
    batch: int = 8  # images of one shape that go through the network together
    image_seconds: float = 60.0  # reading and decoding one image
    builder: str = _BUILDER  # 'module:function' with build_extractor's signature

    def __post_init__(self) -> None:
        if self.builder == _BUILDER:
            find_module(self.model)  # a name nobody knows is refused before anything is made
        if self.device not in DEVICES:
            raise InputError(f"device {self.device!r}, expected one of {', '.join(DEVICES)}")
        for name in ("threads", "decoders", "batch", "shard_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, expected at least 1")
        if self.image_seconds <= 0:
            raise InputError(f"the time limit of an image is {self.image_seconds} s, expected more than 0")
        if not 1 <= self.policy.min_regions <= self.policy.max_regions:
            raise InputError(
                f"{self.policy.min_regions} to {self.policy.max_regions} regions; expected 1 <= MIN <= MAX"
            )

    @property
    def maker(self) -> str:
        """What must be the same on every machine, for messages."""
        return repr(self.model)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExtractOptions:
        return cls(**{**value, "policy": RegionPolicy(**value["policy"])})

    def identity(self) -> dict[str, Any]:
        """What decides the output, before any model is loaded; weight files by their content."""
        weights = self.weights
        if weights is not None and Path(weights).is_file():
            weights = checksum_file(Path(weights))
        return {
            "model": self.model,
            "weights": weights,
            "sha256": self.sha256,
            "policy": asdict(self.policy),
            "settings": dict(self.settings),
            "exif": self.exif,
            "max_pixels": self.max_pixels,
            "store": self.store,
            "dtype": self.dtype,
            "short": self.short,
            "shard_size": self.shard_size,
        }

    def feature_spec(self, description: Mapping[str, Any]) -> FeatureSpec:
        """With what a worker said about its extractor -> the columns of the shards."""
        columns: list[str] = []
        if self.policy.with_labels and description["class_names"] is not None:
            columns += ["classes", "class_scores"]
        if self.policy.with_labels and description["attribute_names"] is not None:
            columns += ["attributes", "attribute_scores"]
        if self.policy.with_both_boxes:
            columns += ["regressed_boxes"]
        return FeatureSpec(
            regions=self.policy.max_regions,
            dim=description["dim"],
            dtype=self.dtype,
            store=self.store,
            columns=tuple(columns),
            short=self.short,
        )


def default_name(model: str) -> str:
    """A model -> the name of its features: 'grid:resnet101' -> 'grid-resnet101'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "features"


def check_name(name: str) -> str:
    """A name for features -> the same, or an error: it becomes a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"features name {name!r}: expected letters, digits, '.', '_' and '-'")
    return name


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
