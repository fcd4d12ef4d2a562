"""Files behind a URL -> checked copies on this machine, never more of them than fit into a given room."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, StorageError, VerificationError
from ..files import checksum_file, is_temporary, storage_errors, temporary_name
from .leftovers import claim, remove_leftovers
from .remote_files import RemoteFiles

_ATTEMPTS = 3
_POLL_SECONDS = 0.05
_LOCKS = "locks"


@dataclass(frozen=True)
class RemoteFile:
    """What is known of a file before it is here."""

    name: str
    size: int
    checksum: str


class StoppedError(Exception):
    """The cache was closed while a file was on its way."""


class ShardCache:
    """A folder of copies. Processes may share it: each file is fetched by one of them, others wait for it.

    A copy is checked when it arrives and when a process first uses it. Room is made by removing the copies
    that were not used for the longest time, and never those in `keep`.
    """

    def __init__(self, remote: RemoteFiles, folder: Path, *, max_bytes: int) -> None:
        self.remote, self.folder, self.max_bytes = remote, folder, max_bytes
        self.downloads = 0
        self.keep: frozenset[str] = frozenset()
        self._checked: set[str] = set()
        self._stopped = threading.Event()
        with storage_errors(folder):
            (folder / _LOCKS).mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)

    def fetch(self, file: RemoteFile) -> Path:
        """A file -> its local copy, whole and checked; downloads it where it is not there."""
        path = self.folder / file.name
        if self._is_good(path, file):
            return path
        with self._lock(file.name):
            if self._is_good(path, file):  # somebody else brought it
                return path
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._download(file, path)
                    break
                except (StorageError, VerificationError):
                    if attempt == _ATTEMPTS:
                        raise
        return path

    def stop(self) -> None:
        """Give up what is on its way."""
        self._stopped.set()

    def resume(self) -> None:
        self._stopped.clear()

    def _is_good(self, path: Path, file: RemoteFile) -> bool:
        try:
            if path.stat().st_size != file.size:
                return False
            if file.name not in self._checked and checksum_file(path) != file.checksum:
                return False
            os.utime(path)  # used just now
        except FileNotFoundError:
            return False
        self._checked.add(file.name)
        return True

    def _download(self, file: RemoteFile, path: Path) -> None:
        import xxhash

        temporary = temporary_name(path)
        try:
            with storage_errors(path), temporary.open("xb") as stream:
                claim(stream.fileno())
                self._reserve(temporary, file)
                digest, size = xxhash.xxh3_128(), 0
                for chunk in self.remote.chunks(file.name):
                    self._check_stopped()
                    digest.update(chunk)
                    size += len(chunk)
                    stream.write(chunk)
            found = f"xxh3:{digest.hexdigest()}"
            if size != file.size or found != file.checksum:
                raise VerificationError(
                    f"{self.remote.url}/{file.name}: {size:,} bytes with checksum {found}, expected "
                    f"{file.size:,} with {file.checksum}; upload it again"
                )
            temporary.replace(path)
            self._checked.add(file.name)
            self.downloads += 1
        finally:
            temporary.unlink(missing_ok=True)

    def _reserve(self, temporary: Path, file: RemoteFile) -> None:
        """Make room for a file and take it, by giving its still empty copy its size.

        What others are bringing at the same moment cannot be removed yet: then we wait for it.
        """
        while True:
            with self._lock("room"):
                copies, coming = self._look(temporary)
                room = self.max_bytes - file.size - coming - sum(size for _, _, size in copies)
                for _, name, size in copies:
                    if room < 0 and name not in self.keep:
                        (self.folder / name).unlink(missing_ok=True)
                        self._checked.discard(name)
                        room += size
                if room >= 0:
                    os.truncate(temporary, file.size)
                    return
            if not coming:
                raise InputError(
                    f"{self.folder}: {file.size:,} bytes for {file.name} and {self.max_bytes - room:,} in "
                    f"all are needed at the same time, but the cache may hold {self.max_bytes:,}; "
                    "give it more room (cache_bytes), or use smaller windows"
                )
            self._check_stopped(_POLL_SECONDS)

    def _look(self, own: Path) -> tuple[list[tuple[int, str, int]], int]:
        """The copies, (when used, name, bytes), the oldest first; and the bytes that others are bringing."""
        copies, coming = [], 0
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a download has just been given up or got its name
                state = path.stat()
                if is_temporary(path):
                    coming += 0 if path == own else state.st_size
                elif path.is_file():
                    copies.append((state.st_mtime_ns, path.name, state.st_size))
        return sorted(copies), coming

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Threads and processes one after another; the kernel lets go of it for a process that was killed."""
        descriptor = os.open(self.folder / _LOCKS / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._check_stopped(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _check_stopped(self, seconds: float = 0) -> None:
        if self._stopped.wait(seconds):
            raise StoppedError(f"{self.remote.url}: the loader was closed")
