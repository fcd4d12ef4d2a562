"""A photograph -> bottom-up features: 36 x 2048 from the Visual Genome detector, as the papers used them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError
from ..schema import Regions
from .detections import Detections, choose_regions
from .extractor import Extractor, Photograph, RegionPolicy
from .resizing import check_sizes, resize
from .vg_detector import Sizes, VgDetector
from .vg_weights import Origin, build_detector, load_vg_detector, random_state
from .weights_file import local_weights

NAME = "vg-r101-c4"
MIN_SIZE, MAX_SIZE = 600, 1000
PIXEL_MEAN = (102.9801, 115.9465, 122.7717)  # BGR
PRECISIONS = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


class VgR101C4:
    """Images go through one at a time: batching gains nothing here, and no bit depends on the neighbours."""

    def __init__(
        self,
        detector: VgDetector,
        *,
        policy: RegionPolicy,
        device: str = "cpu",
        precision: str = "float32",
        min_size: int = MIN_SIZE,
        max_size: int = MAX_SIZE,
        upscale: bool = True,
        class_names: Sequence[str] | None = None,
        attribute_names: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._detector, self._policy = detector, policy
        self._device, self._autocast = torch.device(device), PRECISIONS[precision]
        self._min_size, self._max_size, self._upscale = min_size, max_size, upscale
        self._class_names, self._attribute_names = class_names, attribute_names
        self._mean = torch.tensor(PIXEL_MEAN, device=self._device)
        self._config = {
            "model": NAME,
            **(config or {}),
            "proposals": detector.proposals,
            "pixel_mean_bgr": list(PIXEL_MEAN),
            "min_size": min_size,
            "max_size": max_size,
            "upscale": upscale,
            "precision": precision,
            "regions": asdict(policy),
        }

    @property
    def dim(self) -> int:
        return self._detector.sizes.dim

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def class_names(self) -> Sequence[str] | None:
        return self._class_names

    @property
    def attribute_names(self) -> Sequence[str] | None:
        return self._attribute_names

    def prepare(self, photograph: Photograph) -> npt.NDArray[np.uint8]:
        """Resize to the network's size and turn RGB into BGR: (H, W, 3)."""
        image = resize(
            photograph.pixels, min_size=self._min_size, max_size=self._max_size, upscale=self._upscale
        )
        return np.ascontiguousarray(image[:, :, ::-1])

    def extract(
        self, prepared: Sequence[npt.NDArray[np.uint8]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        regions = []
        for pixels, original in zip(prepared, photographs, strict=True):
            size = (pixels.shape[1], pixels.shape[0])
            scale = max(size) / max(original)
            found = self.detect(pixels, scale=scale)
            regions.append(choose_regions(found, self._policy, original=original, resized=size))
        return regions

    def detect(self, pixels: npt.NDArray[np.uint8], *, scale: float = 1.0) -> Detections:
        """A prepared image, and what it was resized by -> all its regions, none chosen yet."""
        with torch.inference_mode(), self._casting():
            return self._detector.detect(
                self._network_input(pixels), scale=scale, attributes=self._policy.with_labels
            )

    def _network_input(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        image = torch.from_numpy(pixels).to(self._device) - self._mean  # (H, W, 3), channels last as it is
        return image.permute(2, 0, 1)[None]  # (1, 3, H, W)

    def _casting(self) -> contextlib.AbstractContextManager[None]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)


def build(
    *,
    variant: str,
    weights: str | None,
    sha256: str | None,
    policy: RegionPolicy,
    device: str,
    compile: bool,
    min_size: int = MIN_SIZE,
    max_size: int = MAX_SIZE,
    upscale: bool = True,
    precision: str = "float32",
    chunk: int | None = None,
    class_names: str | None = None,
    attribute_names: str | None = None,
) -> Extractor:
    """A weight file in any of its public forms, or random:SEED for trials -> the extractor."""
    if weights is None:
        raise InputError(
            f"{NAME} needs weights: --weights FILE (faster_rcnn_from_caffe.pkl, bua-caffe-frcn-r101*.pth or "
            "safetensors), --weights URL with --sha256, or --weights random:0 to try things out"
        )
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if precision != "float32" and torch.device(device).type == "cpu":
        raise InputError(f"precision {precision} is for a GPU; on a CPU use float32")
    check_sizes(min_size, max_size)
    detector, origin = load_or_invent(weights, sha256=sha256)
    names = read_names(class_names, count=detector.sizes.classes, what="classes")
    attributes = read_names(attribute_names, count=detector.sizes.attributes, what="attributes")
    detector.optimise(device=torch.device(device), compile=compile, chunk=chunk)
    return VgR101C4(
        detector,
        policy=policy,
        device=device,
        precision=precision,
        min_size=min_size,
        max_size=max_size,
        upscale=upscale,
        class_names=names,
        attribute_names=attributes,
        config=origin_config(origin),
    )


def load_or_invent(weights: str, *, sha256: str | None) -> tuple[VgDetector, Origin]:
    """--weights -> the detector and its origin."""
    if match := re.fullmatch(r"random:(\d+)", weights):
        detector, anchors = build_detector(random_state(Sizes(), seed=int(match[1])), source=weights)
        return detector, Origin(weights=weights, port="detectron2", anchors=anchors)
    return load_vg_detector(local_weights(weights, sha256=sha256))


def origin_config(origin: Origin) -> dict[str, str]:
    """What the index remembers of the weights."""
    return {"weights": origin.weights, "port": origin.port, "anchors": origin.anchors}


def read_names(path: str | None, *, count: int, what: str) -> list[str] | None:
    """A file with one name a line -> the names; without a file their numbers; None where there are none."""
    if path is None:
        return [str(number) for number in range(count)] or None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a list of names ({error})") from None
    names = [line.strip() for line in lines if line.strip()]
    if len(names) != count:
        raise InputError(f"{path}: {len(names)} names, but the model has {count} {what}")
    return names
