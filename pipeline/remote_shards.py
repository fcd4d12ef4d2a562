"""A feature folder behind a URL -> shards that are fetched when their turn comes, and given up afterwards."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InputError, VerificationError
from ..files import atomic_writer, write_atomic
from .feature_index import INDEX_FILE, FeatureIndex
from .remote_files import RemoteFiles
from .shard_cache import RemoteFile, ShardCache, StoppedError
from .shard_layout import ShardLayout
from .shard_reader import Shard

Integers = npt.NDArray[np.int64]

_DOWNLOADS = 2  # at a time


class RemoteShards:
    """The shards of a URL, through a bounded cache. The index is read anew each time, the shards once."""

    remote = True  # another process that shares the cache may remove a copy; what is mapped stays readable

    def __init__(self, url: str, *, cache: Path, max_bytes: int) -> None:
        self.url = url.rstrip("/")
        self._files = RemoteFiles(self.url)
        index = self._files.read(INDEX_FILE)
        if index is None:
            raise InputError(f"{self.url}: no {INDEX_FILE} found, expected a data set's features/NAME")
        folder = cache / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        write_atomic(folder / INDEX_FILE, index)
        self._index = FeatureIndex.open(folder)
        self.spec, self.fingerprint = self._index.spec, self._index.fingerprint
        entries = self._index.shards
        self._shard_files = [
            RemoteFile(entry["file"], entry["bytes"], entry["checksum"]) for entry in entries
        ]
        self.bounds: Integers = np.cumsum([0, *(entry["rows"] for entry in entries)])
        self.image_ids, self.num_regions = self._small_columns(folder)
        self.cache = ShardCache(self._files, folder / "shards", max_bytes=max_bytes)
        self._lock = threading.Lock()
        self._shards: dict[int, Future[Shard]] = {}  # mapped, or on their way
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def _small_columns(self, folder: Path) -> tuple[Integers, npt.NDArray[np.int32]]:
        """Ids and region counts of all rows: parts of the shards, read once and kept beside the index."""
        path = folder / f"rows-{self.fingerprint}.npz"
        if not path.exists():
            columns = {column.name: column for column in self.spec.layout()}
            found = {}
            for name in ("image_id", "num_regions"):
                ranges = [
                    (entry["file"], segment.offsets[name], segment.rows * columns[name].row_bytes)
                    for entry in self._index.shards
                    for segment in ShardLayout.from_json(entry["layout"], source=entry["file"]).segments()
                ]
                content = b"".join(self._files.read_ranges(ranges))
                found[name] = np.frombuffer(content, columns[name].dtype)
            with atomic_writer(path) as stream:
                np.savez(stream, image_id=found["image_id"], num_regions=found["num_regions"])
        with np.load(path, allow_pickle=False) as rows:
            return rows["image_id"], rows["num_regions"]

    def is_here(self, number: int) -> bool:
        """Whether a shard can be used without waiting."""
        coming = self._shards.get(number)
        return coming is not None and coming.done()

    def shard(self, number: int) -> Shard:
        """A mapped shard; waits until it has been fetched."""
        return self._start(number).result()

    def keep(self, numbers: Sequence[int]) -> None:
        """These shards are needed now and next, in this order: fetch them, and make room from the others."""
        wanted = set(numbers)
        needed = sum(self._shard_files[number].size for number in wanted)
        if needed > self.cache.max_bytes:
            raise InputError(
                f"{self.url}: {len(wanted)} shards of {needed:,} bytes are needed at the same time, "
                f"but the cache may hold {self.cache.max_bytes:,}; give it more room (cache_bytes), or "
                "shuffle in windows of whole shards, such as 'window(100000, 2)'"
            )
        with self._lock:
            self.cache.keep = frozenset(self._shard_files[number].name for number in wanted)
            for number in self._shards.keys() - wanted:
                self._shards.pop(number).cancel()
        for number in numbers:
            self._start(number)

    def _start(self, number: int) -> Future[Shard]:
        with self._lock:
            if number not in self._shards:
                if self._closed:
                    raise StoppedError(f"{self.url}: the loader was closed")
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="shards")
                self._shards[number] = self._pool.submit(self._bring, number)
            return self._shards[number]

    def _bring(self, number: int) -> Shard:
        """Runs in the downloading threads."""
        while True:
            path = self.cache.fetch(self._shard_files[number])
            try:
                return self._map(number, path)
            except VerificationError:
                if path.exists():  # else another process has just made room with it
                    raise

    def _map(self, number: int, path: Path) -> Shard:
        shard = Shard(path.parent, self._index.shards[number], spec=self.spec)
        first, last = self.bounds[number], self.bounds[number + 1]
        for name, known in (("image_id", self.image_ids), ("num_regions", self.num_regions)):
            if not np.array_equal(shard.column(name), known[first:last]):
                raise VerificationError(
                    f"{path}: another {name} than was read at first; remove {path.parent.parent}"
                )
        shard.read_randomly()
        return shard

    def begin(self) -> None:
        """Shards may be asked for, again."""
        self._closed = False
        self.cache.resume()

    def close(self) -> None:
        """End the downloads; whoever waits for one gets an error."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        self.cache.stop()
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        with self._lock:
            self._shards = {number: shard for number, shard in self._shards.items() if _succeeded(shard)}


def _succeeded(shard: Future[Shard]) -> bool:
    return shard.done() and not shard.cancelled() and shard.exception() is None
