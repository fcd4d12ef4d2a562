"""Mined negatives join a batch by id, drawn anew in each epoch, the same whenever it is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
            assert batch.partner_caption is None
            assert batch.joined.tolist() == [row >= 5 for row in range(len(ids))]
            assert batch.anchors == 5
            assert (batch.negative_image[5:] == -1).all()
            assert (batch.negative_caption[5:] == -1).all()
        assert len(drawn) == CAPTIONS
        assert drawn[100][0] == 13
        epochs.append(drawn)
    assert epochs[0] == epochs[2] != epochs[1]


def test_partners_are_captions_of_the_drawn_images(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": IMAGES})
    loader = world.loader(epoch_unit="caption", negatives=replace(mined(), partners=True), batch_size=5)
    for batch in loader:
        world.check(batch)
        assert batch.caption_image[:5].max() < batch.negative_image[:5].max()
        for row in range(5):
            image, partner = int(batch.negative_image[row]), int(batch.partner_caption[row])
            assert int(batch.caption_image[partner]) == image
        assert (batch.partner_caption[5:] == -1).all()


def test_normal_draws_keep_to_the_middle_of_a_list(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": IMAGES})
    caption_ids = np.arange(100, 100 + CAPTIONS)
    images = np.tile(np.arange(10, 10 + IMAGES), (CAPTIONS, 1))
    lists = OfflineNegatives(caption_ids, images, np.arange(0), np.zeros((0, 1), np.int64), draw="normal")
    loader = world.loader(epoch_unit="caption", negatives=lists, batch_size=5)
    drawn = []
    for epoch in range(20):
        loader.set_epoch(epoch)
        drawn += [int(batch.image_ids[row]) - 10 for batch in loader for row in batch.negative_image[:5]]
    assert 5 < np.mean(drawn) < 6
    assert 1.6 < np.std(drawn) < 2.4  # even draws: 3.5
    with pytest.raises(InputError, match="draw 'odd', expected one of uniform, normal"):
        replace(lists, draw="odd")


def test_without_negatives_there_are_no_fields(make_world: MakeWorld) -> None:
    batch = next(iter(make_world(counts={"train": IMAGES}).loader()))
    assert batch.negative_image is None
    assert batch.negative_caption is None
    assert batch.joined is None


def test_negatives_of_another_data_set_are_refused(make_world: MakeWorld) -> None:
    lists = mined()
    strange = OfflineNegatives(lists.caption_ids + 5000, lists.images, lists.image_ids + 5000, lists.captions)
    with pytest.raises(InputError, match="none of their ids is in this split"):
        make_world(counts={"train": IMAGES}).loader(negatives=strange)
    with pytest.raises(InputError, match=r"3 caption ids and lists \(60, 3\), expected one each"):
        OfflineNegatives(lists.caption_ids[:3], lists.images, lists.image_ids, lists.captions)
