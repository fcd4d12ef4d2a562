"""A file of word vectors, plain, gzipped or inside a zip -> its bytes in blocks, whatever its size."""

from __future__ import annotations

import contextlib
import gzip
import zipfile
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from ..errors import InputError
from ..files import checksum_file
from ..progress import ProgressFactory, no_progress

BLOCK_BYTES = 1 << 20  # larger blocks leave the processor's cache
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile)


@dataclass
class VectorFile:
    """Where the vectors are; `name` is the inner name, which tells the format."""

    path: Path
    name: str
    packing: str  # plain, gzip or zip
    _checksum: str | None = None

    def blocks(self, *, progress: ProgressFactory = no_progress) -> Generator[bytes, None, None]:
        """The unpacked bytes, one block after another."""
        digest = xxhash.xxh3_128()
        try:
            with self._open() as (stream, size), progress(f"reading {self.name}", size, "MB") as bar:
                while block := stream.read(BLOCK_BYTES):
                    digest.update(block)
                    yield block
                    bar.advance(1)
        except _DAMAGE as error:
            raise _damaged(self.path, error) from None
        if self.packing == "plain":
            self._checksum = f"xxh3:{digest.hexdigest()}"

    def checksum(self) -> str:
        """Of the file on disk; found while it was read, unless it is packed."""
        return self._checksum or checksum_file(self.path)

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[BinaryIO, int | None]]:
        """A stream and its size in megabytes, where it is known before the end."""
        if self.packing == "zip":
            with zipfile.ZipFile(self.path) as archive, archive.open(self.name) as member:
                yield member, -(-archive.getinfo(self.name).file_size // BLOCK_BYTES)  # type: ignore[misc]
        elif self.packing == "gzip":
            with gzip.open(self.path, "rb") as unpacked:
                yield unpacked, None  # type: ignore[misc]
        else:
            with self.path.open("rb", buffering=0) as stream:
                yield stream, -(-self.path.stat().st_size // BLOCK_BYTES)


def find_vector_file(path: Path, *, member: str | None = None) -> VectorFile:
    """A path, and for a zip with several files the one meant -> where the bytes are."""
    if not path.is_file():
        raise InputError(f"{path}: no such file of word vectors")
    if path.suffix == ".zip":
        return VectorFile(path=path, name=_choose_member(path, member), packing="zip")
    if member is not None:
        raise InputError(f"{path}: not a zip file, so it has no member {member!r}")
    if path.suffix == ".gz":
        return VectorFile(path=path, name=path.stem, packing="gzip")
    return VectorFile(path=path, name=path.name, packing="plain")


def _choose_member(path: Path, member: str | None) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if member is not None:
        if member not in names:
            raise InputError(f"{path}: no member {member!r}; there are {', '.join(names)}")
        return member
    if len(names) != 1:
        raise InputError(
            f"{path}: {len(names)} files inside ({', '.join(names)}), expected one; "
            "choose with --vectors-member"
        )
    return names[0]


def _damaged(path: Path, error: Exception) -> InputError:
    reason = str(error).rstrip(".") or type(error).__name__
    return InputError(f"{path}: damaged or cut short ({reason}); fetch the file again")
