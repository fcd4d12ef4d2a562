"""A read beyond the end of a mapped file that was cut short -> zeros and a mark, not the end of the process.

The kernel answers such a read with SIGBUS, in the middle of a copy. A file may be cut at any moment (copying
over it does), so looking before every read cannot help. The handler puts empty memory in place of what is
gone, so that the copy ends; whoever gathers looks at the mark afterwards and raises.

A handler in Python's own sense would run too late: the copy would fault for ever. This one is called by the C
library, inside the copy, where the interpreter is either not held by this thread or at rest.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from typing import Any

_SA_SIGINFO = 4
_SI_ADDR = 16  # offset of si_addr in siginfo_t, 64-bit Linux
_MAP_FIXED, _MAP_FAILED = 0x10, ctypes.c_void_p(-1).value
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    """struct sigaction of glibc on x86-64 and ARM64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _supported() -> bool:
    return (
        sys.platform == "linux"
        and platform.machine() in ("x86_64", "aarch64")
        and sys.maxsize > 2**32
        and platform.libc_ver()[0] == "glibc"
    )


class BusGuard:
    """Watches ranges of memory; the handler is there only while there are some."""

    def __init__(self) -> None:
        self.available = _supported()
        self._ranges: dict[int, int] = {}  # start -> stop
        self._users: dict[int, int] = {}
        self._hit: set[int] = set()
        self._lock = threading.RLock()  # unwatch() is also called by finalizers, at any moment
        self._before = _SigAction()
        if self.available:
            self._libc: Any = ctypes.CDLL(None, use_errno=True)
            self._libc.mmap.restype = ctypes.c_void_p
            self._libc.mmap.argtypes = [
                ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
            ]  # fmt: skip
            self._handler = _Handler(self._on_signal)

    def watch(self, start: int, size: int) -> None:
        """Guard a mapping from now on."""
        if not self.available:
            return
        with self._lock:
            self._users[start] = self._users.get(start, 0) + 1
            self._ranges[start] = start + size
            if len(self._ranges) == 1:
                action = _SigAction(
                    handler=ctypes.cast(self._handler, ctypes.c_void_p).value, flags=_SA_SIGINFO
                )
                self._libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._before))

    def unwatch(self, start: int) -> None:
        """The mapping is not read any more."""
        if not self.available:
            return
        with self._lock:
            self._users[start] -= 1
            if self._users[start]:
                return
            del self._users[start], self._ranges[start]
            self._hit.discard(start)
            if not self._ranges:
                self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._before), None)

    def was_hit(self, start: int) -> bool:
        """Whether a read of this mapping met its end."""
        return start in self._hit

    def _on_signal(self, number: int, info: int, context: int) -> None:
        address = ctypes.c_void_p.from_address(info + _SI_ADDR).value or 0
        for start, stop in tuple(self._ranges.items()):
            if start <= address < stop:
                page = address - address % mmap.PAGESIZE
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                if self._libc.mmap(page, stop - page, mmap.PROT_READ, flags, -1, 0) != _MAP_FAILED:
                    self._hit.add(start)
                    return
        # Not ours: with the old handler back, the same instruction faults again and is dealt with as ever.
        self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._before), None)


GUARD = BusGuard()  # signals belong to the process, so there is one
