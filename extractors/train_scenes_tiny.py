"""Drawn scenes -> the weights and the card of scenes-tiny.

    python -m camp.extractors.train_scenes_tiny --out extractors/weights --seed 10000

The same seed, steps and threads give the same weights. Scenes of seed S train it, S + 10000 measure it.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.ops import box_iou

from ..files import canonical_json, write_atomic
from ..manifests.scenes.drawing import render
from ..manifests.scenes.scene import BACKGROUNDS, BLOCK, KINDS, Scene, draw_scenes, sample_scene
from .scenes_tiny_net import BOX_CODER, DIM, ScenesTinyNet, fold
from .scenes_tiny_score import network_pixels, score_net, to_tensor, truth_tensors

BATCH = 4
STEPS = 2600
PEAK_RATE = 1e-3
WARM_UP = 100  # steps
REGIONS = 32  # sampled from each image
POSITIVE_IOU = 0.5
HELD_OUT_OFFSET = 10_000  # between the seeds that train and the seeds that measure
HELD_OUT = 300  # scenes
PROGRAM = "camp.extractors.train_scenes_tiny"
WEIGHTS_FILE, CARD_FILE = "scenes_tiny.safetensors", "scenes_tiny.json"
_NOTHING = len(KINDS)


def train(*, seed: int, steps: int = STEPS) -> ScenesTinyNet:
    """A seed -> a trained network, in evaluation mode."""
    torch.manual_seed(seed)
    net = ScenesTinyNet(norm=True).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=PEAK_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps=steps))
    started = time.monotonic()
    for step, (images, scenes) in zip(range(steps), batches(seed), strict=False):
        losses = training_losses(net, images, scenes)
        loss = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            parts = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print(f"step {step} of {steps}, {time.monotonic() - started:.0f} s: {parts}", file=sys.stderr)
    return net.eval()


def _rate(step: int, *, steps: int) -> float:
    """A straight warm-up, then half a cosine down to 1%."""
    warm = min(1.0, (step + 1) / WARM_UP)
    return warm * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2)


def batches(seed: int) -> Iterator[tuple[Tensor, list[Scene]]]:
    """A seed -> batches of same-shaped images without end; scenes wait for enough others of their shape."""
    waiting: dict[tuple[int, ...], list[tuple[npt.NDArray[np.uint8], Scene]]] = {}
    for index in count():
        if index % BLOCK in (1, 3):  # the partner of the scene before: a batch of few pictures learns worse
            continue
        scene = sample_scene(seed, index)
        pixels = network_pixels(_compressed(render(scene), rng=random.Random(f"jpeg/{seed}/{index}")))
        shelf = waiting.setdefault(pixels.shape, [])
        shelf.append((pixels, scene))
        if len(shelf) == BATCH:
            yield to_tensor(*(each for each, _ in shelf)), [each for _, each in shelf]
            shelf.clear()


def _compressed(image: Image.Image, *, rng: random.Random) -> Image.Image:
    """What a JPEG file leaves of it: the photographs to come are JPEGs of every quality."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=rng.randint(70, 97))
    return Image.open(stream).convert("RGB")


def training_losses(net: ScenesTinyNet, images: Tensor, scenes: Sequence[Scene]) -> dict[str, Tensor]:
    """A batch -> the losses of the RPN and of every head."""
    truths = [truth_tensors(scene) for scene in scenes]
    grid = net.see(images)
    proposals, losses = net.propose(grid, targets=[{"boxes": boxes} for boxes, _ in truths])
    boxes: list[Tensor] = []
    matched: list[Tensor] = []
    positive: list[Tensor] = []
    answers: dict[str, list[Tensor]] = {head: [] for head in truths[0][1]}
    for candidates, (true_boxes, true_answers) in zip(proposals, truths, strict=True):
        chosen, nearest, overlap = _sample_regions(torch.cat([candidates.detach(), true_boxes]), true_boxes)
        boxes.append(chosen)
        matched.append(true_boxes[nearest])
        positive.append(overlap >= POSITIVE_IOU)
        for head, values in true_answers.items():
            answers[head].append(values[nearest])
    said = net.predict(net.describe(grid, boxes))
    is_thing = torch.cat(positive)
    right = {head: torch.cat(values) for head, values in answers.items()}
    kinds = torch.where(is_thing, right["kinds"], _NOTHING)
    deltas = BOX_CODER.encode_single(torch.cat(matched)[is_thing], torch.cat(boxes)[is_thing])
    return {
        **losses,
        "kinds": F.cross_entropy(said.kinds, kinds),
        "colours": F.cross_entropy(said.colours[is_thing], right["colours"][is_thing]),
        "textures": F.cross_entropy(said.textures[is_thing], right["textures"][is_thing]),
        "sizes": 0.5 * F.cross_entropy(said.sizes[is_thing], right["sizes"][is_thing]),
        "settings": 0.5 * F.cross_entropy(said.settings, right["settings"]),
        "deltas": F.smooth_l1_loss(said.deltas[is_thing], deltas, beta=0.5),
    }


