"""Temporary files of writers that were killed -> removed, those of living writers left alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from pathlib import Path

_NAME = re.compile(r"\..+\.(?P<host>[^.]+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.tmp")
_OLD_SECONDS = 24 * 3600.0


def claim(descriptor: int) -> None:
    """Lock a temporary file for as long as its writer lives; the kernel lets go when it is killed."""
    # Where a file system has no locks, the process id and the file's age decide.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what dead writers left in a folder.

    A file goes when its lock is free and its writer is known to be gone: a process of this host that does
    not exist any more, or, as other hosts' processes cannot be seen, a file nobody has written to for a day.
    """
    removed = []
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name)
        if match is None:
            continue
        with contextlib.suppress(OSError):  # somebody else removed or renamed it just now
            if _is_orphan(entry, host=match["host"], process=int(match["pid"])):
                os.unlink(entry.path)  # noqa: PTH108 - scandir gives strings
                removed.append(Path(entry.path))
    return removed


def _is_orphan(entry: os.DirEntry[str], *, host: str, process: int) -> bool:
    here = host == socket.gethostname().replace(".", "-")
    if here and _is_alive(process):
        return False
    if not here and time.time() - entry.stat().st_mtime < _OLD_SECONDS:
        return False
    descriptor = os.open(entry.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # another container on this machine writes it
    except OSError:
        pass  # no locks here
    finally:
        os.close(descriptor)
    return True


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    # A zombie answers too, until its parent looks at it; the first process of a container often never does.
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return True  # no /proc, or not for us
    return state not in (b"Z", b"X")
