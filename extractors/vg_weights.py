"""A file of the Visual Genome detector, in any of its public forms -> a loaded VgDetector.

Three forms are in circulation. They hold the same network and differ in ways that shapes give away:

    pickle       {"model": {name: ndarray}}, as detectron2's tools write it; background last
    .pth         the port that keeps Caffe's conventions: two objectness channels an anchor, background first
    safetensors  what this module makes of either

Whatever comes in is brought into detectron2's layout once, and kept in the cache under the file's sha256.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import InputError, StorageError
from ..files import write_atomic
from ..pickles import load_pickle_file
from .proposals import PROPOSALS, caffe_cell_anchors, cell_anchors
from .state_dict import load_state, read_state
from .vg_detector import ANCHORS_PER_POSITION, PORTS, REGRESSION_WEIGHTS, Sizes, VgDetector
from .weights_file import cache_folder, sha256_file

logger = logging.getLogger(__name__)

ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
_CONVERSION = 1  # of the files in the cache
_RPN, _BOX = "proposal_generator.rpn_head", "roi_heads.box_predictor"
_IGNORED = ("pixel_mean", "pixel_std")  # the extractor knows them
_STATISTICS = {"running_mean": 0.0, "running_var": 1.0}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a detector's numbers depend on besides its weights' values."""

    weights: str  # sha256:... of the file as it was given, or random:SEED
    port: str  # a key of PORTS
    anchors: str  # "file" or "generated"


def load_vg_detector(
    path: Path, *, sizes: Sizes | None = None, proposals: int = PROPOSALS
) -> tuple[VgDetector, Origin]:
    """A weight file -> the detector and where it comes from; names that do not fit are one InputError."""
    sha256 = sha256_file(path)
    cached = cache_folder() / "vg-r101-c4" / f"{sha256}.v{_CONVERSION}.safetensors"
    found = _read_cached(cached)
    state, port = found or canonical(*read_tensors(path), source=path.name)
    detector, anchors = build_detector(state, port=port, source=path.name, sizes=sizes, proposals=proposals)
    if found is None and not _is_safetensors(path):
        _keep(cached, state, port=port)
    logger.info("%s: %s layout, anchors %s", path.name, port, anchors)
    return detector, Origin(weights=f"sha256:{sha256}", port=port, anchors=anchors)


def build_detector(
    state: Mapping[str, Tensor],
    *,
    port: str = "detectron2",
    source: str,
    sizes: Sizes | None = None,
    proposals: int = PROPOSALS,
) -> tuple[VgDetector, str]:
    """Weights in detectron2's layout -> the detector, and whether its anchors are the file's or generated."""
    sizes = sizes or Sizes()
    if not any(
        name.startswith((f"{_BOX}.cls_embedding", f"{_BOX}.fc_attr", f"{_BOX}.attr_")) for name in state
    ):
        sizes = replace(sizes, attributes=0)
    generated = cell_anchors() if port == "detectron2" else caffe_cell_anchors()
    anchors = state.get(ANCHORS)
    if anchors is not None and anchors.shape != generated.shape:
        raise InputError(f"{source}: {ANCHORS} is {tuple(anchors.shape)}, expected {tuple(generated.shape)}")
    if anchors is not None and not torch.allclose(anchors, generated, atol=1e-3):
        logger.warning(
            "%s: its anchors differ from the generated ones by up to %.3g pixels; using the file's. "
            "A stock detectron2 silently uses its own.",
            source,
            float((anchors - generated).abs().max()),
        )
    detector = VgDetector(
        sizes, anchors=generated if anchors is None else anchors, port=PORTS[port], proposals=proposals
    )
    load_state(detector, {name: value for name, value in state.items() if name != ANCHORS}, source=source)
    return detector.eval(), "generated" if anchors is None else "file"


def canonical(raw: Mapping[str, Tensor], port: str | None, *, source: str) -> tuple[dict[str, Tensor], str]:
    """Weights as a file has them, and its port where it says so -> detectron2's layout, and the port."""
    state = {
        name: value.float().contiguous()
        for name, value in raw.items()
        if name not in _IGNORED and not name.endswith("num_batches_tracked")
    }
    for name in [name for name in state if name.endswith(".norm.weight")]:
        for statistic, value in _STATISTICS.items():
            state.setdefault(name.removesuffix("weight") + statistic, torch.full_like(state[name], value))
    if port is not None:
        return state, port
    objectness = state.get(f"{_RPN}.objectness_logits.weight")
    if objectness is None:
        raise InputError(
            f"{source}: no {_RPN}.objectness_logits.weight among its {len(state)} names; expected the Visual "
            "Genome Faster R-CNN (faster_rcnn_from_caffe.pkl or bua-caffe-frcn-r101*.pth)"
        )
    if objectness.shape[0] == 2 * ANCHORS_PER_POSITION:
        return _from_milvlg(state), "milvlg"
    return state, "detectron2"