def _sample_regions(candidates: Tensor, true_boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Candidate boxes -> REGIONS of them, at most half on things; of each its nearest thing and overlap."""
    overlap, nearest = box_iou(candidates, true_boxes).max(1)
    order = torch.randperm(len(candidates))
    on_thing = overlap[order] >= POSITIVE_IOU
    things = order[on_thing][: REGIONS // 2]
    chosen = torch.cat([things, order[~on_thing][: REGIONS - len(things)]])
    return candidates[chosen], nearest[chosen], overlap[chosen]


def even_scale(net: ScenesTinyNet, scenes: Sequence[Scene], *, mean: float = 0.5) -> None:
    """Scale the features to a mean that float16 stores well, and the heads back: nothing else changes."""
    with torch.inference_mode():
        total = torch.stack(
            [
                net.describe(grid, net.propose(grid)[0]).mean()
                for scene in scenes
                for grid in [net.see(to_tensor(network_pixels(render(scene))))]
            ]
        )
    factor = mean / float(total.mean())
    with torch.no_grad():
        for parameter in net.feature.parameters():
            parameter.mul_(factor)
        for head in net.heads.values():
            head.weight.div_(factor)  # type: ignore[operator]


def publish(
    net: ScenesTinyNet, folder: Path, *, seed: int, steps: int, cpu_seconds: float
) -> dict[str, object]:
    """A trained network -> float16 weights without batch norm, and the card with their held-out figures."""
    from safetensors.torch import load, save

    content = save({name: tensor.half().contiguous() for name, tensor in fold(net).items()})
    shipped = ScenesTinyNet(norm=False).eval()
    shipped.load_state_dict({name: tensor.float() for name, tensor in load(content).items()})
    held_out = seed + HELD_OUT_OFFSET
    card: dict[str, object] = {
        "name": "scenes-tiny",
        "what": "a small Faster R-CNN for drawn scenes: 64 proposals, 2048-d regions",
        "command": f"python -m {PROGRAM} --out extractors/weights --seed {seed} --steps {steps}",
        "seed": seed,
        "steps": steps,
        "batch": BATCH,
        "dim": DIM,
        "parameters": sum(parameter.numel() for parameter in shipped.parameters()),
        "bytes": len(content),
        "training_cpu_minutes": round(cpu_seconds / 60, 1),  # of all threads together
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.partition("+")[0],
        "classes": list(KINDS),
        "settings": list(BACKGROUNDS),
        "held_out": {"seed": held_out, **score_net(shipped, draw_scenes(held_out, HELD_OUT))},
        "limits": "trained on drawings alone: on real photographs its boxes and classes mean little",
    }
    write_atomic(folder / WEIGHTS_FILE, content)
    write_atomic(folder / CARD_FILE, canonical_json(card))
    return card


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train scenes-tiny on drawn scenes and measure it on others."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights and the card")
    parser.add_argument("--seed", type=int, default=10_000, help="of the scenes and the first weights")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"batches of {BATCH} (default {STEPS})")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    net = train(seed=options.seed, steps=options.steps)
    even_scale(net, list(draw_scenes(options.seed, 20)))
    cpu_seconds = time.process_time()
    card = publish(net, options.out, seed=options.seed, steps=options.steps, cpu_seconds=cpu_seconds)
    sys.stdout.write(canonical_json(card).decode())


if __name__ == "__main__":
    main()
