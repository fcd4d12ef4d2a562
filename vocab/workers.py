"""Chunks -> results in order: in this process at first, in all cores once the work turns out to be long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

State = TypeVar("State")
Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

PATIENCE_SECONDS = 2.0  # starting a process and importing NLTK there takes about one
_AHEAD = 2  # chunks in flight per worker: memory stays bounded however long the stream is

_state: Any = None


def map_chunks(
    function: Callable[[State, Chunk], Result],
    chunks: Iterable[Chunk],
    *,
    setup: Callable[[], State],
    workers: int | None = 1,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[Result]:
    """function(setup(), chunk) for every chunk, in order.

    workers=1 stays in this process. workers=None uses all cores, but only for what is left after `patience`
    seconds. Processes are spawned: a script that asks for them needs `if __name__ == "__main__"`.
    """
    remaining = iter(chunks)
    count = available_cores() if workers is None else workers
    if count <= 1 or workers is None:
        state = setup()
        deadline = time.monotonic() + patience
        for chunk in remaining:
            yield function(state, chunk)
            if count > 1 and time.monotonic() > deadline:
                break
        else:
            return
    yield from _map_in_processes(function, remaining, setup=setup, workers=count)


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _map_in_processes(
    function: Callable[[State, Chunk], Result],
    chunks: Iterator[Chunk],
    *,
    setup: Callable[[], State],
    workers: int,
) -> Iterator[Result]:
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),  # fork is unsafe beside Arrow's threads
        initializer=_prepare_worker,
        initargs=(setup,),
    )
    pending: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_call, function, chunk))
            if len(pending) >= workers * (1 + _AHEAD):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker(setup: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # A killed parent leaves no orphan waiting for work for ever.
    threading.Thread(target=_follow_parent, daemon=True).start()
    global _state
    _state = setup()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[[Any, Chunk], Result], chunk: Chunk) -> Result:
    return function(_state, chunk)
