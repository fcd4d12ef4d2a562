"""A scenes-tiny network and a seed -> how well it finds and names what is drawn in that seed's scenes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision.ops import batched_nms

from ..manifests.scenes.drawing import render
from ..manifests.scenes.scene import BACKGROUNDS, COLOURS, KINDS, SIZES, TEXTURES, Scene
from .average_precision import Found, Truth, mean_average_precision
from .scenes_tiny_net import ScenesTinyNet, network_size

_MIN_SCORE = 0.05
_NMS_IOU = 0.5
_COCO_IOUS = tuple(0.5 + 0.05 * step for step in range(10))


def score_net(net: ScenesTinyNet, scenes: Iterable[Scene]) -> dict[str, float]:
    """Held-out scenes -> AP of the boxes, and the share of right answers on the true boxes, in percent."""
    found: list[Found] = []
    truths: list[Truth] = []
    right: dict[str, list[bool]] = {"colours": [], "textures": [], "sizes": [], "settings": []}
    regions: list[int] = []
    with torch.inference_mode():
        for scene in scenes:
            grid = net.see(to_tensor(network_pixels(render(scene))))
            true_boxes, answers = truth_tensors(scene)
            boxes = net.propose(grid)[0][0]
            found.append(_detect(net, grid, boxes))
            truths.append(Truth(true_boxes.numpy(), answers["kinds"].numpy()))
            regions.append(len(boxes))
            said = net.predict(net.describe(grid, [true_boxes]))._asdict()
            for head, outcomes in right.items():
                outcomes += (said[head].argmax(1) == answers[head]).tolist()
    ap = [mean_average_precision(found, truths, iou=iou, classes=len(KINDS)) for iou in _COCO_IOUS]
    figures = {"AP@0.5": ap[0], "AP@[.5:.95]": float(np.mean(ap))}
    figures |= {f"{head} right": float(np.mean(outcomes)) for head, outcomes in right.items()}
    percent = {name: round(100 * value, 2) for name, value in figures.items()}
    return {"scenes": len(truths), "fewest proposals": min(regions), **percent}


def _detect(net: ScenesTinyNet, grid: Tensor, boxes: Tensor) -> Found:
    """One image's proposals -> its detections: tightened boxes after NMS per kind."""
    said = net.predict(net.describe(grid, [boxes]))
    scores = said.kinds.softmax(1)[:, :-1]  # (n, 16), without 'nothing'
    height, width = (int(side) * 8 for side in grid.shape[2:])
    tight = net.regress(said.deltas, boxes, height=height, width=width)
    rows, kinds = torch.nonzero(scores >= _MIN_SCORE, as_tuple=True)
    keep = batched_nms(tight[rows], scores[rows, kinds], kinds, _NMS_IOU)
    rows, kinds = rows[keep], kinds[keep]
    return Found(tight[rows].numpy(), kinds.numpy(), scores[rows, kinds].numpy())


def network_pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    """An RGB image -> (h, w, 3) in the nearest of the network's shapes."""
    size = network_size(*image.size)
    return np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BILINEAR))


def to_tensor(*pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Images of one shape -> (B, 3, h, w), 0..255."""
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float()


def truth_tensors(scene: Scene) -> tuple[Tensor, dict[str, Tensor]]:
    """A scene -> its true boxes in the network's pixels, (m, 4), and the right answer of each head, (m,)."""
    width, height = network_size(scene.width, scene.height)
    scale = torch.tensor([width / scene.width, height / scene.height] * 2)
    things = scene.things
    answers = {
        "kinds": [thing.label for thing in things],
        "colours": [COLOURS.index(thing.colour) for thing in things],
        "textures": [TEXTURES.index(thing.texture) for thing in things],
        "sizes": [SIZES.index(thing.size) for thing in things],
        "settings": [BACKGROUNDS.index(scene.background)] * len(things),
    }
    boxes = torch.tensor([thing.box for thing in things], dtype=torch.float32) * scale
    return boxes, {head: torch.tensor(values) for head, values in answers.items()}
