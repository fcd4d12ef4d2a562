"""Mined negatives join a batch by id, drawn anew in each epoch, the same whenever it is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from camp.errors import InputError
from camp.pipeline.negatives_join import OfflineNegatives

MakeWorld = Callable[..., Any]

IMAGES, CAPTIONS = 12, 60  # ids from 10 and 100; caption c belongs to image 10 + (c - 100) // 5


def mined() -> OfflineNegatives:
    caption_ids = np.arange(100, 100 + CAPTIONS)
    own = 10 + (caption_ids - 100) // 5
    images = 10 + (own[:, None] - 10 + np.array([1, 2, 3])) % IMAGES
    images[0] = [9999, -1, 13]  # one that has no features, a hole, and a good one
    image_ids = np.arange(10, 10 + IMAGES)
    captions = 100 + ((image_ids[:, None] - 10 + np.array([4, 5])) % IMAGES) * 5
    captions[1] = -1  # an image without any
    return OfflineNegatives(caption_ids, images, image_ids, captions)


def test_every_caption_has_negatives_from_its_lists(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": IMAGES})
    lists = mined()
    loader = world.loader(epoch_unit="caption", negatives=lists, batch_size=5)
    epochs = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        drawn = {}
        for batch in loader:
            world.check(batch)
            ids, images = batch.caption_ids.tolist(), batch.image_ids.tolist()
            assert len(set(ids)) == len(ids) >= 5
            for row in range(5):
                own = images[int(batch.caption_image[row])]
                image, caption = int(batch.negative_image[row]), int(batch.negative_caption[row])
                assert images[image] in lists.images[ids[row] - 100]
                if own == 11:
                    assert caption == -1
                else:
                    assert ids[caption] in lists.captions[own - 10]
                drawn[ids[row]] = (images[image], caption if caption < 0 else ids[caption])
            assert (batch.negative_image[5:] == -1).all()
            assert (batch.negative_caption[5:] == -1).all()
        assert len(drawn) == CAPTIONS
        assert drawn[100][0] == 13
        epochs.append(drawn)
    assert epochs[0] == epochs[2] != epochs[1]


def test_without_negatives_there_are_no_fields(make_world: MakeWorld) -> None:
    batch = next(iter(make_world(counts={"train": IMAGES}).loader()))
    assert batch.negative_image is None
    assert batch.negative_caption is None


def test_negatives_of_another_data_set_are_refused(make_world: MakeWorld) -> None:
    lists = mined()
    strange = OfflineNegatives(lists.caption_ids + 5000, lists.images, lists.image_ids + 5000, lists.captions)
    with pytest.raises(InputError, match="none of their ids is in this split"):
        make_world(counts={"train": IMAGES}).loader(negatives=strange)
    with pytest.raises(InputError, match=r"3 caption ids and lists \(60, 3\), expected one each"):
        OfflineNegatives(lists.caption_ids[:3], lists.images, lists.image_ids, lists.captions)
