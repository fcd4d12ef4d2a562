"""Batches hold what their ids say, in every setting."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from camp.errors import InputError
from camp.pipeline.loader import FeatureLoader

MakeWorld = Callable[..., "World"]  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("store", ["arrow", "hdf5"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("unit", ["image", "caption"])
def test_batches_are_what_their_ids_say(make_world: MakeWorld, store: str, dtype: str, unit: str) -> None:
    world = make_world(store=store, dtype=dtype)
    loader = world.loader(epoch_unit=unit)
    batches = list(loader)
    assert len(batches) == len(loader) == (2 if unit == "image" else 13)
    for batch in batches:
        assert batch.regions.dtype == torch.float32
        assert len(batch.caption_ids) == 4
        world.check(batch)
    if unit == "image":
        assert len({i for batch in batches for i in batch.image_ids.tolist()}) == 8


def test_an_epoch_of_captions_has_every_caption_once(make_world: MakeWorld) -> None:
    world = make_world()
    loader = world.loader(epoch_unit="caption", drop_last=False)
    found = [caption for batch in loader for caption in batch.caption_ids.tolist()]
    assert sorted(found) == list(range(100, 155))
    assert found != sorted(found)


def test_an_epoch_of_images_draws_other_captions_each_time(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 40})
    loader = world.loader(drop_last=False)
    epochs = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        pairs = {}
        for batch in loader:
            world.check(batch)
            for caption, row in zip(batch.caption_ids.tolist(), batch.caption_image.tolist(), strict=True):
                pairs[int(batch.image_ids[row])] = caption
        epochs.append(pairs)
    assert epochs[0].keys() == epochs[1].keys() == set(range(10, 50))
    assert 10 < sum(epochs[0][image] != epochs[1][image] for image in epochs[0]) < 40


def test_images_come_once_in_a_batch_of_captions(make_world: MakeWorld) -> None:
    world = make_world()
    (batch,) = world.loader("val", epoch_unit="caption", batch_size=20, shuffle=None)
    world.check(batch)
    assert batch.image_ids.tolist() == [21, 22, 23, 24]
    assert batch.caption_image.tolist() == [number // 5 for number in range(20)]


def test_the_stored_type_can_be_kept(make_world: MakeWorld) -> None:
    world = make_world()
    for batch in world.loader(dtype=None):
        assert batch.regions.dtype == torch.float16
        world.check(batch)


def test_labels_are_multi_hot(make_world: MakeWorld) -> None:
    world = make_world(labels=["person", "dog", "cat", "tree"])
    for batch in world.loader():
        assert batch.labels is not None
        for image_id, labels in zip(batch.image_ids.tolist(), batch.labels, strict=True):
            assert labels.tolist() == [float((image_id - 10) >> n & 1) for n in range(4)]
    assert next(iter(make_world().loader())).labels is None


def test_images_without_features_are_left_out_and_counted(make_world: MakeWorld) -> None:
    world = make_world(failed=[12, 13, 24])
    said: list[str] = []
    loader = world.loader(drop_last=False, say=said.append)
    assert loader.missing_images == 2
    assert said == ["tiny train: 2 images with captions have no features and are left out; 9 are used"]
    found = {image for batch in loader for image in batch.image_ids.tolist()}
    assert found == set(range(10, 21)) - {12, 13}


def test_long_captions_are_cut_counted_and_keep_their_end(make_world: MakeWorld) -> None:
    world = make_world()
    said: list[str] = []
    loader = world.loader(epoch_unit="caption", max_words=5, drop_last=False, say=said.append)
    long = sum(3 + number % 7 > 5 for number in range(55))
    assert loader.cut_captions == long
    assert said == [f"tiny train: {long} of 55 captions are longer than 5 words and are cut"]
    for batch in loader:
        world.check(batch)
        assert batch.lengths.max() <= 7


def test_tokens_are_padded_to_the_longest_or_to_a_fixed_length(make_world: MakeWorld) -> None:
    world = make_world()
    for batch in world.loader(epoch_unit="caption"):
        assert batch.tokens.shape[1] == batch.lengths.max()
    for batch in world.loader(epoch_unit="caption", fixed_length=20):
        assert batch.tokens.shape[1] == 20
        world.check(batch)
    loader = world.loader(epoch_unit="caption", fixed_length=6, say=lambda text: None)
    assert loader.cut_captions > 0
    for batch in loader:
        assert batch.tokens.shape[1] == 6
        world.check(batch)


def test_bucketing_puts_like_lengths_together(make_world: MakeWorld) -> None:
    world = make_world()
    loader = world.loader(epoch_unit="caption", shuffle=None, bucket_by_length=True, drop_last=False)
    lengths, found = [], []
    for batch in loader:
        world.check(batch)
        lengths += batch.lengths.tolist()
        found += batch.caption_ids.tolist()
    assert lengths == sorted(lengths)
    assert sorted(found) == list(range(100, 155))


def test_the_first_images_alone(make_world: MakeWorld) -> None:
    loader = make_world().loader(images=3, shuffle=None, drop_last=False)
    assert [image for batch in loader for image in batch.image_ids.tolist()] == [10, 11, 12]


def test_batches_stay_what_they_were_however_long_they_are_kept(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 60})
    loader = world.loader(prefetch=1)
    kept = list(loader)
    for batch in kept:
        world.check(batch)
    assert loader._delivery.ring.made >= len(kept)


def test_a_plain_loop_uses_prefetch_and_two_buffers(make_world: MakeWorld) -> None:
    loader = make_world(counts={"train": 60}).loader(prefetch=2)
    for epoch in range(3):
        loader.set_epoch(epoch)
        for batch in loader:
            regions = batch.regions[1:]
            del batch
            assert regions.any()
            del regions
    assert loader._delivery.ring.made <= 4


def test_a_view_keeps_its_buffer(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 60})
    iterator = iter(world.loader(prefetch=1))
    corner = next(iterator).regions[0, 0]
    before = corner.clone()
    for _ in iterator:
        pass
    assert torch.equal(corner, before)


def test_a_loader_that_is_dropped_in_the_middle_leaves_no_thread(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 60})
    for _ in world.loader(threads=2):
        break
    loader = world.loader(threads=2)
    iterator = iter(loader)
    next(iterator)
    assert any(thread.name == "loader-train" for thread in threading.enumerate())
    del iterator
    gc.collect()
    assert not any(thread.name == "loader-train" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_unit": "word"}, "epoch_unit 'word', expected 'image' or 'caption'"),
        ({"prefetch": 0}, "prefetch 0, expected at least 1"),
        ({"shuffle": "a lot"}, "shuffle 'a lot', expected 'full', 'none' or 'window"),
        ({"bucket_by_length": True}, "use it with shuffle=None"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2; expected 0 to 1"),
        ({"batch_size": 1, "world_size": 2}, "at least one sample for each of 2"),
        ({"max_words": 0}, "no room for a word"),
        ({"features": "none"}, "no such feature set"),
        ({"vocab": "none"}, "no vocabulary 'none'"),
    ],
)
def test_wrong_options_say_what_is_right(
    make_world: MakeWorld, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_world().loader(**options)


def test_a_data_set_can_be_given_by_its_folder(make_world: MakeWorld) -> None:
    world = make_world()
    loader = FeatureLoader(world.dataset.root, split="val", features="made", batch_size=4)
    assert len(list(loader)) == 1
