"""A photograph -> 2048-d regions by the small detector that comes with the package: no download, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from ..manifests.scenes.scene import COLOURS, KINDS
from ..schema import Regions
from .detections import Detections, choose_regions
from .extractor import Extractor, Photograph, RegionPolicy
from .scenes_tiny_net import DIM, LONG_SIDES, PROPOSALS, SHORT_SIDE, ScenesTinyNet
from .scenes_tiny_score import network_pixels, to_tensor
from .state_dict import load_state, read_state
from .weights_file import local_weights, sha256_file

WEIGHTS = resources.files(__package__) / "weights" / "scenes_tiny.safetensors"


class ScenesTiny:
    """The network with one way of choosing regions. Classes are kinds of things, attributes their colours."""

    def __init__(
        self, net: ScenesTinyNet, *, policy: RegionPolicy, device: str, weights: str, compile: bool = False
    ) -> None:
        self._policy, self._device = policy, torch.device(device)
        self._net = net.to(self._device).to(memory_format=torch.channels_last).eval()
        if compile:
            self._net.trunk = cast(nn.Sequential, torch.compile(self._net.trunk))
        self._config = {
            "model": "scenes-tiny",
            "weights": weights,
            "short_side": SHORT_SIDE,
            "long_sides": list(LONG_SIDES),
            "proposals": PROPOSALS,
            "select": policy.select,
            "boxes": policy.boxes,
            "regions": [policy.min_regions, policy.max_regions],
        }

    @property
    def dim(self) -> int:
        return DIM

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def class_names(self) -> Sequence[str]:
        return KINDS

    @property
    def attribute_names(self) -> Sequence[str]:
        return COLOURS

    def prepare(self, photograph: Photograph) -> npt.NDArray[np.uint8]:
        return network_pixels(Image.fromarray(photograph.pixels))

    def extract(
        self, prepared: Sequence[npt.NDArray[np.uint8]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        # One image at a time: convolutions pick their algorithm by batch size, and the last bits with it.
        return [self._regions(pixels, size) for pixels, size in zip(prepared, photographs, strict=True)]

    def _regions(self, pixels: npt.NDArray[np.uint8], original: tuple[int, int]) -> Regions:
        height, width = pixels.shape[:2]
        with torch.inference_mode():
            grid = self._net.see(to_tensor(pixels).to(self._device))
            proposals = self._net.propose(grid)[0][0]  # (R, 4)
            features = self._net.describe(grid, [proposals])  # (R, 2048)
            said = self._net.predict(features)
            found = Detections(
                proposals=proposals,
                features=features,
                scores=said.kinds.softmax(1)[:, :-1],  # (R, 16), without 'nothing'
                regressed=self._net.regress(said.deltas, proposals, height=height, width=width),
                attribute_scores=said.colours.softmax(1),  # (R, 10)
            )
            return choose_regions(found, self._policy, original=original, resized=(width, height))


def load_net(path: Path) -> ScenesTinyNet:
    """A safetensors file as train_scenes_tiny writes it -> the network, in evaluation mode."""
    net = ScenesTinyNet(norm=False)
    state = {name: tensor.float() for name, tensor in read_state(path).items()}
    load_state(net, state, source=f"{path.name} for scenes-tiny")
    return net.eval()


def build(
    *,
    variant: str,
    weights: str | None,
    sha256: str | None,
    policy: RegionPolicy,
    device: str,
    compile: bool,
) -> Extractor:
    """scenes-tiny -> its extractor, with the package's weights or others that train_scenes_tiny wrote."""
    with resources.as_file(WEIGHTS) as shipped:
        path = shipped if weights is None else local_weights(weights, sha256=sha256)
        return ScenesTiny(
            load_net(path),
            policy=policy,
            device=device,
            weights=f"sha256:{sha256_file(path)}",
            compile=compile,
        )
