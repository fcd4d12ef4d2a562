"""Buffers come back when nobody can see them any more, and not a moment earlier."""

from __future__ import annotations

import gc

import torch

from camp.pipeline.ring import Ring


def ring(size: int = 2) -> Ring:
    return Ring((4, 3), dtype=torch.float32, size=size)


class FakeEvent:
    def __init__(self) -> None:
        self.done = self.waited = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = self.waited = True


def test_a_lent_buffer_comes_back_with_its_last_view() -> None:
    buffers = ring()
    buffer = buffers.take()
    pointer = buffer.data_ptr()
    lent = buffers.lend(buffer, 2)
    assert lent.shape == (2, 3)
    assert lent.data_ptr() == pointer
    del buffer
    view = lent[1]
    shared = view.numpy()
    del lent
    assert buffers.take().data_ptr() != pointer
    del view
    assert buffers.take().data_ptr() != pointer
    del shared
    gc.collect()
    assert buffers.take().data_ptr() == pointer
    assert buffers.made == 3


def test_autograd_keeps_a_buffer_it_needs() -> None:
    buffers = ring()
    buffer = buffers.take()
    pointer = buffer.data_ptr()
    weight = torch.ones(3, requires_grad=True)
    lent = buffers.lend(buffer, 4)
    lent.fill_(2)
    loss = (lent * weight).sum()  # keeps `lent` for the gradient
    del lent, buffer
    other = buffers.take()
    assert other.data_ptr() != pointer
    other.fill_(99)
    torch.autograd.backward([loss])
    assert weight.grad is not None
    assert weight.grad.tolist() == [8, 8, 8]
    del loss
    gc.collect()
    assert buffers.take().data_ptr() == pointer


def test_what_a_greedy_consumer_made_grow_is_given_back() -> None:
    buffers = ring(size=2)
    lent = [buffers.lend(buffers.take(), 4) for _ in range(6)]
    assert buffers.made == 6
    del lent
    gc.collect()
    kept = [buffers.take() for _ in range(2)]
    assert buffers.made == 6
    buffers.take()
    assert buffers.made == 7
    assert len(kept) == 2


def test_a_copied_buffer_waits_for_its_event() -> None:
    buffers = ring(size=2)
    first, second = buffers.take(), buffers.take()
    events = FakeEvent(), FakeEvent()
    buffers.after(events[0], first)
    buffers.after(events[1], second)
    events[0].done = True
    assert buffers.take() is first  # its copy was done: nobody waited
    assert [event.waited for event in events] == [False, False]
    assert buffers.take() is second  # all buffers are in use: the oldest copy is waited for
    assert [event.waited for event in events] == [False, True]
    assert buffers.made == 2
