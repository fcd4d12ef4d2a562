"""A path -> the files of a foreign feature set, and cheap marks of their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import InputError
from ...files import is_temporary

_EDGE_BYTES = 1 << 20


def find_files(
    source: Path, *, wanted: Callable[[str], bool], what: str, any_name: bool = False
) -> list[Path]:
    """A file -> itself; a folder -> the wanted files in it and below, in the order of their names."""
    if source.is_file():
        if not any_name and not wanted(source.name):
            raise InputError(f"{source}: expected {what}; is --format right?")
        return [source]
    if not source.is_dir():
        raise InputError(f"{source}: no such file or folder, expected {what}")
    found = [path for path in _walk(source) if wanted(path.name) and not is_temporary(path)]
    if not found:
        raise InputError(f"{source}: no {what} found in this folder; is --format right?")
    return sorted(found)


def _walk(folder: Path) -> Iterable[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)


def edges_digest(path: Path, *, edge_bytes: int = _EDGE_BYTES) -> str:
    """A file -> a digest of its size, its beginning and its end; a 47 GB file costs two reads."""
    import xxhash

    size = path.stat().st_size
    digest = xxhash.xxh3_128(b"%d" % size)
    with path.open("rb") as stream:
        digest.update(stream.read(edge_bytes))
        if size > edge_bytes:
            stream.seek(max(edge_bytes, size - edge_bytes))
            digest.update(stream.read(edge_bytes))
    return digest.hexdigest()


def advise_will_need(descriptor: int, start: int, length: int) -> None:
    """Let the kernel read a part of a file ahead, where it offers that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)


def name_without(path: Path, *, root: Path, suffix: str) -> str:
    """The id that a file's name gives: below its folder, without the suffix; dots inside stay."""
    name = path.relative_to(root).as_posix() if root != path else path.name
    return name[: -len(suffix)] if suffix and name.endswith(suffix) else name
