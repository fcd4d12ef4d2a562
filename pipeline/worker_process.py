"""Messages on stdin -> units done, events on stdout: the process behind the local executor.

One JSON object a line, both ways. In: the job, then units. Out: ready, progress, at, done, error.
It ends when its stdin does, so that a driver that is killed takes its workers with it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any, BinaryIO

from ..errors import CampError, StorageError
from .extract_events import Job
from .extract_worker import ExtractWorker
from .job_worker import build_worker
from .plan import Unit

MAX_HANGING = 8  # threads lost to endless decodes before a fresh process is better


def main() -> int:
    """Serve one driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, and it decides
    send = _Sender(_private_stdout())
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), name="driver", daemon=True).start()
    job = Job.from_json(messages.get())
    try:
        worker = build_worker(job)
        limit_threads(job.options.threads)
    except Exception as error:
        send(error_event(error, fatal=True))
        return 1
    send(
        {
            "event": "ready",
            "device": worker.device,
            "description": worker.description,
            "fingerprint": worker.fingerprint,
        }
    )
    while worker.hanging < MAX_HANGING:
        message = messages.get()
        if "probe" in message:
            assert isinstance(worker, ExtractWorker)
            send({"event": "probe", **worker.probe(Unit(**message["probe"])), "peak_memory": peak_memory()})
            continue
        unit = Unit(**message["unit"])
        skip = {int(image_id): reason for image_id, reason in message["skip"].items()}
        try:
            stats = worker.run(
                unit, careful=message["careful"], skip=skip, retry=message["retry"], announce=send
            )
        except Exception as error:
            send(error_event(error, fatal=False))
        else:
            send({"event": "done", **stats.as_json(), "peak_memory": peak_memory()})
    send({"event": "retire"})
    return 0


def limit_threads(threads: int) -> None:
    """Keep the network to its share of the cores, where torch is in use at all."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def peak_memory() -> int:
    """The most memory this process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


class _Sender:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __call__(self, event: Any) -> None:
        self._stream.write(json.dumps(event).encode() + b"\n")
        self._stream.flush()


def _private_stdout() -> BinaryIO:
    """The pipe to the driver; whatever libraries print goes to stderr instead."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def _listen(messages: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        messages.put(json.loads(line))
    os._exit(0)  # the driver is gone or done with us; nothing half-done can have been committed


def error_event(error: Exception, *, fatal: bool) -> dict[str, Any]:
    """An exception -> what the driver needs to know of it."""
    known = isinstance(error, CampError)
    return {
        "event": "error",
        "fatal": fatal,
        "kind": type(error).__name__ if known else "CampError",
        "storage": isinstance(error, StorageError) or (isinstance(error, OSError) and not fatal),
        "reason": str(error) if known else f"{type(error).__name__}: {error}",
    }


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads that hang in a decoder must not keep the process
