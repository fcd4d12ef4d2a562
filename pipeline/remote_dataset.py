"""A data set behind a URL -> one that reads as if it were here, and a mirror that keeps its features there.

The manifest is copied to this machine's cache. Features are written to a scratch folder, one shard at a time,
and uploaded: the data first, the marker last, as on a disk. What stays here of an uploaded shard is its
marker and a file of the same length without content, so that everything else works on plain folders.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import posixpath
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError, VerificationError
from ..extractors.weights_file import cache_folder
from ..files import checksum_file, unseal, write_atomic
from ..manifests.dataset import DATASET_FILE, Dataset
from ..schema import ImageRow
from .extract_state import CONTROL_FOLDER, NAME_FILES, STATE_FILE
from .feature_index import FAILURES_FILE, INDEX_FILE, marker_path
from .remote_files import RemoteFiles


class Mirror(Protocol):
    """Keeps a feature folder and the place it belongs to the same."""

    def pull(self) -> None:
        """Learn what is there."""

    def push(self, shard: str) -> None:
        """A shard that was committed here."""

    def push_state(self) -> None:
        """How the extraction was begun."""

    def push_index(self) -> None:
        """The failures, then the index."""

    def fetch(self, shard: str) -> None:
        """Bring a finished shard here, rows and all."""


class NoMirror:
    """A folder that is where it belongs."""

    def pull(self) -> None:
        pass

    def push(self, shard: str) -> None:
        pass

    def push_state(self) -> None:
        pass

    def push_index(self) -> None:
        pass

    def fetch(self, shard: str) -> None:
        pass


@dataclass(frozen=True)
class RemoteDataset(Dataset):
    """A data set whose root is a copy of the manifest; its images and features stay behind the URL."""

    url: str = ""
    scratch: Path = Path()

    def image_path(self, row: ImageRow) -> str:
        roots = self.header["image_roots"]
        if not row.file or row.root >= len(roots) or roots[row.root] is None:
            raise InputError(f"{self.url}: image {row.key!r} has no file; import again with --images DIR")
        root = str(roots[row.root])
        return f"{root if '://' in root else _join(self.url, root)}/{row.file}"

    def features_folder(self, name: str) -> Path:
        return self.scratch / "features" / name


def open_dataset(location: str, *, scratch: Path | None = None) -> Dataset:
    """A folder or a URL -> its data set. scratch is where features of a URL are prepared."""
    if "://" not in location:
        return Dataset.open(location)
    url = location.rstrip("/")
    copy = cache_folder() / "datasets" / hashlib.sha256(url.encode()).hexdigest()[:16]
    files = RemoteFiles(url)
    content = files.read(DATASET_FILE)
    if content is None:
        raise InputError(f"{url}: no {DATASET_FILE} found, expected a data set; upload one there first")
    write_atomic(copy / DATASET_FILE, content)
    for generation in json.loads(content)["generations"]:
        for part in ("images", "captions"):
            path, checksum = copy / generation[part]["file"], generation[part]["checksum"]
            if not path.exists() or checksum_file(path) != checksum:
                files.download(generation[part]["file"], path)
    opened = Dataset.open(copy)
    if scratch is None:
        scratch = Path(tempfile.mkdtemp(prefix="camp-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return RemoteDataset(root=copy, header=opened.header, url=url, scratch=scratch)


def location_of(dataset: Dataset) -> str:
    """What open_dataset takes, on any machine that sees the same storage."""
    return dataset.url if isinstance(dataset, RemoteDataset) else str(dataset.root.resolve())


def scratch_of(dataset: Dataset) -> str | None:
    """A folder of this machine that goes when the driver ends, for its workers to use."""
    return str(dataset.scratch) if isinstance(dataset, RemoteDataset) else None


def worker_scratch(scratch: str | None) -> Path | None:
    """A folder of a worker's own below the driver's, where they share a machine."""
    if scratch is None or not Path(scratch).is_dir():
        return None
    return Path(tempfile.mkdtemp(dir=scratch))


def mirror_of(dataset: Dataset, name: str) -> Mirror:
    """What keeps a data set's features in their place."""
    if not isinstance(dataset, RemoteDataset):
        return NoMirror()
    return RemoteMirror(_join(dataset.url, f"features/{name}"), dataset.features_folder(name))


class RemoteMirror:
    """A feature folder behind a URL and its shadow on this machine."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self._files = RemoteFiles(url)

    def pull(self) -> None:
        sizes = self._files.sizes()
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.json"):
            if path.name not in sizes:
                path.unlink()
        for name in (*NAME_FILES.values(), FAILURES_FILE, INDEX_FILE):
            if name in sizes:
                self._files.download(name, self._folder / name)
        state = self._files.read(f"{CONTROL_FOLDER}/{STATE_FILE}")
        if state is not None:
            write_atomic(self._folder / CONTROL_FOLDER / STATE_FILE, state)
        markers = [name for name in sizes if name.endswith(".json") and name != INDEX_FILE]
        for name, content in self._files.read_many(markers):
            # A marker that is damaged, or whose data are not there in full, vouches for nothing.
            with contextlib.suppress(VerificationError):
                marker = unseal(content, source=f"{self.url}/{name}")
                if sizes.get(marker["file"]) == marker["bytes"]:
                    self._leave_shadow(marker)
                    write_atomic(self._folder / name, content)

    def push(self, shard: str) -> None:
        path = marker_path(self._folder, shard)
        content = path.read_bytes()
        marker = unseal(content, source=path)
        data = marker["file"]
        earlier = self._files.read(path.name)
        if earlier == content and self._files.size(data) == marker["bytes"]:
            self._leave_shadow(marker)  # somebody did the same unit meanwhile
            return
        if earlier is not None:
            self._files.remove(INDEX_FILE)
            self._files.remove(path.name)
        self._files.upload(self._folder / data, data, size=marker["bytes"])
        self._files.write(path.name, content)
        self._leave_shadow(marker)

    def push_state(self) -> None:
        for name in NAME_FILES.values():
            if (self._folder / name).exists():
                self._files.write(name, (self._folder / name).read_bytes())
        state = f"{CONTROL_FOLDER}/{STATE_FILE}"
        self._files.write(state, (self._folder / state).read_bytes())

    def push_index(self) -> None:
        for name in (FAILURES_FILE, INDEX_FILE):
            self._files.write(name, (self._folder / name).read_bytes())

    def fetch(self, shard: str) -> None:
        path = marker_path(self._folder, shard)
        content = self._files.read(path.name)
        if content is not None:
            data = unseal(content, source=f"{self.url}/{path.name}")["file"]
            self._files.download(data, self._folder / data)
            write_atomic(path, content)

    def _leave_shadow(self, marker: Mapping[str, Any]) -> None:
        """A file of the right length that takes no room."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / marker["file"]).open("wb") as stream:
            stream.truncate(marker["bytes"])


def _join(url: str, relative: str) -> str:
    """A URL and a relative path with '..' in it -> a URL."""
    scheme, _, path = url.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(path, relative))}"
