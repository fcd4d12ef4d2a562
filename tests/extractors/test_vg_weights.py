"""The detector's weight files: three forms, one network; what does not fit is named; nothing runs."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from camp.errors import InputError
from camp.extractors import vg_weights
from camp.extractors.proposals import caffe_cell_anchors, cell_anchors
from camp.extractors.vg_detector import PORTS, Sizes
from camp.extractors.vg_weights import ANCHORS, canonical, load_vg_detector, random_state

RPN, BOX = "proposal_generator.rpn_head", "roi_heads.box_predictor"
pytestmark = pytest.mark.usefixtures("own_cache")

State = dict[str, Tensor]


@pytest.fixture
def state(small_sizes: Sizes) -> State:
    return random_state(small_sizes, seed=3)


def write_pickle(path: Path, state: State, *, protocol: int = 2, **more: Any) -> Path:
    arrays = {name: value.numpy() for name, value in state.items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "somebody", **more}, protocol=protocol))
    return path


def as_milvlg(state: State) -> State:
    """detectron2's layout -> the port's with Caffe's conventions."""
    scale = torch.tensor([10.0, 10, 5, 5])
    names = {"cls_embedding": "cls_embed", "fc_attr": "attr_linear1", "attr_score": "attr_linear2"}
    result: State = {}
    for name, value in state.items():
        leaf = name.split(".")[-2]
        if leaf == "objectness_logits":
            value = torch.cat([value * 0.25, value * 1.25])
        elif leaf in ("cls_score", "cls_embedding", "attr_score"):
            value = torch.cat([value[-1:], value[:-1]])
        elif leaf == "bbox_pred":
            value = value / scale.repeat(len(value) // 4).view(-1, *[1] * (value.dim() - 1))
            value = torch.cat([torch.full_like(value[:4], 9.0), value])
        if leaf in names:
            name = name.replace(leaf, names[leaf])
        result[name] = value.contiguous()
        if name.startswith("backbone.res4") and name.endswith("running_var"):
            result[name.replace("running_var", "num_batches_tracked")] = torch.tensor(7)
    return result


def same(found: State, expected: State, *, exact: bool = True) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-7)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_becomes_safetensors_in_the_cache(
    tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes, protocol: int
) -> None:
    path = write_pickle(tmp_path / "faster_rcnn.pkl", state, protocol=protocol)
    detector, origin = load_vg_detector(path, sizes=small_sizes)
    same(detector.state_dict(), state)
    assert origin.port == "detectron2"
    assert origin.anchors == "generated"
    assert origin.weights.startswith("sha256:")
    (kept,) = own_cache.rglob("*.safetensors")
    assert kept.name.startswith(origin.weights.removeprefix("sha256:"))


def test_the_conversion_is_done_once(
    tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pickle(tmp_path / "a.pkl", state)
    first, origin = load_vg_detector(path, sizes=small_sizes)
    with monkeypatch.context() as patched:
        patched.setattr(vg_weights, "load_pickle_file", None)  # reading it again would fail
        again, same_origin = load_vg_detector(path.rename(tmp_path / "b.pkl"), sizes=small_sizes)
    same(again.state_dict(), first.state_dict())
    assert same_origin == origin
    (kept,) = own_cache.rglob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:1000])  # damaged: made again from the source
    same(load_vg_detector(tmp_path / "b.pkl", sizes=small_sizes)[0].state_dict(), state)
    assert kept.stat().st_size > 1000


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes
) -> None:
    own_cache.write_text("a file where the folder should be")
    detector, _ = load_vg_detector(write_pickle(tmp_path / "a.pkl", state), sizes=small_sizes)
    same(detector.state_dict(), state)


def test_the_other_port_is_recognised_and_brought_into_one_layout(
    tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes
) -> None:
    path = tmp_path / "bua.pth"
    torch.save({"model": as_milvlg(state), "iteration": 3, "optimizer": {"lr": 0.1}}, path)
    detector, origin = load_vg_detector(path, sizes=small_sizes)
    assert origin.port == "milvlg"
    assert detector.port == PORTS["milvlg"]
    same(detector.state_dict(), state, exact=False)
    assert torch.equal(detector.anchors, caffe_cell_anchors())
    # From the cache it is still the other port, although the shapes no longer show it.
    (kept,) = own_cache.rglob("*.safetensors")
    for source in (path, kept):
        again, origin = load_vg_detector(source, sizes=small_sizes)
        assert origin.port == "milvlg"
        same(again.state_dict(), detector.state_dict())


def test_both_layouts_compute_the_same(state: State) -> None:
    raw = as_milvlg(state)
    x = torch.rand(5, 256, generator=torch.Generator().manual_seed(0))
    hidden = torch.rand(1, 16, 4, 4, generator=torch.Generator().manual_seed(1))
    converted, port = canonical(raw, None, source="x")
    assert port == "milvlg"
    logits = x @ raw[f"{BOX}.cls_score.weight"].T + raw[f"{BOX}.cls_score.bias"]
    ours = x @ converted[f"{BOX}.cls_score.weight"].T + converted[f"{BOX}.cls_score.bias"]
    torch.testing.assert_close(ours[:, :-1].softmax(1), logits[:, 1:].softmax(1))
    torch.testing.assert_close(ours[:, -1], logits[:, 0])
    two = torch.conv2d(hidden, raw[f"{RPN}.objectness_logits.weight"], raw[f"{RPN}.objectness_logits.bias"])
    probability = two.view(1, 2, 12, 4, 4).softmax(1)[:, 1]
    one = torch.conv2d(
        hidden, converted[f"{RPN}.objectness_logits.weight"], converted[f"{RPN}.objectness_logits.bias"]
    )
    torch.testing.assert_close(one.sigmoid(), probability)


