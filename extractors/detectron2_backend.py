"""A photograph -> regions through detectron2's own modules: any Faster R-CNN, the Visual Genome one included.

`detectron2:vg-r101-c4` runs the weights of vg-r101-c4 in the network their public port describes.
`detectron2:<config>` takes a name of detectron2's model zoo or a .yaml file. Features are those below the box
predictor: 2048 numbers of a C4 model, 1024 of an FPN model.

detectron2 is imported only here and only when asked for.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError, MissingPackageError
from ..schema import Regions
from .detections import Detections, choose_regions
from .detectron2_models import (
    config_fingerprint,
    evaluated,
    load_detectron2,
    read_config,
    region_head,
    vg_config,
    vg_model,
)
from .extractor import Extractor, Photograph, RegionPolicy
from .region_head import GPU_CHUNK
from .resizing import check_sizes, resize
from .vg_detector import PORTS, BoxPredictor, Sizes
from .vg_r101_c4 import NAME, read_names
from .vg_weights import canonical, random_state, read_tensors
from .weights_file import local_weights, sha256_file


class Detectron2:
    """A detectron2 GeneralizedRCNN in evaluation mode; one image at a time, so none depends on another."""

    def __init__(
        self,
        model: Any,
        cfg: Any,
        *,
        policy: RegionPolicy,
        chunk: int = GPU_CHUNK,
        attributes: BoxPredictor | None = None,
        class_names: Sequence[str] | None = None,
        attribute_names: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._model, self._policy, self._chunk = model, policy, chunk
        self._attributes = attributes
        self._class_names, self._attribute_names = class_names, attribute_names
        self._min_size, self._max_size = int(cfg.INPUT.MIN_SIZE_TEST), int(cfg.INPUT.MAX_SIZE_TEST)
        check_sizes(self._min_size, self._max_size)
        self._bgr = str(cfg.INPUT.FORMAT) == "BGR"
        self._region_features, self._dim = region_head(model.roi_heads)
        self._config = {
            **(config or {}),
            "min_size": self._min_size,
            "max_size": self._max_size,
            "regions": asdict(policy),
        }

    @property
    def dim(self) -> int:
        return self._dim

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
        """Resize as detectron2 does, in the channel order the model expects: (H, W, 3)."""
        image = resize(photograph.pixels, min_size=self._min_size, max_size=self._max_size)
        return np.ascontiguousarray(image[:, :, ::-1] if self._bgr else image)

    def extract(
        self, prepared: Sequence[npt.NDArray[np.uint8]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        return [
            choose_regions(
                self.detect(pixels),
                self._policy,
                original=original,
                resized=(pixels.shape[1], pixels.shape[0]),
            )
            for pixels, original in zip(prepared, photographs, strict=True)
        ]

    def detect(self, pixels: npt.NDArray[np.uint8]) -> Detections:
        """A prepared image -> all its regions, none chosen yet."""
        from detectron2.structures import Boxes, Instances

        model = self._model
        with torch.inference_mode():
            image = torch.from_numpy(pixels.astype(np.float32).transpose(2, 0, 1))
            images = model.preprocess_image([{"image": image}])
            feature_maps = model.backbone(images.tensor)
            proposed, _ = model.proposal_generator(images, feature_maps, None)
            boxes = proposed[0].proposal_boxes.tensor
            parts = [boxes[start : start + self._chunk] for start in range(0, len(boxes), self._chunk)]
            features = torch.cat(
                [self._region_features(feature_maps, Boxes(part)) for part in parts]
                or [boxes.new_zeros(0, self._dim)]
            )
            predictor = model.roi_heads.box_predictor
            predictions = predictor(features)
            regions = Instances(images.image_sizes[0], proposal_boxes=Boxes(boxes))
            scores = predictor.predict_probs(predictions, [regions])[0][:, :-1]  # the background is last
            every = predictor.predict_boxes(predictions, [regions])[0].view(len(boxes), -1, 4)
            best = scores.argmax(1) if every.shape[1] > 1 else scores.new_zeros(len(boxes), dtype=torch.int64)
            regressed = Boxes(every[torch.arange(len(boxes), device=best.device), best])
            regressed.clip(images.image_sizes[0])
            attribute_scores = None
            if self._attributes is not None and self._policy.with_labels:
                attribute_scores = self._attributes.attribute_scores(features, predictions[0], or_none=False)
        return Detections(
            proposals=boxes,
            features=features,
            scores=scores,
            regressed=regressed.tensor,
            attribute_scores=attribute_scores,
        )


def build(
    *,
    variant: str,
    weights: str | None,
    sha256: str | None,
    policy: RegionPolicy,
    device: str,
    compile: bool,
    min_size: int | None = None,
    max_size: int | None = None,
    chunk: int = GPU_CHUNK,
    class_names: str | None = None,
    attribute_names: str | None = None,
) -> Extractor:
    """detectron2:<config> and a weight file -> the extractor."""
    if importlib.util.find_spec("detectron2") is None:
        raise MissingPackageError(
            f"detectron2:{variant} needs the package detectron2, which is not on PyPI; install it into this "
            "environment as https://detectron2.readthedocs.io/en/latest/tutorials/install.html says, or use "
            f"{NAME}, which needs nothing but torchvision"
        )
    if compile:
        raise InputError(f"--compile is not for detectron2:{variant}, whose modules run as they are")
    if weights is None:
        raise InputError(
            f"detectron2:{variant} needs weights: --weights FILE, --weights URL with --sha256, "
            "or --weights random:0 to try things out"
        )
    cfg = vg_config() if variant == NAME else read_config(variant)
    cfg.MODEL.DEVICE = device
    cfg.INPUT.MIN_SIZE_TEST = min_size or cfg.INPUT.MIN_SIZE_TEST
    cfg.INPUT.MAX_SIZE_TEST = max_size or cfg.INPUT.MAX_SIZE_TEST
    seed = re.fullmatch(r"random:(\d+)", weights)
    if variant == NAME:
        state, identity = _vg_state(weights, seed=seed, sha256=sha256)
        model, attributes = vg_model(cfg, state, source=weights)
    else:
        attributes = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed[1]) if seed else 0)
            model = evaluated(cfg)
        identity = weights
        if not seed:
            path = local_weights(weights, sha256=sha256)
            load_detectron2(model, read_tensors(path)[0], source=path.name)
            identity = f"sha256:{sha256_file(path)}"
    count = int(model.roi_heads.num_classes)
    attribute_count = Sizes().attributes if attributes is not None else 0
    return Detectron2(
        model,
        cfg,
        policy=policy,
        chunk=chunk,
        attributes=attributes,
        class_names=read_names(class_names, count=count, what="classes"),
        attribute_names=read_names(attribute_names, count=attribute_count, what="attributes"),
        config={
            "model": f"detectron2:{variant if variant == NAME else Path(variant).stem}",
            "weights": identity,
            "detectron2_config": config_fingerprint(cfg),
        },
    )


def _vg_state(
    weights: str, *, seed: re.Match[str] | None, sha256: str | None
) -> tuple[dict[str, Tensor], str]:
    if seed:
        return random_state(Sizes(), seed=int(seed[1])), weights
    path = local_weights(weights, sha256=sha256)
    state, port = canonical(*read_tensors(path), source=path.name)
    if PORTS[port] != PORTS["detectron2"]:
        raise InputError(
            f"{path.name}: weights of the {port} port, whose box arithmetic is not detectron2's; use {NAME}"
        )
    return state, f"sha256:{sha256_file(path)}"
