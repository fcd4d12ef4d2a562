"""A URL that fsspec understands -> the files below it, with every trouble as a StorageError."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import MissingPackageError, StorageError, VerificationError

_AT_ONCE = 256  # small files or pieces that are read in one go
_CHUNK = 8 << 20


class RemoteFiles:
    """Nothing is listed or opened before it is asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        with _storage_errors(url):
            import fsspec

            self._system, self._root = fsspec.core.url_to_fs(url)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of the files directly below."""
        with _storage_errors(self.url):
            self._system.invalidate_cache()  # others write there too
            try:
                entries = self._system.ls(self._root, detail=True)
            except FileNotFoundError:
                return {}
            return {
                posixpath.basename(entry["name"]): entry["size"]
                for entry in entries
                if entry["type"] == "file"
            }

    def size(self, name: str) -> int | None:
        with _storage_errors(f"{self.url}/{name}"):
            self._system.invalidate_cache()
            try:
                size: int = self._system.info(self._path(name))["size"]
            except FileNotFoundError:
                return None
            return size

    def read(self, name: str) -> bytes | None:
        with _storage_errors(f"{self.url}/{name}"):
            try:
                content: bytes = self._system.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return content

    def read_many(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Small files, many at a time where the storage can."""
        for first in range(0, len(names), _AT_ONCE):
            paths = [self._path(name) for name in names[first : first + _AT_ONCE]]
            with _storage_errors(self.url):
                found = self._system.cat(paths, on_error="omit")
            for path, content in found.items():
                yield posixpath.basename(path), content

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> Iterator[bytes]:
        """(name, first byte, bytes) -> their contents, many at a time where the storage can."""
        for first in range(0, len(ranges), _AT_ONCE):
            some = ranges[first : first + _AT_ONCE]
            with _storage_errors(self.url):
                found = self._system.cat_ranges(
                    [self._path(name) for name, _, _ in some],
                    [start for _, start, _ in some],
                    [start + size for _, start, size in some],
                    on_error="return",
                )
            for (name, _, size), content in zip(some, found, strict=True):
                if isinstance(content, FileNotFoundError):
                    raise StorageError(f"{self.url}/{name}: missing; upload it again")
                if isinstance(content, Exception):
                    raise StorageError(f"{self.url}/{name}: {content}; run the same command again")
                if len(content) != size:
                    raise VerificationError(
                        f"{self.url}/{name}: shorter than its index says ({len(content)} of {size} bytes); "
                        "upload it again"
                    )
                yield bytes(content)

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file, piece by piece."""
        try:
            with _storage_errors(f"{self.url}/{name}"), self._system.open(self._path(name), "rb") as stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:
            raise StorageError(f"{self.url}/{name}: missing; upload it again") from None

    def write(self, name: str, content: bytes) -> None:
        with _storage_errors(f"{self.url}/{name}"):
            self._system.makedirs(posixpath.dirname(self._path(name)), exist_ok=True)
            self._system.pipe_file(self._path(name), content)

    def upload(self, path: Path, name: str, *, size: int) -> None:
        with _storage_errors(f"{self.url}/{name}"):
            self._system.makedirs(self._root, exist_ok=True)
            self._system.put_file(str(path), self._path(name))
        found = self.size(name)
        if found != size:
            raise StorageError(
                f"{self.url}/{name}: {found} bytes arrived, expected {size}; run the same command again"
            )

    def download(self, name: str, path: Path) -> None:
        with _storage_errors(f"{self.url}/{name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            self._system.get_file(self._path(name), str(part))
            part.replace(path)

    def remove(self, name: str) -> None:
        with _storage_errors(f"{self.url}/{name}"), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))


@contextlib.contextmanager
def _storage_errors(where: str) -> Iterator[None]:
    """Whatever a storage library raises -> StorageError naming the file, or what is to be installed."""
    try:
        yield
    except FileNotFoundError:
        raise
    except ImportError as error:
        raise MissingPackageError(
            f"{where}: {error}; for S3 install it with: pip install 'camp-toolkit[s3]'"
        ) from None
    except Exception as error:
        raise StorageError(f"{where}: {error}; run the same command again") from error
