"""ECCV Caption's judgements over a few images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camp.errors import InputError
from camp.evaluation.eccv import coco_ids, eccv_metrics, load_judgements

pytest.importorskip("eccv_caption", reason="the optional package eccv_caption is not installed")


@pytest.fixture(scope="module")
def small() -> Any:
    """The package's own object, with judgements of four images and eight captions."""
    judgements = load_judgements()
    images = [10, 20, 30, 40]
    captions = [100 + number for number in range(8)]
    own = {
        "i2t": {image: captions[2 * n : 2 * n + 2] for n, image in enumerate(images)},
        "t2i": {caption: [images[n // 2]] for n, caption in enumerate(captions)},
    }
    more = {"i2t": {**own["i2t"], 10: [100, 101, 102]}, "t2i": {**own["t2i"], 102: [20, 10]}}
    judgements.coco_gts, judgements.cxc_gts, judgements.eccv_gts = own, own, more
    judgements.coco_ids = np.array(captions)
    return judgements


COCOIDS, SENTIDS = np.array([10, 20, 30, 40]), np.arange(100, 109)  # the last caption is a sixth one
OWNER = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])


def test_the_package_brings_coco_s_test_set() -> None:
    judgements = load_judgements()
    assert len(judgements.coco_gts["i2t"]) == 5000
    assert len(judgements.coco_ids) == 25_000


def test_perfect_and_constant_scores(small: Any) -> None:
    right = (np.arange(4)[:, None] == OWNER).astype(np.float32)
    right[0, 2] = 0.9  # what the wider judgement also accepts
    perfect = eccv_metrics(right, COCOIDS, SENTIDS, small)
    for direction in ("caption_retrieval", "image_retrieval"):
        assert perfect[direction]["eccv_map_at_r"] == pytest.approx(100)
        assert perfect[direction]["cxc_r1"] == pytest.approx(100)
    constant = eccv_metrics(np.zeros((4, 9)), COCOIDS, SENTIDS, small)
    assert constant["caption_retrieval"]["cxc_r1"] == 0
    assert constant["image_retrieval"]["cxc_r1"] == 0


def test_a_wrong_first_answer_costs_what_it_should(small: Any) -> None:
    scores = (np.arange(4)[:, None] == OWNER).astype(np.float32)
    scores[0, 7] = 2  # image 10 finds a caption of image 40 first, and that caption image 10
    found = eccv_metrics(scores, COCOIDS, SENTIDS, small)
    assert found["caption_retrieval"]["cxc_r1"] == pytest.approx(75)
    assert found["image_retrieval"]["cxc_r1"] == pytest.approx(100 * 7 / 8)
    assert found["image_retrieval"]["cxc_r5"] == pytest.approx(100)


def test_other_data_is_refused(small: Any, make_dataset: Any) -> None:
    with pytest.raises(InputError, match="found 3 images and 8 captions .*expected 4 and 8"):
        eccv_metrics(np.zeros((3, 9)), COCOIDS[:3], SENTIDS, small)
    dataset = make_dataset()
    ids = dataset.images["image_id"].to_numpy()
    images, captions = coco_ids(dataset, ids, dataset.captions["caption_id"].to_numpy())
    assert images[0] == 500_000
    assert captions[:3].tolist() == [0, 1, 2]
