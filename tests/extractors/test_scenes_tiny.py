"""scenes-tiny: the shipped weights find what is drawn, and a region depends on its own picture alone."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from camp.errors import InputError
from camp.extractors import train_scenes_tiny
from camp.extractors.build import build_extractor
from camp.extractors.extractor import Extractor, Photograph, RegionPolicy
from camp.extractors.scenes_tiny import WEIGHTS, load_net
from camp.extractors.scenes_tiny_net import DIM, ScenesTinyNet, fold, network_size
from camp.extractors.scenes_tiny_score import score_net, to_tensor
from camp.manifests.scenes.drawing import render
from camp.manifests.scenes.scene import COLOURS, KINDS, Scene, draw_scenes, sample_scene

POLICY = RegionPolicy(with_labels=True, with_both_boxes=True)
UNSEEN = 31_337  # a seed that neither trained nor measured the weights


def drawn(scene: Scene) -> Photograph:
    return Photograph(np.asarray(render(scene)))


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return build_extractor("scenes-tiny", policy=POLICY)


@pytest.fixture(scope="module")
def card() -> dict[str, object]:
    return dict(json.loads((resources.files("camp.extractors.weights") / "scenes_tiny.json").read_text()))


def test_the_shipped_weights_find_and_name_things() -> None:
    with resources.as_file(WEIGHTS) as path:
        figures = score_net(load_net(path), draw_scenes(UNSEEN, 20))
    assert figures["AP@0.5"] > 80
    assert figures["colours right"] > 95
    assert figures["textures right"] > 85
    assert figures["settings right"] > 95


def test_the_card_tells_of_these_weights(card: dict[str, object]) -> None:
    size = len(WEIGHTS.read_bytes())
    assert card["bytes"] == size < 8_000_000
    assert card["classes"] == list(KINDS)
    held_out = card["held_out"]
    assert isinstance(held_out, dict)
    assert held_out["seed"] != card["seed"]
    assert isinstance(card["seed"], int)
    assert card["seed"] >= 10_000  # the sample's own seed is 0
    assert held_out["AP@0.5"] > 80


def test_36_regions_with_boxes_classes_and_colours(extractor: Extractor) -> None:
    scene = sample_scene(UNSEEN, 3)
    picture = drawn(scene)
    regions = extractor.extract([extractor.prepare(picture)], [(picture.width, picture.height)])[0]
    assert regions.features.shape == (36, DIM) == (36, extractor.dim)
    assert (regions.features >= 0).all()
    assert regions.features.max() < 200  # far from float16's limit
    assert 0.1 < regions.features.mean() < 2
    assert (regions.boxes >= 0).all()
    assert (regions.boxes <= [scene.width, scene.height] * 2).all()
    assert regions.classes is not None
    assert regions.class_scores is not None
    assert regions.attributes is not None
    assert regions.regressed_boxes is not None
    assert extractor.class_names == KINDS
    assert extractor.attribute_names == COLOURS
    assert (np.diff(regions.class_scores[: len(scene.things)]) <= 0).all()
    for thing in scene.things:
        best = int(np.argmax([overlap(box, thing.box) for box in regions.regressed_boxes]))
        assert overlap(regions.regressed_boxes[best], thing.box) > 0.5
        assert COLOURS[regions.attributes[best]] == thing.colour


def overlap(a: np.ndarray[tuple[int], np.dtype[np.float32]], b: tuple[float, ...]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, float(width)) * max(0.0, float(height))
    return shared / (float((a[2] - a[0]) * (a[3] - a[1])) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def test_neighbours_and_repetition_change_nothing(extractor: Extractor) -> None:
    pictures = [drawn(sample_scene(UNSEEN, index)) for index in range(4)]
    prepared = [extractor.prepare(picture) for picture in pictures]
    sizes = [(picture.width, picture.height) for picture in pictures]
    alone = extractor.extract(prepared[1:2], sizes[1:2])[0]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        some = extractor.extract([prepared[i] for i in order], [sizes[i] for i in order])[order.index(1)]
        assert np.array_equal(alone.features, some.features)
        assert np.array_equal(alone.boxes, some.boxes)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1), (640, 480)])
def test_any_shape_gives_regions(extractor: Extractor, width: int, height: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    regions = extractor.extract([extractor.prepare(Photograph(pixels))], [(width, height)])[0]
    assert 1 <= len(regions.features) <= 36
    assert len(regions.features) == len(regions.boxes)
    assert np.isfinite(regions.features.astype(np.float16)).all()
    assert (regions.boxes <= [width, height] * 2).all()


@pytest.mark.parametrize(
    ("given", "expected"),
    [((500, 500), (224, 224)), ((640, 480), (288, 224)), ((480, 640), (224, 288)), ((300, 200), (336, 224))],
)
def test_pictures_are_brought_to_the_nearest_shape(given: tuple[int, int], expected: tuple[int, int]) -> None:
    assert network_size(*given) == expected


def test_folding_batch_norm_changes_no_feature() -> None:
    torch.manual_seed(0)
    net = ScenesTinyNet(norm=True)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(module.weight, 1, 0.2)
            torch.nn.init.normal_(module.bias)
    folded = ScenesTinyNet(norm=False)
    folded.load_state_dict(fold(net))
    boxes = [torch.tensor([[10.0, 20, 60, 90], [0, 0, 224, 224]])]
    image = to_tensor(np.random.default_rng(0).integers(0, 255, (224, 224, 3), dtype=np.uint8))
    with torch.inference_mode():
        expected, found = (each.eval().describe(each.see(image), boxes) for each in (net, folded))
    assert torch.allclose(expected, found, rtol=1e-3, atol=1e-4)


def test_a_short_training_is_seeded_and_ships_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_scenes_tiny, "HELD_OUT", 2)
    threads = torch.get_num_threads()
    for name in ("first", "second"):
        train_scenes_tiny.main(
            ["--out", str(tmp_path / name), "--seed", "77", "--steps", "2", "--threads", "1"]
        )
    torch.set_num_threads(threads)
    first, second = (
        (tmp_path / name / "scenes_tiny.safetensors").read_bytes() for name in ("first", "second")
    )
    assert first == second
    card = json.loads((tmp_path / "first" / "scenes_tiny.json").read_text())
    assert (card["seed"], card["held_out"]["seed"], card["held_out"]["scenes"]) == (77, 10_077, 2)
    assert card["command"].endswith("--seed 77 --steps 2")
    assert "step 1 of 2" in capsys.readouterr().err
    own = build_extractor("scenes-tiny", weights=str(tmp_path / "first" / "scenes_tiny.safetensors"))
    assert own.config["weights"] != build_extractor("scenes-tiny").config["weights"]


def test_weights_of_another_model_are_listed(tmp_path: Path) -> None:
    state = {
        name: tensor for name, tensor in ScenesTinyNet(norm=False).state_dict().items() if "heads" not in name
    }
    save_file(state, tmp_path / "headless.safetensors")
    with pytest.raises(InputError, match=r"headless.safetensors for scenes-tiny: .* 12 missing \(heads"):
        build_extractor("scenes-tiny", weights=str(tmp_path / "headless.safetensors"))


def test_real_photographs_give_36_regions(extractor: Extractor, shared_data: Path) -> None:
    for path in sorted((shared_data / "bottomup" / "images").glob("*.jpg"))[:3]:
        picture = Photograph(np.asarray(Image.open(path).convert("RGB")))
        regions = extractor.extract([extractor.prepare(picture)], [(picture.width, picture.height)])[0]
        assert regions.features.shape == (36, DIM)
