"""Bytes -> files that are either whole or absent, and the checksums that prove it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import StorageError, VerificationError

SEAL = "seal"  # the field of a sealed JSON file that vouches for the others
_READ_BYTES = 1 << 22


def canonical_json(value: Any) -> bytes:
    """A JSON value -> the same bytes on every machine: sorted keys, one trailing newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def fingerprint(value: Any) -> str:
    """A JSON value -> 32 hex digits that change when the value does."""
    return _digest(canonical_json(value))


def sealed(value: Mapping[str, Any]) -> bytes:
    """A JSON object -> canonical JSON that carries a digest of its own bytes."""
    assert SEAL not in value
    blank = canonical_json({**value, SEAL: ""})
    return blank.replace(_seal_line(""), _seal_line(_digest(blank)))


def unseal(content: bytes, *, source: object) -> dict[str, Any]:
    """Sealed bytes -> the object without its seal; any changed byte is an error that names `source`."""
    try:
        value = json.loads(content)
        seal = value.pop(SEAL)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"{source}: damaged, not a sealed JSON object ({error!r})") from None
    if seal != _digest(content.replace(_seal_line(seal), _seal_line(""))):
        raise VerificationError(f"{source}: damaged, its content does not fit its seal")
    return dict(value)


def _seal_line(seal: object) -> bytes:
    # Only fields of the outermost object stand behind one space.
    return f'\n "{SEAL}": "{seal}"'.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed file -> its object."""
    return unseal(path.read_bytes(), source=path)


def checksum_bytes(content: bytes | memoryview) -> str:
    """Bytes -> 'xxh3:<hex>'."""
    import xxhash

    return f"xxh3:{xxhash.xxh3_128_hexdigest(content)}"


def checksum_file(path: Path) -> str:
    """A file -> 'xxh3:<hex>', read in pieces so that memory stays flat."""
    import xxhash

    digest = xxhash.xxh3_128()
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return f"xxh3:{digest.hexdigest()}"


def sync_directory(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; their renames are synchronous anyway.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """The name a file has until it is whole, another one at every call.

    Host and process say whose it is: on a shared disk two machines may write the same file at once.
    """
    host = socket.gethostname().replace(".", "-") or "localhost"
    return path.with_name(f".{path.name}.{host}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file is what a killed writer left behind."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def publish(temporary: Path, path: Path) -> None:
    """A whole, synced temporary file -> its final name, durably."""
    os.replace(temporary, path)  # noqa: PTH105 - one syscall, named as in the commit protocol
    sync_directory(path.parent)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A path -> a stream whose bytes appear under that path only when all of them are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with storage_errors(path):
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Bytes -> a file, whole or not at all."""
    with atomic_writer(path) as stream:
        stream.write(content)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object -> a sealed file, whole or not at all."""
    write_atomic(path, sealed(value))


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Errors of a full or forbidden disk inside the block -> StorageError naming the file."""
    advice = {
        errno.ENOSPC: "no space left on the disk; free some and run the same command again",
        errno.EDQUOT: "the disk quota is used up; free some and run the same command again",
        errno.EFBIG: "the file size limit is reached; raise it (ulimit -f) and run the same command again",
        errno.EACCES: "permission denied; check who owns the folder",
        errno.EROFS: "the file system is read-only; choose another folder",
    }
    try:
        yield
    except OSError as error:
        if error.errno in advice:
            raise StorageError(f"{path}: {advice[error.errno]}") from error
        raise
