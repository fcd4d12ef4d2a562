"""The Visual Genome network: its names, and every fast form against the plain one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.ops import box_iou, roi_pool

from camp.errors import InputError
from camp.extractors.detections import Detections
from camp.extractors.region_head import ConvolutionHead, MatrixHead, fast_head
from camp.extractors.resnet_c4 import ResNetC4, fold, res5
from camp.extractors.roi_max_pool import RangeMaxima
from camp.extractors.vg_detector import PORTS, Sizes, VgDetector
from camp.extractors.vg_weights import ANCHORS, build_detector, random_state
from camp.extractors.winograd_head import WinogradHead, transforms

CPU = torch.device("cpu")


def expected_names() -> dict[str, tuple[int, ...]]:
    """The public port's state dict, by rule."""
    names: dict[str, tuple[int, ...]] = {}

    def conv(name: str, channels_out: int, channels_in: int, size: int) -> None:
        names[f"{name}.weight"] = (channels_out, channels_in, size, size)
        for part in ("weight", "bias", "running_mean", "running_var"):
            names[f"{name}.norm.{part}"] = (channels_out,)

    def with_bias(name: str, *shape: int) -> None:
        names[f"{name}.weight"] = shape
        names[f"{name}.bias"] = shape[:1]

    conv("backbone.stem.conv1", 64, 3, 7)
    channels = 64
    for stage, blocks in (
        ("backbone.res2", 3),
        ("backbone.res3", 4),
        ("backbone.res4", 23),
        ("roi_heads.res5", 3),
    ):
        width = 64 * 2 ** (int(stage[-1]) - 2)
        for block in range(blocks):
            name = f"{stage}.{block}"
            if block == 0:
                conv(f"{name}.shortcut", 4 * width, channels, 1)
            conv(f"{name}.conv1", width, channels, 1)
            conv(f"{name}.conv2", width, width, 3)
            conv(f"{name}.conv3", 4 * width, width, 1)
            channels = 4 * width
    with_bias("proposal_generator.rpn_head.conv", 512, 1024, 3, 3)
    with_bias("proposal_generator.rpn_head.objectness_logits", 12, 512, 1, 1)
    with_bias("proposal_generator.rpn_head.anchor_deltas", 48, 512, 1, 1)
    with_bias("roi_heads.box_predictor.cls_score", 1601, 2048)
    with_bias("roi_heads.box_predictor.bbox_pred", 6400, 2048)
    return names


def test_names_and_shapes_are_the_public_ports() -> None:
    with torch.device("meta"):
        plain = VgDetector(Sizes(attributes=0)).state_dict()
        full = VgDetector(Sizes()).state_dict()
    assert {name: tuple(value.shape) for name, value in plain.items()} == expected_names()
    assert len(plain) + 1 == 531  # with the anchors, which a file may have or not
    assert sum(value.numel() for value in plain.values()) + 48 == 63_749_485
    extra = {name: tuple(value.shape) for name, value in full.items() if name not in plain}
    assert extra == {
        "roi_heads.box_predictor.cls_embedding.weight": (1601, 256),
        "roi_heads.box_predictor.fc_attr.weight": (512, 2304),
        "roi_heads.box_predictor.fc_attr.bias": (512,),
        "roi_heads.box_predictor.attr_score.weight": (401, 512),
        "roi_heads.box_predictor.attr_score.bias": (401,),
    }
    assert sum(value.numel() for value in full.values()) + 48 == 65_545_214


def small(sizes: Sizes, *, seed: int = 0, proposals: int = 40) -> VgDetector:
    detector, _ = build_detector(
        random_state(sizes, seed=seed), source="random", sizes=sizes, proposals=proposals
    )
    return detector


def image(height: int = 96, width: int = 130, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 8, generator=generator)
    return F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False) * 255 - 110


def close(found: Detections, expected: Detections, *, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found.proposals, expected.proposals, rtol=0, atol=1e-3)
    scale = float(expected.features.abs().max())
    torch.testing.assert_close(found.features, expected.features, rtol=0, atol=tolerance * scale)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found.regressed, expected.regressed, rtol=0, atol=2e-2)


def test_random_weights_give_proposals_and_numbers_in_range(small_sizes: Sizes) -> None:
    with torch.inference_mode():
        found = small(small_sizes).detect(image(), attributes=True)
    assert 20 < len(found.proposals) <= 40
    assert 1e-3 < float(found.features.abs().mean()) < 1e3
    assert found.scores.shape == (len(found.proposals), 30)
    assert found.attribute_scores is not None
    assert found.attribute_scores.shape == (len(found.proposals), 10)


