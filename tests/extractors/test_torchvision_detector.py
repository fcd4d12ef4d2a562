"""torchvision:<detector>: the numbers of torchvision's own forward pass, one image at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import models

from camp.errors import InputError
from camp.extractors.build import build_extractor
from camp.extractors.extractor import Extractor, Photograph, RegionPolicy

NAME = "fasterrcnn_mobilenet_v3_large_320_fpn"
BY_SCORE = RegionPolicy(select="score", with_labels=True, with_both_boxes=True)


def photograph(width: int, height: int, *, seed: int = 0) -> Photograph:
    return Photograph(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A detector of five classes with random weights, and its file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = models.get_model(
            NAME,
            weights=None,
            weights_backbone=None,
            num_classes=5,
            rpn_post_nms_top_n_test=60,
            rpn_score_thresh=0.0,
        )
    path = tmp_path_factory.mktemp("weights") / "own.pth"
    torch.save(model.state_dict(), path)
    return model.eval(), path


@pytest.fixture(scope="module")
def extractor(own_model: tuple[Any, Path]) -> Extractor:
    return build_extractor(
        f"torchvision:{NAME}",
        weights=str(own_model[1]),
        policy=BY_SCORE,
        proposals=60,
    )


def test_regions_are_those_of_torchvisions_own_pass(
    own_model: tuple[Any, Path], extractor: Extractor
) -> None:
    model, _ = own_model
    picture = photograph(200, 150)
    seen: dict[str, Any] = {}

    def keep(_module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        seen["features"], (seen["logits"], _) = inputs[0], output

    hook = model.roi_heads.box_predictor.register_forward_hook(keep)
    with torch.inference_mode():
        model([torch.from_numpy(picture.pixels.copy()).permute(2, 0, 1).float() / 255])
    hook.remove()
    scores = seen["logits"].softmax(1)[:, 1:]
    order = scores.amax(1).argsort(descending=True, stable=True)[:36]
    regions = extractor.extract([extractor.prepare(picture)], [(200, 150)])[0]
    assert extractor.dim == 1024
    assert np.allclose(regions.features, seen["features"][order].numpy(), rtol=1e-4, atol=1e-5)
    assert regions.classes is not None
    assert regions.class_scores is not None
    assert np.allclose(regions.class_scores, scores.amax(1)[order].numpy(), atol=1e-5)
    assert (regions.classes == scores.argmax(1)[order].numpy()).mean() > 0.9  # near ties may fall either way


def test_boxes_lie_in_the_original_picture(extractor: Extractor) -> None:
    regions = extractor.extract([extractor.prepare(photograph(300, 100))], [(300, 100)])[0]
    assert regions.regressed_boxes is not None
    for boxes in (regions.boxes, regions.regressed_boxes):
        assert boxes.dtype == np.float32
        assert (boxes[:, :2] <= boxes[:, 2:]).all()
        assert boxes.min() >= 0
        assert (boxes.max(0) <= [300, 100, 300, 100]).all()
        assert boxes[:, 2].max() > 200


def test_neighbours_change_nothing(extractor: Extractor) -> None:
    one, two = photograph(120, 90, seed=1), photograph(120, 90, seed=2)
    size = (120, 90)
    alone = extractor.extract([extractor.prepare(two)], [size])[0]
    together = extractor.extract([extractor.prepare(one), extractor.prepare(two)], [size, size])[1]
    assert np.array_equal(alone.features, together.features)
    assert np.array_equal(alone.boxes, together.boxes)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1)])
def test_extreme_shapes(extractor: Extractor, width: int, height: int) -> None:
    regions = extractor.extract([extractor.prepare(photograph(width, height))], [(width, height)])[0]
    assert len(regions.features) == len(regions.boxes) <= 36
    assert np.isfinite(regions.features).all()


def test_names_and_weights(extractor: Extractor) -> None:
    assert extractor.class_names is None  # five classes that nobody named
    assert str(extractor.config["weights"]).startswith("sha256:")
    coco = build_extractor(f"torchvision:{NAME}", weights="random:0")
    assert coco.class_names is not None
    assert coco.class_names[:2] == ("person", "bicycle")
    assert len(coco.class_names) == 90
    with pytest.raises(InputError, match="needs weights"):
        build_extractor(f"torchvision:{NAME}")


def test_models_without_region_heads_are_refused() -> None:
    with pytest.raises(InputError, match="ssd300_vgg16: has no regions.*fasterrcnn_resnet50_fpn_v2"):
        build_extractor("torchvision:ssd300_vgg16", weights="random:0")
    with pytest.raises(InputError, match="did you mean fasterrcnn_resnet50_fpn"):
        build_extractor("torchvision:fasterrcnn_resnet50", weights="random:0")


def test_a_damaged_file_is_listed(own_model: tuple[Any, Path], tmp_path: Path) -> None:
    state = torch.load(own_model[1], weights_only=True)
    state["roi_heads.box_head.fc6.weight"] = state["roi_heads.box_head.fc6.weight"][:, :100]
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(InputError, match=r"1 of another shape \(roi_heads.box_head.fc6.weight \(1024, 100\)"):
        build_extractor(f"torchvision:{NAME}", weights=str(tmp_path / "odd.pth"))
