"""A linear layer and its ReLU at once, by either library: what the plain modules compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from camp.models import onednn
from camp.models.relu_layer import perceptron, relu_layer


@pytest.fixture(params=["as chosen", "without oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without oneDNN":
        monkeypatch.setattr(onednn, "usable", lambda rows: False)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 24), (1, 24), (7, 24), (2, 3, 5, 24)])
def test_it_is_the_layer_and_then_relu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, rows = nn.Linear(24, 16).to(dtype), torch.randn(shape, dtype=dtype)
    given = rows.clone()
    with torch.no_grad():
        found = relu_layer(layer, rows)
        torch.testing.assert_close(found.double(), layer.double()(rows.double()).relu(), rtol=1e-5, atol=1e-6)
    assert found.dtype == dtype
    assert torch.equal(rows, given)


@pytest.mark.usefixtures("library")
def test_what_is_no_number_stays_so() -> None:
    """A ReLU that makes it 0 would hide a model that diverged."""
    rows = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])
    with torch.no_grad():
        found = relu_layer(nn.Linear(2, 3), rows)
    assert found[0].isnan().all()
    assert not found[1].isnan().any()


@pytest.mark.usefixtures("library")
def test_gradients_are_those_of_the_layer() -> None:
    torch.manual_seed(0)
    layer, rows = nn.Linear(6, 4), torch.randn(5, 6)
    (found,) = torch.autograd.grad(relu_layer(layer, rows).sum(), layer.weight)
    (expected,) = torch.autograd.grad(layer(rows).relu().sum(), layer.weight)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("library")
def test_rows_may_lie_apart_in_memory() -> None:
    torch.manual_seed(0)
    layer, rows = nn.Linear(6, 4), torch.randn(5, 3, 6).transpose(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(relu_layer(layer, rows), layer(rows).relu())


@pytest.mark.usefixtures("library")
def test_a_perceptron_is_the_same_with_and_without_gradient() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    rows = torch.randn(3, 5, 6)
    expected = perceptron(layers, rows)
    assert expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(perceptron(layers, rows), expected)


def test_other_layers_stay_as_they_are() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        rows = torch.randn(3, 6)
        assert torch.equal(perceptron(layers, rows), layers(rows))


def test_onednn_is_only_asked_for_what_it_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.zeros(1, 4)
    assert not onednn.usable(rows)  # a gradient may be wanted
    with torch.no_grad():
        available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        assert onednn.usable(rows) == available
        assert not onednn.usable(rows.double())
        assert not onednn.usable(rows.to("meta"))
        with torch.autocast("cpu", torch.bfloat16):
            assert not onednn.usable(rows)
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)  # which would refuse its weights
            assert not onednn.usable(rows)
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        assert not onednn.usable(rows)