def test_the_optimised_network_is_the_same_function(small_sizes: Sizes) -> None:
    plain, fast = small(small_sizes), small(small_sizes)
    fast.optimise(device=CPU, chunk=16)
    with torch.inference_mode():
        close(fast.detect(image()), plain.detect(image()))


@pytest.mark.parametrize("chunk", [1, 7, 40, 100])
def test_chunks_do_not_change_the_features(small_sizes: Sizes, chunk: int) -> None:
    fast = small(small_sizes)
    fast.optimise(device=CPU, chunk=chunk)
    with torch.inference_mode():
        close(fast.detect(image()), small(small_sizes).detect(image()))


def test_regressed_boxes_are_of_the_best_class(small_sizes: Sizes) -> None:
    detector = small(small_sizes)
    with torch.inference_mode():
        found = detector.detect(image())
        predictor = detector.roi_heads.box_predictor
        deltas = predictor.bbox_pred(found.features).view(-1, 30, 4)
        for row, best in enumerate(found.scores.argmax(1).tolist()):
            x1, y1, x2, y2 = found.proposals[row]
            dx, dy, dw, dh = deltas[row, best] / torch.tensor([10.0, 10, 5, 5])
            width, height = x2 - x1, y2 - y1
            x, y = x1 + width / 2 + dx * width, y1 + height / 2 + dy * height
            width, height = width * dw.exp(), height * dh.exp()
            corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
            inside = corners.clamp(min=0).minimum(torch.tensor([130.0, 96, 130, 96]))
            torch.testing.assert_close(found.regressed[row], inside, rtol=1e-4, atol=1e-3)


def test_attributes_see_the_class(small_sizes: Sizes) -> None:
    detector = small(small_sizes)
    box = detector.roi_heads.box_predictor
    with torch.inference_mode():
        found = detector.detect(image(), attributes=True)
        labels = box.cls_score(found.features).argmax(1)  # the background counts here
        joined = torch.cat([found.features, box.cls_embedding.weight[labels]], 1)
        logits = box.attr_score(torch.relu(box.fc_attr(joined)))
    assert found.attribute_scores is not None
    torch.testing.assert_close(found.attribute_scores, logits[:, :10].softmax(1))
    detector.port = PORTS["milvlg"]
    with torch.inference_mode():
        shared = box.attribute_scores(found.features, box.cls_score(found.features), or_none=True)
    torch.testing.assert_close(shared, logits.softmax(1)[:, :10])


def test_a_network_that_overflows_says_so(small_sizes: Sizes) -> None:
    state = random_state(small_sizes, seed=0)
    state["backbone.stem.conv1.norm.weight"] *= float("inf")
    detector, _ = build_detector(state, source="random", sizes=small_sizes)
    with torch.inference_mode(), pytest.raises(InputError, match="not finite"):
        detector.detect(image())


def test_folding_leaves_one_convolution_each(small_sizes: Sizes) -> None:
    network = ResNetC4(blocks=(1, 2, 2), width=8).double().eval()
    generator = torch.Generator().manual_seed(1)
    for name, value in network.state_dict().items():
        if "norm" in name:
            value.copy_(torch.rand(value.shape, generator=generator, dtype=value.dtype) + 0.3)
    folded = copy.deepcopy(network)
    fold(folded)
    assert not any("norm" in name for name, _ in folded.named_modules())
    with torch.inference_mode():
        torch.testing.assert_close(folded(image().double()), network(image().double()))


@pytest.mark.parametrize(
    ("size", "positions"), [((600, 800), (38, 50)), ((599, 1000), (38, 63)), ((16, 65), (1, 4))]
)
def test_the_map_has_caffes_sides(size: tuple[int, int], positions: tuple[int, int]) -> None:
    network = ResNetC4(blocks=(1, 1, 1), width=1).eval()
    with torch.inference_mode():
        assert network(torch.zeros(1, 3, *size)).shape[2:] == positions


def quarters_back(pooled: Tensor) -> Tensor:
    """(49, 4n, C) -> (n, C, 14, 14)."""
    count, channels = pooled.shape[1] // 4, pooled.shape[2]
    return pooled.view(7, 7, count, 2, 2, channels).permute(2, 5, 0, 3, 1, 4).reshape(count, channels, 14, 14)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 45),
    columns=st.integers(1, 70),
    boxes=st.lists(st.tuples(*[st.integers(0, 640)] * 4), min_size=1, max_size=12),
)
def test_range_maxima_are_roi_pool_to_the_last_bit(
    rows: int, columns: int, boxes: list[tuple[int, int, int, int]]
) -> None:
    feature_map = torch.rand(1, 3, rows, columns, generator=torch.Generator().manual_seed(rows))
    corners = torch.tensor(boxes).view(-1, 2, 2).sort(1).values.reshape(-1, 4)
    # Halves and borders are where rounding shows.
    inside = torch.minimum(corners * 1.0, torch.tensor([16 * columns, 16 * rows] * 2) - 8.0)
    expected = roi_pool(feature_map, [inside], 14, 1 / 16)
    assert torch.equal(quarters_back(RangeMaxima(feature_map).pool(inside)), expected)


