"""mmf's LMDB <-> foreign rows: a pickled dictionary under each image's name, and the names under b'keys'."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...errors import InputError, MissingPackageError
from ...manifests.source import Findings
from ...pickles import load_pickle
from ...progress import ProgressFactory, no_progress
from .folders import atomic_folder
from .mmf import info_from_regions, regions_from_info
from .record import ExportShape, ForeignRow

_EDGE_BYTES = 4096
_FIRST_MAP = 1 << 30
_ROWS_PER_TRANSACTION = 256


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError:
        raise MissingPackageError(
            "this layout needs the package lmdb; install it with: pip install 'camp-toolkit[lmdb]'"
        ) from None
    return lmdb


class LmdbLayout:
    """An LMDB folder (data.mdb) or a single-file one, read in place."""

    def __init__(self, source: Path, *, progress: ProgressFactory = no_progress) -> None:
        lmdb = _lmdb()
        data = source / "data.mdb" if source.is_dir() else source
        if not data.is_file():
            raise InputError(f"{data}: no such file, expected an LMDB")
        self._source = source
        try:
            self._env = lmdb.open(
                str(source), subdir=source.is_dir(), readonly=True, lock=False, readahead=False, max_readers=1
            )
        except lmdb.Error as error:
            raise InputError(f"{source}: not a readable LMDB ({error})") from None
        try:
            self.findings = Findings()
            self.ids: list[str] = []
            self._keys: list[bytes] = []
            self._sizes: list[int] = []
            self._marks: list[str] = []
            self._index(progress)
            self.has_boxes = "bbox" in self._item(0)
        except BaseException:
            self.close()
            raise

    def _index(self, progress: ProgressFactory) -> None:
        seen = set()
        with self._env.begin(buffers=True) as transaction, progress("list keys", None, "keys") as bar:
            for key, value in transaction.cursor():
                name = bytes(key)
                if name != b"keys" and name not in seen:
                    seen.add(name)
                    self._keys.append(name)
                    self.ids.append(name.decode("utf-8", "replace"))
                    self._sizes.append(len(value))
                    edges = xxhash.xxh3_64(value[:_EDGE_BYTES])
                    edges.update(value[-_EDGE_BYTES:])
                    self._marks.append(f"{len(value)}:{edges.hexdigest()}")
                    bar.advance()
            listed = transaction.get(b"keys")
            listed = [] if listed is None else load_pickle(bytes(listed), name=f"{self._source}: keys")
        if not self.ids:
            raise InputError(f"{self._source}: the LMDB is empty, expected one entry per image")
        for name in listed:
            if isinstance(name, bytes) and name not in seen:
                self.findings.note("keys that are listed but have no entry", name.decode("utf-8", "replace"))

    def mark(self, row: int) -> str:
        return self._marks[row]

    def max_regions(self, rows: Sequence[int]) -> int:
        """Of the longest value: a region adds its features' bytes, far more than names and types vary by."""
        if not rows:
            return 0
        longest = max(rows, key=lambda row: self._sizes[row])
        return len(self.read(longest).regions.features)

    def will_need(self, rows: Sequence[int]) -> None:
        pass

    def _item(self, row: int) -> dict[str, Any]:
        where = f"{self._source.name}: {self.ids[row]}"
        with self._env.begin() as transaction:
            content = transaction.get(self._keys[row])
        item = load_pickle(content, name=where)
        if not isinstance(item, dict) or not isinstance(item.get("features"), np.ndarray):
            raise InputError(f"{where}: found a {type(item).__name__}, expected a dictionary with features")
        return item

    def read(self, row: int) -> ForeignRow:
        """A position -> the regions under that key."""
        item = self._item(row)
        info = item if self.has_boxes else None
        regions = regions_from_info(f"{self._source.name}: {self.ids[row]}", item["features"], info)
        return ForeignRow(self.ids[row], regions)

    def close(self) -> None:
        self._env.close()


def write_lmdb(rows: Iterable[ForeignRow], destination: Path, shape: ExportShape) -> None:
    """Rows -> an LMDB folder; the map grows as it fills."""
    lmdb = _lmdb()
    with atomic_folder(destination) as folder:
        env = lmdb.open(str(folder), map_size=_FIRST_MAP, lock=False, sync=False, meminit=False)
        try:
            keys: list[bytes] = []
            batch: list[tuple[bytes, bytes]] = []
            for row in rows:
                key = row.image_id.encode("utf-8")
                if key == b"keys" or not 0 < len(key) <= env.max_key_size():
                    raise InputError(
                        f"image id {row.image_id!r} cannot be a key of an LMDB; export with --ids image-id"
                    )
                info = info_from_regions(row.image_id, row.regions)
                item = {"feature_path": row.image_id, "features": row.regions.features, **info}
                batch.append((key, pickle.dumps(item, protocol=4)))
                keys.append(key)
                if len(batch) == _ROWS_PER_TRANSACTION:
                    _put(env, batch, full=lmdb.MapFullError)
                    batch = []
            _put(env, [*batch, (b"keys", pickle.dumps(keys, protocol=4))], full=lmdb.MapFullError)
            env.sync(True)
        finally:
            env.close()


def _put(env: Any, batch: Sequence[tuple[bytes, bytes]], *, full: type[Exception]) -> None:
    while True:
        try:
            with env.begin(write=True) as transaction:
                for key, value in batch:
                    transaction.put(key, value)
            return
        except full:
            env.set_mapsize(env.info()["map_size"] * 2)
