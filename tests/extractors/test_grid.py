"""grid:<backbone>: cells that tile the picture, features that depend on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file
from torchvision import models

from camp.errors import InputError
from camp.extractors.build import build_extractor
from camp.extractors.extractor import Extractor, Photograph, RegionPolicy
from camp.extractors.grid import cell_boxes


def photograph(width: int, height: int, *, seed: int = 0) -> Photograph:
    return Photograph(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def grid() -> Extractor:
    return build_extractor("grid:resnet18", weights="random:3", short_side=192)


def features(extractor: Extractor, *photographs: Photograph) -> list[npt.NDArray[np.float32]]:
    prepared = [extractor.prepare(each) for each in photographs]
    regions = extractor.extract(prepared, [(each.width, each.height) for each in photographs])
    return [each.features for each in regions]


def test_cells_tile_the_picture() -> None:
    boxes = cell_boxes(100, 61, side=6)
    assert boxes.shape == (36, 4)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert np.allclose(areas.sum(), 6100)
    assert np.allclose(areas, areas[0])
    assert boxes[0].tolist() == pytest.approx([0, 0, 100 / 6, 61 / 6])
    assert boxes[35].tolist() == pytest.approx([500 / 6, 305 / 6, 100, 61])
    assert boxes[1, 0] > boxes[0, 0]  # row by row
    assert boxes[1, 1] == boxes[0, 1]


@pytest.mark.parametrize(
    ("width", "height", "shape"),
    [
        (640, 480, (192, 192)),
        (480, 960, (384, 192)),
        (1, 1, (192, 192)),
        (1, 5000, (384, 192)),
        (5000, 1, (192, 384)),
    ],
)
def test_every_size_gives_36_cells_in_original_pixels(
    grid: Extractor, width: int, height: int, shape: tuple[int, int]
) -> None:
    picture = photograph(width, height)
    prepared = grid.prepare(picture)
    assert prepared.shape[:2] == shape
    regions = grid.extract([prepared], [(width, height)])[0]
    assert regions.features.shape == (36, grid.dim) == (36, 512)
    assert regions.features.dtype == np.float32
    assert np.isfinite(regions.features.astype(np.float16)).all()
    assert (regions.width, regions.height) == (width, height)
    assert regions.boxes[-1, 2:].tolist() == [width, height]


def test_features_are_the_backbones_own(grid: Extractor) -> None:
    """The slow way: torchvision's forward up to layer4, then the mean of each cell in a loop."""
    picture = photograph(300, 300)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = models.resnet18(weights=None).eval()
    for block in model.modules():
        if isinstance(block, models.resnet.BasicBlock):
            torch.nn.init.constant_(block.bn2.weight, 0.2)
    image = torch.from_numpy(grid.prepare(picture).copy()).permute(2, 0, 1).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    image = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    seen: list[torch.Tensor] = []
    model.layer4.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.inference_mode():
        model(image[None])
    map_ = seen[0][0]  # (512, 6, 6): each cell is one position
    slow = np.stack([map_[:, i, j].numpy() for i in range(6) for j in range(6)])
    assert np.allclose(features(grid, picture)[0], slow, rtol=1e-4, atol=1e-5)


def test_neighbours_change_nothing(grid: Extractor) -> None:
    one, two, three = (photograph(200, 180, seed=seed) for seed in range(3))
    alone = features(grid, two)[0]
    assert np.array_equal(alone, features(grid, one, two, three)[1])
    assert not np.array_equal(alone, features(grid, one)[0])


def test_other_squares_and_refused_counts() -> None:
    policy = RegionPolicy(min_regions=49, max_regions=49)
    finer = build_extractor("grid:resnet18", weights="random:3", policy=policy, short_side=224)
    assert features(finer, photograph(50, 50))[0].shape == (49, 512)
    for low, high in ((10, 100), (35, 35)):
        with pytest.raises(InputError, match=f"{low} to {high} regions"):
            build_extractor(
                "grid:resnet18", weights="random:3", policy=RegionPolicy(min_regions=low, max_regions=high)
            )
    with pytest.raises(InputError, match="not regressed"):
        build_extractor("grid:resnet18", weights="random:3", policy=RegionPolicy(with_both_boxes=True))


@pytest.mark.parametrize("name", ["densenet121", "mobilenet_v3_small", "regnet_y_400mf"])
def test_other_families_have_a_map(name: str) -> None:
    extractor = build_extractor(f"grid:{name}", weights="random:0", short_side=192)
    assert features(extractor, photograph(30, 30))[0].shape == (36, extractor.dim)


def test_a_model_without_a_map_is_refused() -> None:
    with pytest.raises(InputError, match="shufflenet_v2_x0_5: this model has no feature map"):
        build_extractor("grid:shufflenet_v2_x0_5", weights="random:0")


def test_weights_from_files_whatever_their_head(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        state = models.resnet18(weights=None, num_classes=7).state_dict()
    torch.save({"state_dict": state}, tmp_path / "own.pth")
    save_file({k: v for k, v in state.items() if not k.startswith("fc.")}, tmp_path / "own.safetensors")
    picture = photograph(64, 64)
    results = []
    for name in ("own.pth", "own.safetensors"):
        extractor = build_extractor("grid:resnet18", weights=str(tmp_path / name), short_side=192)
        results.append(features(extractor, picture)[0])
        assert str(extractor.config["weights"]).startswith("sha256:")
    assert np.array_equal(results[0], results[1])


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = models.resnet18(weights=None).state_dict()
    del state["conv1.weight"]
    state["layer1.0.bn1.bias"] = torch.zeros(3)
    state["layer9.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(InputError) as caught:
        build_extractor("grid:resnet18", weights=str(tmp_path / "odd.pth"))
    message = str(caught.value)
    assert "1 missing (conv1.weight)" in message
    assert "1 unexpected (layer9.weight)" in message
    assert "1 of another shape (layer1.0.bn1.bias (3,) for (64,))" in message


def test_weights_are_never_random_by_accident() -> None:
    with pytest.raises(InputError, match="needs weights: --weights FILE"):
        build_extractor("grid:resnet18")
    with pytest.raises(InputError, match="torchvision publishes DEFAULT, IMAGENET1K_V1 for resnet18"):
        build_extractor("grid:resnet18", weights="IMAGENET22K")


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("not weights")
    torch.save([1, 2, 3], tmp_path / "list.pth")
    (tmp_path / "text.safetensors").write_text("not weights")
    for name in ("text.pth", "list.pth", "text.safetensors"):
        with pytest.raises(InputError, match=name):
            build_extractor("grid:resnet18", weights=str(tmp_path / name))
    with pytest.raises(InputError, match=r"gone\.pth: no such weight file"):
        build_extractor("grid:resnet18", weights=str(tmp_path / "gone.pth"))