def test_an_empty_bin_is_zero() -> None:
    feature_map = torch.rand(1, 2, 3, 3) + 1
    box = torch.tensor([[47.0, 0, 48, 20]])  # 47/16 rounds to the fourth column, which is not there
    pooled = quarters_back(RangeMaxima(feature_map).pool(box))
    assert torch.equal(pooled, roi_pool(feature_map, [box], 14, 1 / 16))
    assert float(pooled.sum()) == 0


def test_winograd_transforms_are_exactly_a_convolution() -> None:
    inputs, taps, outputs = transforms()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, 7, 7, generator=generator, dtype=torch.float64)
    weight = torch.rand(1, 1, 3, 3, generator=generator, dtype=torch.float64)
    points = (taps @ weight[0, 0] @ taps.T).reshape(36, 1)
    product = (inputs @ x.reshape(49)).view(36, 4) * points
    expected = F.conv2d(x, weight, padding=1)
    torch.testing.assert_close((outputs @ product.reshape(-1)).view(7, 7), expected[0, 0])


def test_the_matrix_head_is_res5(small_sizes: Sizes) -> None:
    blocks = res5(width=8).eval()
    generator = torch.Generator().manual_seed(2)
    for name, value in blocks.state_dict().items():
        value.copy_(torch.rand(value.shape, generator=generator) * (1 if "norm" in name else 0.1) + 0.01)
    feature_map = torch.rand(1, 128, 9, 12, generator=generator)
    boxes = torch.rand(23, 4, generator=generator) * 80
    boxes[:, 2:] += boxes[:, :2] + 10
    with torch.inference_mode():
        expected = ConvolutionHead(blocks, channels_last=False)(feature_map, boxes)
        fold(blocks)
        found = MatrixHead(WinogradHead(blocks), chunk=10)(feature_map, boxes)
        none = MatrixHead(WinogradHead(blocks))(feature_map, boxes[:0])
    assert expected.shape == found.shape == (23, 256)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))
    assert none.shape == (0, 256)


def test_the_form_for_a_gpu_is_the_same_function(small_sizes: Sizes) -> None:
    fast = small(small_sizes)
    fold(fast)
    fast.region_head = fast_head(
        fast.roi_heads.res5, device=torch.device("cuda"), compile=False
    )  # runs anywhere
    with torch.inference_mode():
        expected = small(small_sizes).detect(image())
        close(fast.detect(image()), expected)
        boxes = expected.proposals
        with torch.autocast("cpu", dtype=torch.bfloat16):
            feature_map = fast.backbone(image())
            features = fast.region_head(feature_map, boxes).float()
            half = fast.detect(image())
    assert feature_map.dtype == torch.bfloat16
    error = (features - expected.features).norm(dim=1) / expected.features.norm(dim=1)
    assert float(error.max()) < 0.05
    assert half.scores.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_sees_what_a_cpu_sees(small_sizes: Sizes) -> None:
    detector = small(small_sizes)
    detector.optimise(device=torch.device("cuda"))
    with torch.inference_mode():
        found, expected = detector.detect(image().cuda()), small(small_sizes).detect(image())
    overlap = box_iou(found.proposals.cpu(), expected.proposals).amax(1)
    assert float((overlap > 0.99).float().mean()) > 0.9
    assert float((found.features[0].cpu() - expected.features[0]).norm() / expected.features[0].norm()) < 1e-2


@pytest.mark.slow
def test_compiling_does_not_change_the_features(small_sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # whose threads torch never ends
    fast = small(small_sizes)
    fast.optimise(device=CPU, compile=True, chunk=16)  # the last chunk is padded
    with torch.inference_mode():
        close(fast.detect(image()), small(small_sizes).detect(image()))


def test_a_compiler_that_fails_is_named(small_sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: nn.Module, **options: object) -> nn.Module:
        class Broken(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise RuntimeError("No working C++ compiler found\nmore of it")

        return Broken()

    monkeypatch.setattr(torch, "compile", broken)
    blocks = res5(width=8)
    fold(blocks)
    with pytest.raises(InputError, match=r"No working C\+\+ compiler found\); install a C\+\+ compiler"):
        fast_head(blocks, device=CPU, compile=True)


def test_anchors_are_no_parameter_of_the_module(small_sizes: Sizes) -> None:
    assert ANCHORS not in small(small_sizes).state_dict()
