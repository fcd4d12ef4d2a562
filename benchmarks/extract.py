"""Bottom-up features: vg-r101-c4 against itself without its shortcuts, and against detectron2 if installed.

All run the same random weights on the same image and must give the same features first. Ratios: detectron2,
detectron2_compile (where it is installed), eager, eager_compile (our network as written: norms apart, NCHW,
torchvision's roi_pool) and selection_loop (1,600 classes suppressed one after the other).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import REPEATS, Result, arguments, interleaved
from PIL import Image
from torch import Tensor
from torchvision.ops import nms

from camp.extractors.detections import Detections
from camp.extractors.extractor import RegionPolicy
from camp.extractors.selection import CLASS_IOU, best_kept_score
from camp.extractors.vg_detector import Sizes
from camp.extractors.vg_r101_c4 import VgR101C4
from camp.extractors.vg_weights import build_detector, random_state

Pixels = npt.NDArray[np.uint8]
Detect = Callable[[Pixels], Detections]
TOLERANCE = 1e-4  # of a feature's length


def main() -> None:
    options = arguments(__doc__ or "")
    result = Result("extract")
    # A small image and 64 regions, or the usual ones: the network behind the regions is most of the work.
    pixels, proposals = (picture(320, 240), 64) if options.quick else (picture(800, 600), 300)
    result.row(f"peak memory, 600x1000, {proposals} regions", peak_memory(proposals=proposals), "GB")
    selection(result)
    networks(result, pixels, proposals=proposals, compiled=not options.quick)
    result.finish(options.json)


def picture(width: int, height: int) -> Pixels:
    coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def networks(result: Result, pixels: Pixels, *, proposals: int, compiled: bool) -> None:
    state = random_state(Sizes(), seed=1)
    rivals: dict[str, Detect] = {
        "ours": ours(state, proposals=proposals, fast=True),
        "eager": ours(state, proposals=proposals, fast=False),
    }
    if compiled:
        rivals["compiled"] = ours(state, proposals=proposals, fast=True, compile=True)
    if importlib.util.find_spec("detectron2"):
        rivals["detectron2"] = through_detectron2(state, proposals=proposals)
    else:
        result.notes.append("detectron2 is not installed: compared with the unfused eager model alone")
    expected = rivals["eager"](pixels)
    for name, detect in rivals.items():
        error = disagreement(detect(pixels), expected)
        assert error < TOLERANCE, f"{name} differs by {error:.2g}"
        result.row(f"{name}: features differ by", error, "of their length")
    best = interleaved(  # warm already
        {name: lambda detect=detect: detect(pixels) for name, detect in rivals.items()},
        repeats=REPEATS,
        warm_up=0,
    )
    for name, seconds in best.items():
        result.row(f"{name}, {len(expected.proposals)} regions", 1 / seconds, "images/s")
    for peer in ("detectron2", "eager"):
        if peer in best:
            result.ratio(peer, best[peer] / best["ours"])
            if compiled:
                result.ratio(f"{peer}_compile", best[peer] / best["compiled"])


def ours(state: dict[str, Tensor], *, proposals: int, fast: bool, compile: bool = False) -> Detect:
    detector, _ = build_detector(state, source="random", proposals=proposals)
    if fast:
        detector.optimise(device=torch.device("cpu"), compile=compile)
    return VgR101C4(detector, policy=RegionPolicy()).detect


def through_detectron2(state: dict[str, Tensor], *, proposals: int) -> Detect:
    from camp.extractors.detectron2_backend import Detectron2
    from camp.extractors.detectron2_models import vg_config, vg_model

    warnings.filterwarnings("ignore")  # detectron2 uses what torch is about to drop
    cfg = vg_config()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.RPN.POST_NMS_TOPK_TEST = proposals
    model, _ = vg_model(cfg, state, source="random")
    return Detectron2(model, cfg, policy=RegionPolicy(), chunk=proposals).detect  # all at once, as it does


def disagreement(found: Detections, expected: Detections) -> float:
    """Of the same boxes; of two whose objectness is equal but for rounding, either may come first."""
    distance, row = torch.cdist(expected.proposals, found.proposals, p=float("inf")).min(1)
    assert float(distance.max()) < 1e-2, "not the same proposals"
    assert len(row.unique()) == len(found.proposals), "not the same proposals"
    error = (found.features[row] - expected.features).norm(dim=1) / expected.features.norm(dim=1)
    return float(error.max())


def selection(result: Result, *, regions: int = 300, classes: int = 1600) -> None:
    """Proposals in clusters, as they are around things, with scores that favour a few classes each."""
    generator = torch.Generator().manual_seed(0)
    things = 40
    which = torch.randint(0, things, (4 * regions,), generator=generator)
    size = torch.exp(torch.rand(things, 2, generator=generator) * 2 + 3.5)[which]
    centre = (torch.rand(things, 2, generator=generator) * torch.tensor([900.0, 500]))[which]
    centre = centre + 0.2 * size * torch.randn(size.shape, generator=generator)
    size = size * torch.exp(0.25 * torch.randn(size.shape, generator=generator))
    boxes = torch.cat([centre - size / 2, centre + size / 2], 1)
    kept = nms(boxes, torch.rand(len(boxes), generator=generator), 0.7)[:regions]
    boxes = boxes[kept]
    logits = 3 * torch.randn(things, classes, generator=generator)[which[kept]]
    logits = logits + torch.randn(logits.shape, generator=generator)
    scores = logits.softmax(1)

    def loop() -> Tensor:
        best = torch.zeros(len(boxes))
        for column in range(classes):
            of_class = scores[:, column]
            survivors = nms(boxes, of_class, CLASS_IOU)
            best[survivors] = torch.maximum(best[survivors], of_class[survivors])
        return best

    def at_once() -> Tensor:
        return best_kept_score(boxes, scores, iou=CLASS_IOU)

    assert torch.equal(at_once(), loop())
    best = interleaved({"at once": at_once, "loop": loop})
    for name, seconds in best.items():
        result.row(f"{len(boxes)} regions x {classes} classes, {name}", 1000 * seconds, "ms")
    result.ratio("selection_loop", best["loop"] / best["at once"])


def peak_memory(*, proposals: int) -> float:
    """A process of its own that loads the model and extracts one image -> the most it ever held, in GB."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    child = context.Process(target=_one_image, args=(queue, proposals))
    child.start()
    peak: float = queue.get()
    child.join()
    return peak


def _one_image(queue: Any, proposals: int) -> None:
    ours(random_state(Sizes(), seed=1), proposals=proposals, fast=True)(picture(1000, 600))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue.put(kilobytes / 1e6)


if __name__ == "__main__":
    main()
