"""A config and weights -> a detectron2 model ready for use, and its way from boxes to features."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..files import fingerprint
from .proposals import ANCHOR_SIZES, CANDIDATES, PROPOSAL_IOU, PROPOSALS
from .state_dict import load_state
from .vg_detector import BoxPredictor, Sizes
from .vg_r101_c4 import MAX_SIZE, MIN_SIZE, PIXEL_MEAN
from .vg_weights import ANCHORS

_ANCHOR = re.compile(r"proposal_generator\.anchor_generator\.cell_anchors\.(\d+)")
_IGNORED = ("pixel_mean", "pixel_std")  # part of the config


def read_config(name: str) -> Any:
    """A .yaml file, or a name of detectron2's model zoo -> its config."""
    from detectron2 import model_zoo
    from detectron2.config import get_cfg

    path = name
    if not Path(name).is_file():
        try:
            path = model_zoo.get_config_file(name)
        except RuntimeError:
            raise InputError(
                f"detectron2:{name}: neither a .yaml file nor a config of detectron2's model zoo, "
                "such as COCO-Detection/faster_rcnn_R_50_C4_3x.yaml"
            ) from None
    if not str(path).endswith((".yaml", ".yml")):
        raise InputError(f"detectron2:{name}: expected a .yaml config; Python configs are code and not run")
    cfg = get_cfg()
    try:
        cfg.merge_from_file(path, allow_unsafe=False)  # plain YAML: no objects are constructed
    except Exception as error:  # yacs and yaml have a dozen ways to fail
        raise InputError(f"detectron2:{name}: not a readable config ({error})") from None
    return cfg


def vg_config() -> Any:
    """The config of the Visual Genome detector's public port."""
    from detectron2.config import get_cfg

    cfg = get_cfg()
    cfg.MODEL.PIXEL_MEAN = list(PIXEL_MEAN)
    cfg.MODEL.PIXEL_STD = [1.0, 1.0, 1.0]
    cfg.MODEL.MASK_ON = False
    cfg.MODEL.RESNETS.DEPTH = 101
    cfg.MODEL.ANCHOR_GENERATOR.SIZES = [list(ANCHOR_SIZES)]
    cfg.MODEL.RPN.CONV_DIMS = [Sizes().hidden]
    cfg.MODEL.RPN.PRE_NMS_TOPK_TEST = CANDIDATES
    cfg.MODEL.RPN.POST_NMS_TOPK_TEST = PROPOSALS
    cfg.MODEL.RPN.NMS_THRESH = PROPOSAL_IOU
    cfg.MODEL.ROI_HEADS.NAME = "Res5ROIHeads"
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = Sizes().classes
    cfg.MODEL.ROI_BOX_HEAD.POOLER_TYPE = "ROIPool"
    cfg.MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION = 14
    cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST = MIN_SIZE, MAX_SIZE
    return cfg


def vg_model(cfg: Any, state: Mapping[str, Tensor], *, source: str) -> tuple[Any, BoxPredictor | None]:
    """A config and weights in detectron2's layout -> the model with the port's changes, its attributes."""
    model = evaluated(cfg)
    # What the public port changed in detectron2 to be Caffe's network: the stem's pooling, and res5's stride.
    model.backbone.stem.forward = MethodType(_caffe_stem, model.backbone.stem)
    first = model.roi_heads.res5[0]
    first.conv1.stride = first.shortcut.stride = (1, 1)
    for block in model.roi_heads.res5:
        block.conv2.padding = block.conv2.dilation = (2, 2)
    box, attribute_names = "roi_heads.box_predictor.", ("cls_embedding.", "fc_attr.", "attr_score.")
    of_attributes = {
        name.removeprefix(box): value
        for name, value in state.items()
        if name.removeprefix(box).startswith(attribute_names)
    }
    load_detectron2(
        model,
        {name: value for name, value in state.items() if name.removeprefix(box) not in of_attributes},
        source=source,
    )
    if not of_attributes:
        return model, None
    sizes = Sizes()
    predictor = BoxPredictor(sizes.dim, classes=sizes.classes, attributes=sizes.attributes)
    shared = {
        name: state[box + name] for name in predictor.state_dict() if name.startswith(("cls_score", "bbox"))
    }
    load_state(predictor, {**shared, **of_attributes}, source=source)
    return model, predictor.to(cfg.MODEL.DEVICE).eval()


def _caffe_stem(stem: Any, image: Tensor) -> Tensor:
    return F.max_pool2d(F.relu_(stem.conv1(image)), 3, stride=2, padding=0, ceil_mode=True)


def load_detectron2(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Weights -> the model, all of them; anchors that came with the file replace the generated ones."""
    rest = {}
    for name, value in state.items():
        if match := _ANCHOR.fullmatch(name):
            anchors: Any = model.get_submodule(ANCHORS.rpartition(".")[0])
            anchors._buffers[match[1]] = value.to(next(model.parameters()).device)
        elif name not in _IGNORED:
            rest[name] = value
    load_state(model, rest, source=source)


def evaluated(cfg: Any) -> Any:
    from detectron2.modeling import build_model

    model = build_model(cfg).eval()
    for part in ("backbone", "proposal_generator", "roi_heads"):
        if getattr(model, part, None) is None:
            raise InputError(f"detectron2: {type(model).__name__} has no {part}; expected a Faster R-CNN")
    return model


def config_fingerprint(cfg: Any) -> str:
    """The config without where it runs -> a fingerprint."""
    copy = cfg.clone()
    copy.MODEL.DEVICE = copy.MODEL.WEIGHTS = copy.OUTPUT_DIR = ""
    return fingerprint(copy.dump())


def region_head(heads: Any) -> tuple[Callable[[Mapping[str, Tensor], Any], Tensor], int]:
    """RoI heads -> (feature maps and boxes -> their features, the features' length)."""
    from detectron2.modeling.roi_heads import CascadeROIHeads, Res5ROIHeads, StandardROIHeads

    if isinstance(heads, Res5ROIHeads):

        def through_res5(feature_maps: Mapping[str, Tensor], boxes: Any) -> Tensor:
            maps = [feature_maps[name] for name in heads.in_features]
            return heads._shared_roi_transform(maps, [boxes]).mean((2, 3))

        return through_res5, int(heads.box_predictor.cls_score.in_features)

    if isinstance(heads, StandardROIHeads) and not isinstance(heads, CascadeROIHeads):

        def through_box_head(feature_maps: Mapping[str, Tensor], boxes: Any) -> Tensor:
            maps = [feature_maps[name] for name in heads.box_in_features]
            return heads.box_head(heads.box_pooler(maps, [boxes])).flatten(1)

        return through_box_head, int(heads.box_predictor.cls_score.in_features)
    raise InputError(
        f"detectron2: {type(heads).__name__} is not supported; expected a Faster R-CNN with Res5ROIHeads "
        "(C4) or StandardROIHeads (FPN)"
    )
