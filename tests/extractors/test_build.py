"""Names -> extractors: what is offered, what is close, what stays unloaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from camp.errors import InputError
from camp.extractors.build import EXTRACTORS, build_extractor, find_module


@pytest.mark.parametrize(
    ("model", "module", "variant"),
    [
        ("scenes-tiny", "scenes_tiny", ""),
        ("vg-r101-c4", "vg_r101_c4", ""),
        ("grid:resnet101", "grid", "resnet101"),
        ("torchvision:fasterrcnn_resnet50_fpn_v2", "torchvision_detector", "fasterrcnn_resnet50_fpn_v2"),
        ("detectron2:a/b.yaml", "detectron2_backend", "a/b.yaml"),
        ("detectron2:C:\\x.yaml", "detectron2_backend", "C:\\x.yaml"),
    ],
)
def test_names_lead_to_modules(model: str, module: str, variant: str) -> None:
    assert find_module(model) == (module, variant)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("vg-r101-c5", "did you mean 'vg-r101-c4'"),
        ("scene-tiny", "did you mean 'scenes-tiny'"),
        ("gird:resnet18", "did you mean 'grid'"),
        ("clip", "there are scenes-tiny, vg-r101-c4"),
        ("grid", "e.g. grid:resnet101"),
        ("grid:", "e.g. grid:resnet101"),
        ("scenes-tiny:large", "scenes-tiny has no variants"),
        ("grid:resnet19", "did you mean resnet18"),
    ],
)
def test_wrong_names_say_what_there_is(model: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_extractor(model)
    assert message in str(caught.value)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option 'min_side'; this model has short_side"):
        build_extractor("grid:resnet18", weights="random:0", min_side=3)


def test_asking_for_names_loads_no_network() -> None:
    program = (
        "import sys; from camp.extractors.build import find_module; find_module('scenes-tiny'); "
        "print([name for name in ('torch', 'torchvision', 'PIL', 'numpy') if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"


def test_every_module_offers_the_same_signature() -> None:
    import importlib
    import inspect

    for module in EXTRACTORS.values():
        build = importlib.import_module(f"camp.extractors.{module}").build
        names = list(inspect.signature(build).parameters)
        assert names[:6] == ["variant", "weights", "sha256", "policy", "device", "compile"], module
