"""The same weights through detectron2 and through our own network: the same regions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from camp.errors import InputError, MissingPackageError
from camp.extractors.build import build_extractor
from camp.extractors.detections import choose_regions
from camp.extractors.detectron2_backend import Detectron2
from camp.extractors.extractor import Photograph, RegionPolicy
from camp.extractors.resizing import resized
from camp.extractors.vg_r101_c4 import VgR101C4

INSTALLED = importlib.util.find_spec("detectron2") is not None
needs_detectron2 = pytest.mark.skipif(not INSTALLED, reason="detectron2 is not installed")
# detectron2 itself still uses what torch is about to drop.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.meshgrid.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pkg_resources.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*pkg_resources.*:DeprecationWarning"),
]
SMALL: dict[str, Any] = {"min_size": 128, "max_size": 214}


def photograph(width: int, height: int) -> Photograph:
    coarse = np.random.default_rng(4).integers(0, 256, (9, 12, 3), np.uint8)
    return Photograph(np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)))


def same_boxes(found: Tensor, expected: Tensor) -> Tensor:
    """The row of each expected box. Of two whose scores are equal but for rounding, either may come first."""
    assert found.shape == expected.shape
    distance, row = torch.cdist(expected, found, p=float("inf")).min(1)
    assert float(distance.max()) < 2e-3  # pixels: the rounding of another order of additions
    assert len(row.unique()) == len(found)  # type: ignore[no-untyped-call]
    moved = (row - torch.arange(len(row))).abs()
    assert int((moved > 0).sum()) < len(row) / 10
    return row


@pytest.fixture(scope="module")
def pair() -> tuple[VgR101C4, Detectron2]:
    policy = RegionPolicy(with_labels=True, with_both_boxes=True)
    ours = build_extractor("vg-r101-c4", weights="random:1", policy=policy, **SMALL)
    theirs = build_extractor("detectron2:vg-r101-c4", weights="random:1", policy=policy, **SMALL)
    assert isinstance(ours, VgR101C4)
    assert isinstance(theirs, Detectron2)
    return ours, theirs


@needs_detectron2
@pytest.mark.detectron2
@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(320, 240), (200, 300), (401, 199)])
def test_both_backends_see_the_same(pair: tuple[VgR101C4, Detectron2], width: int, height: int) -> None:
    ours, theirs = pair
    photo = photograph(width, height)
    prepared = ours.prepare(photo)
    np.testing.assert_array_equal(prepared, theirs.prepare(photo))
    found, expected = ours.detect(prepared), theirs.detect(prepared)
    assert len(found.proposals) > 100
    row = same_boxes(found.proposals, expected.proposals)
    error = (found.features[row] - expected.features).norm(dim=1) / expected.features.norm(dim=1)
    assert float(error.max()) < 1e-5  # the promise is 1e-4
    torch.testing.assert_close(found.scores[row], expected.scores, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(found.regressed[row], expected.regressed, rtol=0, atol=1e-2)
    assert found.attribute_scores is not None
    assert expected.attribute_scores is not None
    torch.testing.assert_close(found.attribute_scores[row], expected.attribute_scores, rtol=1e-3, atol=1e-7)


@needs_detectron2
@pytest.mark.detectron2
@pytest.mark.slow
def test_both_backends_choose_the_same(pair: tuple[VgR101C4, Detectron2]) -> None:
    ours, theirs = pair
    prepared = ours.prepare(photograph(300, 280))
    detected = ours.detect(prepared), theirs.detect(prepared)
    size = (prepared.shape[1], prepared.shape[0])
    for select in ("anderson", "maxnms", "score"):
        for least, most in ((36, 36), (10, 100)):
            policy = RegionPolicy(
                select=select, min_regions=least, max_regions=most, with_labels=True, with_both_boxes=True
            )
            found, expected = (
                choose_regions(one, policy, original=(300, 280), resized=size) for one in detected
            )
            row = same_boxes(torch.from_numpy(found.boxes), torch.from_numpy(expected.boxes)).numpy()
            np.testing.assert_allclose(found.features[row], expected.features, rtol=1e-4, atol=1e-5)
            assert found.classes is not None
            np.testing.assert_array_equal(found.classes[row], expected.classes)
            assert found.attributes is not None
            np.testing.assert_array_equal(found.attributes[row], expected.attributes)


@needs_detectron2
@pytest.mark.detectron2
def test_sizes_are_detectron2s_own() -> None:
    from detectron2.data.transforms import ResizeShortestEdge

    generator = np.random.default_rng(0)
    for width, height in generator.integers(17, 3000, (3000, 2)).tolist():
        if max(width, height) / min(width, height) > 60:
            continue  # where detectron2's sides shrink to nothing
        height_then, width_then = ResizeShortestEdge.get_output_shape(height, width, 600, 1000)
        assert resized(width, height, min_size=600, max_size=1000) == (width_then, height_then)


@needs_detectron2
@pytest.mark.detectron2
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "dim"),
    [
        ("COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml", 1024),
        ("COCO-Detection/faster_rcnn_R_50_C4_1x.yaml", 2048),
    ],
)
def test_any_faster_rcnn_of_the_zoo(config: str, dim: int, tmp_path: Path) -> None:
    model = build_extractor(
        f"detectron2:{config}",
        weights="random:0",
        policy=RegionPolicy(min_regions=4, max_regions=9, with_labels=True),
        min_size=96,
        max_size=160,
    )
    photo = photograph(200, 150)
    prepared = model.prepare(photo)
    (regions,) = model.extract([prepared], [(200, 150)])
    again, third = model.extract([prepared, prepared], [(200, 150)] * 2)
    assert regions.features.shape[1] == model.dim == dim
    assert 1 <= len(regions.features) <= 9  # random weights propose little
    assert regions.classes is not None
    np.testing.assert_array_equal(again.features, regions.features)
    np.testing.assert_array_equal(third.features, regions.features)
    # Its own weights through a file give the same model.
    assert isinstance(model, Detectron2)
    torch.save({"model": model._model.state_dict()}, tmp_path / "weights.pth")
    loaded = build_extractor(
        f"detectron2:{config}", weights=str(tmp_path / "weights.pth"), min_size=96, max_size=160
    )
    (same,) = loaded.extract([prepared], [(200, 150)])
    np.testing.assert_array_equal(same.features[0], regions.features[0])
    torch.save({"model": {"backbone.odd": torch.zeros(1)}}, tmp_path / "odd.pth")
    with pytest.raises(InputError, match=r"missing .*1 unexpected \(backbone.odd\)"):
        build_extractor(f"detectron2:{config}", weights=str(tmp_path / "odd.pth"))


@needs_detectron2
@pytest.mark.detectron2
def test_configs_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a .yaml file nor a config"):
        build_extractor("detectron2:COCO-Detection/slow_rcnn.yaml", weights="random:0")
    with pytest.raises(InputError, match="CascadeROIHeads is not supported"):
        build_extractor("detectron2:Misc/cascade_mask_rcnn_R_50_FPN_1x.yaml", weights="random:0")
    hostile = tmp_path / "hostile.yaml"
    hostile.write_text("MODEL: !!python/object/apply:os.mkdir [hostile-was-here]\n")
    with pytest.raises(InputError, match="not a readable config"):
        build_extractor(f"detectron2:{hostile}", weights="random:0")
    code = tmp_path / "config.py"
    code.write_text("raise SystemExit")
    with pytest.raises(InputError, match="expected a .yaml config"):
        build_extractor(f"detectron2:{code}", weights="random:0")
    with pytest.raises(InputError, match="needs weights"):
        build_extractor("detectron2:vg-r101-c4")
    with pytest.raises(InputError, match="--compile is not for detectron2"):
        build_extractor("detectron2:vg-r101-c4", weights="random:0", compile=True)


@pytest.mark.skipif(INSTALLED, reason="detectron2 is installed")
def test_without_detectron2_the_way_to_it_is_told() -> None:
    with pytest.raises(MissingPackageError, match=r"not on PyPI; install it .*or use vg-r101-c4"):
        build_extractor("detectron2:vg-r101-c4", weights="random:0")
