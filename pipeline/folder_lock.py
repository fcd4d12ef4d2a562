"""A feature folder -> one driver at a time; a lock of a process that died does not count."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ..errors import StorageError
from ..files import storage_errors

LOCK_FILE = "lock"


@contextlib.contextmanager
def folder_lock(
    control: Path, *, shared: bool = False, doing: str = "extracting into it", instead: str = "--name"
) -> Iterator[None]:
    """Hold a control folder for this process. The kernel lets go of it when the process ends, in any way.

    shared is for workers that somebody else's script started: many of them, but no driver beside them.
    """
    path = control / LOCK_FILE
    with storage_errors(path):
        control.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            raise StorageError(
                f"{control.parent}: {holder} is {doing}; wait for it, or choose another {instead}"
            ) from None
        if not shared:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
