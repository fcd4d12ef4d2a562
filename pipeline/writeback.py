"""An open file -> its written pages on their way to the disk, without waiting for them."""

from __future__ import annotations

import ctypes
import sys

_START = 2  # SYNC_FILE_RANGE_WRITE


def start_writeback(descriptor: int) -> None:
    """Let the disk begin now, so that the fsync at the end finds little left to do.

    A hint: where there is no such call, or the file system refuses, the fsync does all the work.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "sync_file_range"):
            # Offset and length 0 mean the whole file.
            libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_START))
