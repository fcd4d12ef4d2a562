"""A loader that was stopped anywhere goes on exactly, on any number of ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camp.errors import InputError, MismatchError
from camp.pipeline.loader import FeatureLoader
from camp.schema import Batch

MakeWorld = Callable[..., Any]


def captions(batch: Batch) -> list[int]:
    return list(batch.caption_ids.tolist())


def epoch_of(loader: FeatureLoader, epoch: int = 0) -> list[list[int]]:
    loader.set_epoch(epoch)
    return [captions(batch) for batch in loader]


@given(
    stop=st.integers(0, 6),
    unit=st.sampled_from(["image", "caption"]),
    shuffle=st.sampled_from(["full", "none", "window(2, 2)"]),
    prefetch=st.integers(1, 3),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_resumed_anywhere_the_rest_is_the_same(
    make_world: MakeWorld, stop: int, unit: str, shuffle: str, prefetch: int, drop_last: bool, epoch: int
) -> None:
    options = {"epoch_unit": unit, "shuffle": shuffle, "drop_last": drop_last, "batch_size": 7}
    world = make_world()
    whole = epoch_of(world.loader(**options), epoch)
    stop = min(stop, len(whole))
    first = world.loader(prefetch=prefetch, **options)
    first.set_epoch(epoch)
    begun = [captions(batch) for batch in itertools.islice(first, stop)]
    state = json.loads(json.dumps(first.state_dict()))
    second = world.loader(prefetch=1, threads=2, **options)
    second.load_state_dict(state)
    assert begun + [captions(batch) for batch in second] == whole
    assert second.state_dict()["sample_in_epoch"] == second.plan.done(len(second))
    second.set_epoch(epoch + 1)
    assert second.state_dict()["sample_in_epoch"] == 0


def test_four_ranks_begin_and_three_go_on(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 30})
    options = {"epoch_unit": "caption", "batch_size": 24, "drop_last": False}
    whole = epoch_of(world.loader(**options))
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    for ranks, steps in ((4, 3), (3, 99)):
        loaders = [world.loader(rank=rank, world_size=ranks, **options) for rank in range(ranks)]
        assert {len(loader) for loader in loaders} == {7}
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        found += [
            [caption for batch in batches for caption in captions(batch)]
            for batches in zip(*(itertools.islice(loader, steps) for loader in loaders), strict=True)
        ]
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)  # any rank's will do
        state = states[0]
    assert found == whole


def test_ranks_with_nothing_left_still_take_the_step(make_world: MakeWorld) -> None:
    world = make_world()  # 11 images: batches of 5, 5 and 1
    for rank in range(3):
        loader = world.loader(batch_size=5, drop_last=False, rank=rank, world_size=3)
        sizes = [len(batch.caption_ids) for batch in loader]
        assert len(sizes) == 3
        assert sizes[-1] == (1 if rank == 2 else 0)


def test_iterating_again_begins_again_and_an_interrupted_epoch_goes_on(make_world: MakeWorld) -> None:
    loader = make_world().loader()
    whole = epoch_of(loader)
    assert [captions(batch) for batch in loader] == whole
    begun = [captions(batch) for batch in itertools.islice(loader, 1)]
    loader.set_epoch(0)  # the epoch under way: its place is kept
    assert begun + [captions(batch) for batch in loader] == whole


def test_the_state_of_an_epoch_that_was_yielded_whole_has_nothing_left(make_world: MakeWorld) -> None:
    world = make_world()
    first = world.loader()
    iterator = iter(first)
    for _ in range(len(first)):
        next(iterator)
    state = first.state_dict()
    second = world.loader()
    second.load_state_dict(state)
    assert [captions(batch) for batch in second] == []
    second.set_epoch(1)
    assert [captions(batch) for batch in second] == epoch_of(world.loader(), 1)
    first.close()


def test_other_vocabularies_and_stores_have_the_same_order(make_world: MakeWorld) -> None:
    arrow, hdf5 = make_world(), make_world(store="hdf5")
    assert epoch_of(arrow.loader()) == epoch_of(hdf5.loader())
    loader = hdf5.loader()
    loader.load_state_dict(arrow.loader().state_dict())  # converted features are the same features
    half = make_world(dtype="float32").loader()
    assert epoch_of(half) == epoch_of(arrow.loader())
    with pytest.raises(MismatchError, match="loader state: fingerprint"):
        half.load_state_dict(arrow.loader().state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed 0, this loader has 1"),
        ({"batch_size": 5}, "global_batch 4, this loader has 5"),
        ({"shuffle": "window"}, "shuffle {'kind': 'full'}, this loader has {'kind': 'window', 'block': 64"),
        ({"epoch_unit": "caption"}, "epoch_unit image, this loader has caption"),
    ],
)
def test_states_of_another_order_are_refused(
    make_world: MakeWorld, options: dict[str, Any], message: str
) -> None:
    world = make_world()
    state = world.loader().state_dict()
    with pytest.raises(MismatchError) as caught:
        world.loader(**options).load_state_dict(state)
    assert message in str(caught.value)
    with pytest.raises(MismatchError, match="version 0, expected 1"):
        world.loader().load_state_dict({**state, "version": 0})


def test_an_iterator_that_was_left_behind_says_so(make_world: MakeWorld) -> None:
    loader: FeatureLoader = make_world(counts={"train": 40}).loader()

    def moved(move: Callable[[], object]) -> Iterator[Batch]:
        iterator = iter(loader)
        next(iterator)
        move()
        return iterator

    for move in (
        lambda: loader.set_epoch(loader.epoch + 1),
        lambda: loader.load_state_dict(loader.state_dict()),
        lambda: next(iter(loader)),
    ):
        with pytest.raises(InputError, match="this iterator was left behind"):
            next(moved(move))
