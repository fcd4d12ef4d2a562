"""Selections against the definitions they abbreviate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou, nms

from camp.errors import InputError
from camp.extractors.detections import Detections, choose_regions
from camp.extractors.extractor import RegionPolicy
from camp.extractors.selection import best_kept_score, select


def crowd(count: int, *, classes: int, seed: int, levels: int | None = None) -> tuple[Tensor, Tensor]:
    """Boxes in clusters, as proposals are, and class scores; with `levels` many scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(max(count // 6, 1), 4, generator=generator) * 400
    which = torch.randint(0, len(centre), (count,), generator=generator)
    corner = centre[which] + torch.rand(count, 4, generator=generator) * 30
    boxes = torch.cat([corner[:, :2], corner[:, :2] + 20 + corner[:, 2:] / 3], 1)
    scores = torch.rand(count, classes, generator=generator) ** 3
    if levels:
        scores = (scores * levels).round() / levels
    return boxes, scores


def one_class_at_a_time(boxes: Tensor, scores: Tensor, *, iou: float) -> Tensor:
    """The published procedure: suppress within each class, remember the best score that survived."""
    best = torch.zeros(len(boxes))
    for column in scores.T:
        kept = nms(boxes, column, iou)
        best[kept] = torch.maximum(best[kept], column[kept])
    return best


@settings(max_examples=60)
@given(
    count=st.integers(1, 60),
    classes=st.sampled_from([1, 7, 64, 65, 130]),
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([None, 1, 5]),
    iou=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_all_classes_at_once_is_one_after_another(
    count: int, classes: int, seed: int, levels: int | None, iou: float
) -> None:
    boxes, scores = crowd(count, classes=classes, seed=seed, levels=levels)
    found = best_kept_score(boxes, scores, iou=iou)
    assert torch.equal(found, one_class_at_a_time(boxes, scores, iou=iou))


def test_a_full_size_image_of_1600_classes() -> None:
    boxes, scores = crowd(300, classes=1600, seed=3)
    assert torch.equal(best_kept_score(boxes, scores, iou=0.3), one_class_at_a_time(boxes, scores, iou=0.3))


def test_a_long_chain_of_overlaps_settles_link_by_link() -> None:
    x = torch.arange(40).float() * 5
    boxes = torch.stack(
        [x, torch.zeros(40), x + 10, torch.full((40,), 10.0)], 1
    )  # each overlaps its neighbours
    scores = torch.linspace(1, 0.5, 40)[:, None]
    kept = best_kept_score(boxes, scores, iou=0.3) > 0
    assert kept.tolist() == [place % 2 == 0 for place in range(40)]


def test_empty_boxes_and_no_boxes() -> None:
    boxes = torch.tensor([[5.0, 5, 5, 5], [5, 5, 5, 5], [0, 0, 9, 9]])
    assert best_kept_score(boxes, torch.full((3, 2), 0.5), iou=0.3).tolist() == [0.5, 0.5, 0.5]
    assert best_kept_score(torch.zeros(0, 4), torch.zeros(0, 2), iou=0.3).shape == (0,)


def published_anderson(boxes: Tensor, scores: Tensor, *, least: int, most: int) -> list[int]:
    confidence = one_class_at_a_time(boxes, scores, iou=0.3).numpy()
    passing = np.flatnonzero(confidence >= 0.2)
    if len(passing) < least:
        passing = np.argsort(-confidence, kind="stable")[:least]
    elif len(passing) > most:
        passing = np.argsort(-confidence, kind="stable")[:most]
    return [int(row) for row in passing]


@pytest.mark.parametrize(("least", "most"), [(36, 36), (10, 100), (10, 20), (55, 60)])
@pytest.mark.parametrize("sharpness", [1, 40])
def test_anderson_keeps_what_the_paper_keeps(least: int, most: int, sharpness: int) -> None:
    boxes, scores = crowd(60, classes=30, seed=least + most)
    scores = scores**sharpness
    rows = select(
        RegionPolicy(min_regions=least, max_regions=most),
        proposals=boxes,
        regressed=boxes + 500,
        scores=scores,
    )
    assert sorted(rows.tolist()) == sorted(published_anderson(boxes, scores, least=least, most=most))
    confidence = one_class_at_a_time(boxes, scores, iou=0.3)[rows]
    assert (confidence.diff() <= 0).all()  # best first


def test_maxnms_raises_its_threshold_until_enough_are_left() -> None:
    boxes, scores = crowd(80, classes=5, seed=1)
    for least, most in [(1, 5), (36, 36), (70, 70), (80, 100)]:
        rows = select(
            RegionPolicy(select="maxnms", min_regions=least, max_regions=most),
            proposals=torch.zeros_like(boxes),
            regressed=boxes,
            scores=scores,
        )
        best = scores.amax(1)
        expected = next(
            (kept for t in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9) if len(kept := nms(boxes, best, t)) >= least),
            nms(boxes, best, 0.9),
        )
        assert rows.tolist() == expected[:most].tolist()
    assert len(rows) < 80  # nothing helps where boxes coincide nearly


def test_score_takes_the_highest_however_they_overlap() -> None:
    boxes, scores = crowd(50, classes=4, seed=5)
    boxes[:] = boxes[0]
    rows = select(RegionPolicy(select="score"), proposals=boxes, regressed=boxes, scores=scores)
    assert rows.tolist() == torch.argsort(scores.amax(1), descending=True, stable=True)[:36].tolist()


@pytest.mark.parametrize("name", ["anderson", "maxnms", "score"])
def test_fewer_regions_than_asked_for_are_all_kept(name: str) -> None:
    boxes = torch.tensor([[0.0, 0, 9, 9], [20, 20, 29, 29]])
    rows = select(
        RegionPolicy(select=name), proposals=boxes, regressed=boxes, scores=torch.tensor([[0.1], [0.3]])
    )
    assert rows.tolist() == [1, 0]
    none = select(
        RegionPolicy(select=name), proposals=boxes[:0], regressed=boxes[:0], scores=torch.zeros(0, 1)
    )
    assert none.tolist() == []


def detections(count: int = 50) -> Detections:
    boxes, scores = crowd(count, classes=6, seed=9)
    generator = torch.Generator().manual_seed(0)
    return Detections(
        proposals=boxes,
        features=torch.rand(count, 8, generator=generator),
        scores=scores,
        regressed=boxes + 3,
        attribute_scores=torch.rand(count, 5, generator=generator),
    )


def test_regions_carry_what_was_asked_for() -> None:
    found = detections()
    policy = RegionPolicy(select="score", with_labels=True, with_both_boxes=True)
    regions = choose_regions(found, policy, original=(400, 200), resized=(800, 400))
    rows = select(policy, proposals=found.proposals, regressed=found.regressed, scores=found.scores)
    limit = np.array([400, 200, 400, 200])
    np.testing.assert_array_equal(regions.features, found.features[rows].numpy())
    np.testing.assert_allclose(regions.boxes, np.minimum(found.proposals[rows].numpy() / 2, limit))
    assert regions.regressed_boxes is not None
    np.testing.assert_allclose(regions.regressed_boxes, np.minimum(found.regressed[rows].numpy() / 2, limit))
    assert regions.classes is not None
    assert regions.classes.dtype == np.int32
    assert regions.classes.tolist() == found.scores[rows].argmax(1).tolist()
    assert regions.class_scores is not None
    np.testing.assert_array_equal(regions.class_scores, found.scores[rows].amax(1).numpy())
    assert found.attribute_scores is not None
    assert regions.attributes is not None
    assert regions.attributes.tolist() == found.attribute_scores[rows].argmax(1).tolist()
    assert (regions.width, regions.height) == (400, 200)


def test_regions_are_plain_unless_more_is_asked_for() -> None:
    regions = choose_regions(
        detections(), RegionPolicy(boxes="regressed"), original=(900, 900), resized=(900, 900)
    )
    assert regions.classes is None
    assert regions.class_scores is None
    assert regions.attributes is None
    assert regions.regressed_boxes is None
    overlap = box_iou(torch.from_numpy(regions.boxes), detections().regressed)
    assert (overlap.amax(1) > 0.999).all()


def test_features_that_are_not_numbers_are_refused() -> None:
    found = detections()
    found.features[3, 2] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        choose_regions(found, RegionPolicy(), original=(9, 9), resized=(9, 9))


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match=r"'andersen', expected one of anderson, maxnms, score"):
        RegionPolicy(select="andersen")
    with pytest.raises(InputError, match="expected one of proposal, regressed"):
        RegionPolicy(boxes="both")
    with pytest.raises(InputError, match="50 to 36 regions"):
        RegionPolicy(min_regions=50)
    with pytest.raises(InputError, match="boxes are the proposals"):
        RegionPolicy(boxes="regressed", with_both_boxes=True)