def test_safetensors_of_our_own(tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes) -> None:
    path = tmp_path / "own.bin"  # by content, whatever its name
    save_file(state, path)
    detector, origin = load_vg_detector(path, sizes=small_sizes)
    same(detector.state_dict(), state)
    assert origin.port == "detectron2"
    assert not own_cache.exists()


def test_without_attributes_the_model_has_none(tmp_path: Path, state: State, small_sizes: Sizes) -> None:
    plain = {
        name: value
        for name, value in state.items()
        if not any(part in name for part in ("cls_embedding", "fc_attr", "attr_score"))
    }
    detector, _ = load_vg_detector(write_pickle(tmp_path / "a.pkl", plain), sizes=small_sizes)
    assert detector.sizes.attributes == 0


def test_missing_statistics_are_zero_and_one(tmp_path: Path, state: State, small_sizes: Sizes) -> None:
    bare = {name: value for name, value in state.items() if "running" not in name}
    detector, _ = load_vg_detector(write_pickle(tmp_path / "a.pkl", bare), sizes=small_sizes)
    loaded = detector.state_dict()
    assert all(float(loaded[name].abs().max()) == 0 for name in state if name.endswith("running_mean"))
    assert all(bool((loaded[name] == 1).all()) for name in state if name.endswith("running_var"))


def test_anchors_of_the_file_win_and_a_difference_is_told(
    tmp_path: Path, state: State, small_sizes: Sizes, caplog: pytest.LogCaptureFixture
) -> None:
    state[ANCHORS] = cell_anchors()
    with caplog.at_level(logging.WARNING):
        detector, origin = load_vg_detector(write_pickle(tmp_path / "a.pkl", state), sizes=small_sizes)
    assert origin.anchors == "file"
    assert not caplog.records
    state[ANCHORS] = cell_anchors() + 7.5
    with caplog.at_level(logging.WARNING):
        detector, _ = load_vg_detector(write_pickle(tmp_path / "b.pkl", state), sizes=small_sizes)
    assert torch.equal(detector.anchors, state[ANCHORS])
    assert "up to 7.5 pixels" in caplog.text
    state[ANCHORS] = torch.zeros(15, 4)
    with pytest.raises(InputError, match=r"cell_anchors.0 is \(15, 4\), expected \(12, 4\)"):
        load_vg_detector(write_pickle(tmp_path / "c.pkl", state), sizes=small_sizes)


def test_names_that_do_not_fit_are_listed_together(
    tmp_path: Path, own_cache: Path, state: State, small_sizes: Sizes
) -> None:
    del state["backbone.res3.0.shortcut.weight"], state[f"{BOX}.cls_score.bias"]
    state["backbone.fpn_lateral.weight"] = torch.zeros(3)
    state[f"{RPN}.conv.weight"] = torch.zeros(4, 128, 3, 3)
    with pytest.raises(InputError) as caught:
        load_vg_detector(write_pickle(tmp_path / "odd.pkl", state), sizes=small_sizes)
    message = str(caught.value)
    assert "odd.pkl" in message
    assert "2 missing (backbone.res3.0.shortcut.weight, roi_heads.box_predictor.cls_score.bias)" in message
    assert "1 unexpected (backbone.fpn_lateral.weight)" in message
    assert f"{RPN}.conv.weight (4, 128, 3, 3) for (16, 128, 3, 3)" in message
    assert not own_cache.exists()


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("hostile-was-here",)


def test_code_in_a_file_is_never_run(
    tmp_path: Path, state: State, small_sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"posix\.mkdir|nt\.mkdir|os\.mkdir"):
        load_vg_detector(write_pickle(tmp_path / "a.pkl", state, extra=Hostile()), sizes=small_sizes)
    torch.save({"model": state, "extra": Hostile()}, tmp_path / "a.pth")
    with pytest.raises(InputError, match="not a checkpoint of plain tensors"):
        load_vg_detector(tmp_path / "a.pth", sizes=small_sizes)
    assert not (tmp_path / "hostile-was-here").exists()


def test_files_that_are_something_else(tmp_path: Path, state: State, small_sizes: Sizes) -> None:
    path = tmp_path / "weights"
    path.write_text("<html>404</html>")
    with pytest.raises(InputError, match="neither a pickle, a torch checkpoint nor safetensors"):
        load_vg_detector(path, sizes=small_sizes)
    path.write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(InputError, match="without a dictionary of arrays"):
        load_vg_detector(path, sizes=small_sizes)
    path.write_bytes(pickle.dumps({"model": {"a": torch.zeros(1).numpy()}}))
    with pytest.raises(InputError, match="expected the Visual Genome Faster R-CNN"):
        load_vg_detector(path, sizes=small_sizes)
    whole = write_pickle(path, state).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated"):
        load_vg_detector(path, sizes=small_sizes)
    save_file(state, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        load_vg_detector(path, sizes=small_sizes)


def test_random_weights_are_the_same_for_a_seed(small_sizes: Sizes) -> None:
    same(random_state(small_sizes, seed=5), random_state(small_sizes, seed=5))
    other = random_state(small_sizes, seed=6)
    name = "roi_heads.res5.0.conv1.weight"
    assert not torch.equal(random_state(small_sizes, seed=5)[name], other[name])