def _from_milvlg(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two-way objectness -> its logit; background first -> last; deltas of weight 1 -> of (10, 10, 5, 5)."""
    renamed = {"cls_embed": "cls_embedding", "attr_linear1": "fc_attr", "attr_linear2": "attr_score"}
    result = {}
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        parent, _, leaf = module.rpartition(".")
        if parent == _BOX:
            leaf = renamed.get(leaf, leaf)
            if leaf in ("cls_score", "cls_embedding", "attr_score"):
                value = value.roll(-1, 0)
            elif leaf == "bbox_pred":
                value = value[4:]
                scale = torch.tensor(REGRESSION_WEIGHTS).repeat(len(value) // 4)
                value = value * scale.view(-1, *[1] * (value.dim() - 1))
            name = f"{parent}.{leaf}.{kind}"
        elif module == f"{_RPN}.objectness_logits":
            background, thing = value.chunk(2)
            value = thing - background  # softmax over two is the sigmoid of their difference
        result[name] = value.contiguous()
    return result


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """Any of the three forms -> its tensors, and the port where the file names it."""
    with path.open("rb") as stream:
        head = stream.read(16)
    if _is_safetensors(path):
        try:
            with safe_open(path, framework="pt") as content:
                port = (content.metadata() or {}).get("port")
            return dict(load_file(path)), port if port in PORTS else None
        except SafetensorError as error:
            raise InputError(f"{path}: not a whole safetensors file ({error}); get it again") from None
    if head.startswith((b"PK", b"\x80\x02\x8a\x0al\xfc\x9c")):  # torch.save, new and old
        return read_state(path), None
    if not head.startswith(b"\x80"):
        raise InputError(f"{path}: neither a pickle, a torch checkpoint nor safetensors; check the file")
    content = load_pickle_file(path)
    model = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(model, dict) or not all(isinstance(value, np.ndarray) for value in model.values()):
        raise InputError(f"{path}: a pickle without a dictionary of arrays under 'model'; check the file")
    return {
        str(name).removeprefix("module."): torch.from_numpy(np.array(value)) for name, value in model.items()
    }, None


def _is_safetensors(path: Path) -> bool:
    """By content: eight bytes of length, then JSON."""
    with path.open("rb") as stream:
        head = stream.read(9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size


def _read_cached(path: Path) -> tuple[dict[str, Tensor], str] | None:
    if not path.is_file():
        return None
    try:
        state, port = read_tensors(path)
    except InputError:
        return None  # damaged: it is made again
    return (state, port) if port else None


def _keep(path: Path, state: Mapping[str, Tensor], *, port: str) -> None:
    try:
        write_atomic(path, save(dict(state), metadata={"port": port}))
    except (StorageError, OSError) as error:
        logger.info("the converted weights are not kept: %s", error)


def random_state(sizes: Sizes, *, seed: int) -> dict[str, Tensor]:
    """Seeded weights whose activations stay in range through 101 layers: for trials, tests and benchmarks."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in VgDetector(sizes).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in shapes.items()}


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if ".norm." in name:
        base, spread = {"weight": (_norm_gain(name), 0.1), "running_var": (1.0, 0.1)}.get(
            name.rpartition(".")[2], (0.0, 0.02)
        )
        return (base + (base or 1.0) * spread * noise).abs() if base else spread * noise
    if name.endswith("bias"):
        return 0.01 * noise
    fan_in = shape[1:].numel()
    gain = {"anchor_deltas": 0.01, "bbox_pred": 0.1, "objectness_logits": 1.0}.get(
        name.split(".")[-2], 2**0.5
    )
    return noise * gain / fan_in**0.5


def _norm_gain(name: str) -> float:
    """Small where branches are added, so that their sum does not grow from block to block."""
    return next(
        (gain for part, gain in (("stem", 0.01), ("conv3", 0.2), ("shortcut", 0.7)) if part in name), 1.0
    )
