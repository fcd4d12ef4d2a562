"""A batch in host memory -> the same batch on a device, copied on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..schema import Batch
from .ring import Ring

Parts = Mapping[str, Tensor | None]  # the fields of a Batch, regions excepted
Deliver = Callable[[], Batch]


class Delivery(Protocol):
    """How batches reach the consumer."""

    ring: Ring

    def start(self, buffer: Tensor, rows: int, parts: Parts) -> Deliver:
        """Called by the background thread: a full buffer -> what gives the batch to the consumer."""


class HostDelivery:
    """On a CPU nothing is copied: the regions are the ring's buffer, until their last tensor is gone."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def start(self, buffer: Tensor, rows: int, parts: Parts) -> Deliver:
        batch = Batch(regions=self.ring.lend(buffer, rows), **parts)  # type: ignore[arg-type]
        return lambda: batch


class StreamBackend(Protocol):
    """What is used of torch.cuda; the tests have one without a device."""

    def Stream(self, device: Any) -> Any: ...  # noqa: N802

    def Event(self) -> Any: ...  # noqa: N802

    def stream(self, stream: Any) -> Any: ...

    def current_stream(self, device: Any) -> Any: ...


class DeviceDelivery:
    """Copies start in the background thread; the consumer's stream waits for them, never its CPU."""

    def __init__(
        self,
        ring: Ring,
        *,
        device: torch.device,
        dtype: torch.dtype | None,  # converted on the device; None keeps the stored type
        backend: StreamBackend = torch.cuda,
    ) -> None:
        self.ring, self.device, self.dtype, self.backend = ring, device, dtype, backend
        self.stream = backend.Stream(device=device)

    def start(self, buffer: Tensor, rows: int, parts: Parts) -> Deliver:
        with self.backend.stream(self.stream):
            regions = buffer[:rows].to(self.device, non_blocking=True)
            copied = self.backend.Event()
            copied.record(self.stream)
            self.ring.after(copied, buffer)
            if self.dtype is not None:
                regions = regions.to(self.dtype)
            moved = {name: part if part is None else self._move(part) for name, part in parts.items()}
            ready = self.backend.Event()
            ready.record(self.stream)

        def deliver() -> Batch:
            stream = self.backend.current_stream(self.device)
            stream.wait_event(ready)
            for tensor in (regions, *moved.values()):
                if tensor is not None:
                    # Its memory belongs to the copying stream, which must not use it again too early.
                    tensor.record_stream(stream)
            return Batch(regions=regions, **moved)  # type: ignore[arg-type]

        return deliver

    def _move(self, part: Tensor) -> Tensor:
        host = part.pin_memory() if self.ring.pinned else part
        return host.to(self.device, non_blocking=True)
