"""Regions of images -> one shard, committed so that a kill at any instant leaves it whole or absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt

from ..errors import InputError
from ..files import (
    checksum_file,
    publish,
    sealed,
    storage_errors,
    sync_directory,
    temporary_name,
    write_sealed,
)
from ..schema import FEATURES_VERSION, Regions
from .feature_index import INDEX_FILE, is_done, marker_path, plain_json, read_marker
from .feature_spec import FeatureSpec, parse_shard_name
from .leftovers import claim, remove_leftovers
from .row_block import RowBlock, block_digest, content_checksum
from .shard_file import create_shard_file, locate
from .writeback import start_writeback

Array = npt.NDArray[Any]


class ShardWriter:
    """One shard, as a context: leaving it without commit() removes what was written.

    with ShardWriter(folder, shard="train-00000", spec=spec, fingerprint=unit, capacity=500) as writer:
        writer.add(image_id, regions)        # or writer.fail(image_id, "why")
        writer.commit()
    """

    def __init__(
        self,
        folder: Path,
        *,
        shard: str,
        spec: FeatureSpec,
        fingerprint: str,  # of the unit: what was to be done with which inputs
        capacity: int,  # images in the unit; a failed one leaves fewer rows
        provenance: Mapping[str, Any] | None = None,  # how the features were made; the same for the whole set
    ) -> None:
        parse_shard_name(shard)
        self.folder, self.shard, self.spec = folder, shard, spec
        self.path = folder / f"{shard}{spec.suffix}"
        self.fingerprint, self.capacity = fingerprint, capacity
        self.provenance = plain_json(provenance or {})
        self.rows = 0
        self.failures: list[dict[str, Any]] = []
        self._seen: set[int] = set()
        self._digests: list[str] = []
        self._meta = sealed(
            {
                "schema_version": FEATURES_VERSION,
                "shard": shard,
                "spec": spec.to_json(),
                "fingerprint": fingerprint,
                "capacity": capacity,
                "provenance": self.provenance,
            }
        )
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        self._temporary = temporary_name(self.path)
        rows = min(spec.batch_rows, max(capacity, 1))
        self._block, self._spare = RowBlock(spec, rows=rows), RowBlock(spec, rows=rows)
        # One block is hashed and written by a thread while the next is filled.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"write-{shard}")
        self._writing: Future[str] | None = None
        try:
            with storage_errors(self.path):
                self._file = create_shard_file(self._temporary, spec, self._meta)
                claim(self._file.fileno())
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        try:
            self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def add(self, image_id: int, regions: Regions) -> None:
        """One image -> the next row. InputError names the image; record it with fail() and go on."""
        self._take(image_id)
        try:
            self._block.add(image_id, regions)
        except InputError as error:
            self._seen.discard(image_id)
            raise InputError(f"{self.shard}, image {image_id}: {error}") from None
        self.rows += 1
        self._flush_if_full()

    def add_stored(self, rows: Mapping[str, Array]) -> None:
        """Rows of another shard, padded and checked when they were first written -> the next rows."""
        count, first = len(rows["image_id"]), 0
        for image_id in rows["image_id"].tolist():
            self._take(image_id)
        while first < count:
            step = min(count - first, self._block.capacity - self._block.count)
            self._block.add_stored(rows, first, step)
            first += step
            self.rows += step
            self._flush_if_full()

    def fail(self, image_id: int, reason: str) -> None:
        """An image that has no row, and why: kept in the marker, and in failures.parquet at the end."""
        self._take(image_id)
        self.failures.append({"image_id": image_id, "reason": reason})

    def commit(self, **stats: Any) -> dict[str, Any]:
        """Sync, checksum, rename, and the marker last -> the marker. `stats` are kept in it as they are."""
        with storage_errors(self.path):
            self._flush()
            self._await_write()
            self._file.finish()
            layout, digests = locate(self._temporary, self.spec, self._meta)
            assert digests == self._digests
            checksum = self._sync_and_checksum()
            marker = {
                "schema_version": FEATURES_VERSION,
                "shard": self.shard,
                "file": self.path.name,
                "spec": self.spec.to_json(),
                "provenance": self.provenance,
                "fingerprint": self.fingerprint,
                "capacity": self.capacity,
                "rows": self.rows,
                "bytes": os.fstat(self._file.fileno()).st_size,
                "checksum": checksum,
                "content": content_checksum(digests),
                "digests": digests,
                "layout": layout.to_json(),
                "failures": sorted(self.failures, key=lambda failure: failure["image_id"]),
                "stats": stats,
            }
            if (same := self._committed_before(marker)) is not None:
                return same
            self._withdraw()
            publish(self._temporary, self.path)
            write_sealed(marker_path(self.folder, self.shard), marker)
        return marker

    def _take(self, image_id: int) -> None:
        if image_id in self._seen:
            raise InputError(f"{self.shard}: image {image_id} twice")
        if len(self._seen) >= self.capacity:
            raise InputError(f"{self.shard}: more than the {self.capacity} images it was made for")
        self._seen.add(image_id)

    def _flush_if_full(self) -> None:
        if self._block.full:
            with storage_errors(self.path):
                self._flush()

    def _flush(self) -> None:
        if self._block.count:
            self._await_write()
            self._writing = self._thread.submit(self._write, self._block)
            self._block, self._spare = self._spare, self._block

    def _write(self, block: RowBlock) -> str:
        columns = block.columns()
        digest = block_digest(columns)
        self._file.write(columns, digest)
        block.clear()
        start_writeback(self._file.fileno())
        return digest

    def _await_write(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self._digests.append(writing.result())

    def _sync_and_checksum(self) -> str:
        """Both at once: the disk is busy with the one, a core with the other."""
        checksum = self._thread.submit(checksum_file, self._temporary)
        os.fsync(self._file.fileno())
        return checksum.result()

    def _committed_before(self, marker: Mapping[str, Any]) -> dict[str, Any] | None:
        """The marker of the same bytes, where another worker was faster: nothing must be withdrawn then."""
        if not is_done(self.folder, self.shard, self.fingerprint):
            return None
        found = read_marker(self.folder, self.shard)
        same = ("checksum", "failures", "provenance")
        return found if found is not None and all(found[name] == marker[name] for name in same) else None

    def _withdraw(self) -> None:
        """Take back what would otherwise vouch for the shard that is about to be replaced."""
        if self.path.exists():
            (self.folder / INDEX_FILE).unlink(missing_ok=True)
            marker_path(self.folder, self.shard).unlink(missing_ok=True)
            sync_directory(self.folder)
