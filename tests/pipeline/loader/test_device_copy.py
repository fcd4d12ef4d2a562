"""Copies run on their own stream; the consumer's stream waits for them and buffers for their end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from camp.pipeline.device_copy import DeviceDelivery
from camp.pipeline.ring import Ring

MakeWorld = Callable[..., Any]


class FakeStream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.waited_for: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waited_for.append(event)


class FakeEvent:
    """Happens when the test says so."""

    def __init__(self) -> None:
        self.stream: FakeStream | None = None
        self.happened = False
        self.synchronized = False

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = self.synchronized = True


class FakeCuda:
    """Streams and events of a device that is not there."""

    def __init__(self) -> None:
        self.events: list[FakeEvent] = []
        self.consumer = FakeStream("consumer")
        self.within: list[FakeStream] = []

    def Stream(self, device: object) -> FakeStream:  # noqa: N802
        return FakeStream("copy")

    def Event(self) -> FakeEvent:  # noqa: N802
        self.events.append(FakeEvent())
        return self.events[-1]

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.within.append(stream)
        yield

    def current_stream(self, device: object) -> FakeStream:
        return self.consumer


def parts() -> dict[str, torch.Tensor | None]:
    numbers = torch.arange(2)
    return {
        "region_mask": torch.ones(2, 3, dtype=torch.bool),
        "boxes": torch.zeros(2, 3, 4),
        "tokens": numbers[:, None],
        "lengths": numbers,
        "image_ids": numbers,
        "caption_ids": numbers,
        "caption_image": numbers,
        "labels": None,
    }


def test_the_copy_is_on_its_own_stream_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: used.append(stream.name))
    cuda = FakeCuda()
    ring = Ring((4, 3, 5), dtype=torch.float16, size=2)
    delivery = DeviceDelivery(ring, device=torch.device("cpu"), dtype=torch.float32, backend=cuda)
    buffer = ring.take()
    buffer.fill_(1.5)
    deliver = delivery.start(buffer, 2, parts())
    assert cuda.within == [delivery.stream]
    copied, ready = cuda.events
    assert copied.stream is ready.stream is delivery.stream
    assert not cuda.consumer.waited_for  # nobody waits before the batch is asked for
    batch = deliver()
    assert cuda.consumer.waited_for == [ready]
    assert used == ["consumer"] * 8  # regions and seven others; labels are not there
    assert batch.regions.dtype == torch.float32
    assert batch.regions.shape == (2, 3, 5)
    assert (batch.regions == 1.5).all()
    assert batch.labels is None


def test_a_buffer_is_not_filled_again_before_its_copy_is_done() -> None:
    cuda = FakeCuda()
    ring = Ring((4, 3, 5), dtype=torch.float16, size=2)
    delivery = DeviceDelivery(ring, device=torch.device("cpu"), dtype=None, backend=cuda)
    first = ring.take()
    delivery.start(first, 2, parts())
    second = ring.take()
    assert second is not first
    delivery.start(second, 2, parts())
    cuda.events[0].happened = True
    assert ring.take() is first
    assert (
        ring.take() is second
    )  # both in use: waits for the second copy, which the first event did not cover
    assert cuda.events[2].synchronized
    assert ring.made == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_a_device_are_those_on_the_host(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 60})
    host = world.loader(epoch_unit="caption")
    device = world.loader(epoch_unit="caption", device="cuda")
    for expected, found in zip(host, device, strict=True):
        for name in ("regions", "region_mask", "boxes", "tokens", "lengths", "image_ids", "caption_ids"):
            tensor = getattr(found, name)
            assert tensor.is_cuda
            assert torch.equal(tensor.cpu(), getattr(expected, name))
    assert device._delivery.ring.pinned
    assert device._delivery.ring.made <= 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_busy_consumer_stream_never_sees_a_batch_overwritten(make_world: MakeWorld) -> None:
    world = make_world(counts={"train": 60})
    ballast = torch.randn(2048, 2048, device="cuda")
    sums = []
    for batch in world.loader(device="cuda", prefetch=1):
        for _ in range(20):
            ballast = (ballast @ ballast).clamp(-1, 1)
        sums.append(batch.regions.sum())
    expected = [batch.regions.sum() for batch in world.loader()]
    assert torch.allclose(torch.stack(sums).cpu(), torch.stack(expected))
