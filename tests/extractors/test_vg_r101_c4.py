"""vg-r101-c4 as an extractor: preparation, independence, what it tells and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from camp.errors import InputError
from camp.extractors.build import build_extractor
from camp.extractors.extractor import Photograph, RegionPolicy
from camp.extractors.photograph import read_photograph
from camp.extractors.resizing import resized
from camp.extractors.vg_detector import Sizes
from camp.extractors.vg_r101_c4 import PIXEL_MEAN, VgR101C4
from camp.extractors.vg_weights import build_detector, random_state


def photograph(width: int, height: int, *, seed: int = 0) -> Photograph:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    return Photograph(np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)))


def extractor(
    sizes: Sizes, *, policy: RegionPolicy | None = None, seed: int = 0, chunk: int = 16
) -> VgR101C4:
    detector, _ = build_detector(random_state(sizes, seed=seed), source="random", sizes=sizes, proposals=50)
    detector.optimise(device=torch.device("cpu"), chunk=chunk)
    return VgR101C4(detector, policy=policy or RegionPolicy(), min_size=96, max_size=160)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (640, 480, (800, 600)),
        (480, 640, (600, 800)),
        (500, 375, (800, 600)),
        (1000, 300, (1000, 300)),
        (300, 1001, (300, 1000)),
        (4000, 3000, (800, 600)),
        (600, 600, (600, 600)),
        (1, 1, (600, 600)),
        (5000, 1, (1000, 16)),  # would be 0.2 pixels high
        (1, 5000, (16, 1000)),
    ],
)
def test_sizes(width: int, height: int, expected: tuple[int, int]) -> None:
    assert resized(width, height, min_size=600, max_size=1000) == expected


def test_small_images_may_stay_small() -> None:
    assert resized(320, 240, min_size=500, max_size=800, upscale=False) == (320, 240)
    assert resized(1280, 960, min_size=500, max_size=800, upscale=False) == (667, 500)
    assert resized(3200, 960, min_size=500, max_size=800, upscale=False) == (800, 240)


def test_prepared_pixels_are_bgr_bytes_resized_by_pillow(small_sizes: Sizes) -> None:
    photo = photograph(70, 50)
    prepared = extractor(small_sizes).prepare(photo)
    by_hand = Image.fromarray(photo.pixels[:, :, ::-1].copy()).resize((134, 96), Image.Resampling.BILINEAR)
    assert prepared.dtype == np.uint8
    np.testing.assert_array_equal(prepared, np.asarray(by_hand))


def test_the_mean_is_taken_off_in_that_order(small_sizes: Sizes) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:] = (103, 116, 123)
    image = extractor(small_sizes)._network_input(pixels)
    expected = torch.tensor([103.0, 116, 123]) - torch.tensor(PIXEL_MEAN)
    torch.testing.assert_close(image[0, :, 3, 5], expected)
    assert image.shape == (1, 3, 16, 16)
    assert image.is_contiguous(memory_format=torch.channels_last)


def arrays(regions: object) -> dict[str, npt.NDArray[np.generic]]:
    names = (
        "boxes features classes class_scores attributes attribute_scores regressed_boxes".split()  # noqa: SIM905
    )
    return {name: getattr(regions, name) for name in names}


def test_no_bit_depends_on_the_neighbours(small_sizes: Sizes) -> None:
    policy = RegionPolicy(with_labels=True, with_both_boxes=True)
    model = extractor(small_sizes, policy=policy)
    photos = [photograph(160, 120, seed=seed) for seed in range(3)]
    prepared = [model.prepare(photo) for photo in photos]
    size = (160, 120)
    together = model.extract(prepared, [size] * 3)
    reversed_order = model.extract(prepared[::-1], [size] * 3)[::-1]
    for place in range(3):
        (alone,) = model.extract([prepared[place]], [size])
        for other in (together[place], reversed_order[place]):
            for name, value in arrays(alone).items():
                np.testing.assert_array_equal(value, arrays(other)[name], err_msg=name)


def test_regions_lie_in_the_original_image(small_sizes: Sizes) -> None:
    model = extractor(small_sizes, policy=RegionPolicy(with_labels=True, with_both_boxes=True))
    photo = photograph(333, 217)
    (regions,) = model.extract([model.prepare(photo)], [(333, 217)])
    assert regions.features.shape == (36, model.dim) == (36, 256)
    assert (regions.width, regions.height) == (333, 217)
    for boxes in (regions.boxes, regions.regressed_boxes):
        assert boxes is not None
        assert (boxes >= 0).all()
        assert (boxes <= np.array([333, 217, 333, 217])).all()
    assert (regions.boxes[:, 2:] > regions.boxes[:, :2]).all()
    assert regions.classes is not None
    assert regions.classes.max() < 30
    assert regions.attributes is not None
    assert regions.attributes.max() < 10


@pytest.mark.parametrize("select", ["anderson", "maxnms", "score"])
@pytest.mark.parametrize(("least", "most"), [(36, 36), (5, 12)])
def test_every_selection_keeps_the_numbers_asked_for(
    small_sizes: Sizes, select: str, least: int, most: int
) -> None:
    model = extractor(
        small_sizes, policy=RegionPolicy(select=select, min_regions=least, max_regions=most), seed=1
    )
    photo = photograph(160, 120)
    (regions,) = model.extract([model.prepare(photo)], [(160, 120)])
    assert len(regions.boxes) == len(regions.features)
    assert least <= len(regions.features) <= most


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1), (16, 900)])
def test_strange_shapes_still_have_regions(small_sizes: Sizes, width: int, height: int) -> None:
    model = extractor(small_sizes)
    photo = Photograph(np.full((height, width, 3), 90, np.uint8))
    (regions,) = model.extract([model.prepare(photo)], [(width, height)])
    assert len(regions.features) >= 1
    assert np.isfinite(regions.features).all()
    assert (regions.boxes <= np.array([width, height] * 2)).all()


def test_the_config_decides_the_output(small_sizes: Sizes) -> None:
    first = extractor(small_sizes).config
    assert json.loads(json.dumps(first)) == first
    assert first["model"] == "vg-r101-c4"
    assert first["min_size"] == 96
    other = extractor(small_sizes, policy=RegionPolicy(select="score")).config
    assert {key for key in first if first[key] != other[key]} == {"regions"}
    assert extractor(small_sizes, chunk=3).config == first  # how it is computed is not what is computed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs weights: --weights FILE"),
        ({"weights": "nowhere.pkl"}, "nowhere.pkl: no such weight file"),
        ({"weights": "random:0", "precision": "float8"}, "expected one of float32, float16, bfloat16"),
        ({"weights": "random:0", "precision": "float16"}, "float16 is for a GPU"),
        ({"weights": "random:0", "min_size": 800, "max_size": 600}, "min-size 800 and max-size 600"),
        ({"weights": "random:0", "min_size": 4}, "expected 16 <= min-size"),
        ({"weights": "random:0", "batch": 4}, "no option 'batch'"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_extractor("vg-r101-c4", **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_real_photographs_at_full_depth(shared_data: Path, tmp_path: Path) -> None:
    """The published sizes, random weights and small images: 101 layers stay in range."""
    names = shared_data / "bottomup" / "objects_vocab.txt"
    model = build_extractor(
        "vg-r101-c4",
        weights="random:0",
        policy=RegionPolicy(with_labels=True),
        min_size=96,
        max_size=160,
        class_names=str(names),
        attribute_names=str(shared_data / "bottomup" / "attributes_vocab.txt"),
    )
    assert model.dim == 2048
    assert model.class_names is not None
    assert len(model.class_names) == 1600
    assert model.attribute_names is not None
    assert len(model.attribute_names) == 400
    photos = sorted((shared_data / "bottomup" / "images").glob("*.jpg"))[:1]
    photos += sorted((shared_data / "coco-mini").rglob("*.jpg"))[:1]
    for path in photos:
        photo = read_photograph(path.read_bytes())
        (regions,) = model.extract([model.prepare(photo)], [(photo.width, photo.height)])
        assert regions.features.shape == (36, 2048)
        assert 0.01 < regions.features.std() < 100
    short = tmp_path / "names.txt"
    short.write_text("dog\ncat\n")
    with pytest.raises(InputError, match=r"2 names, but the model has 1600 classes"):
        build_extractor("vg-r101-c4", weights="random:0", class_names=str(short))
