"""A unit of images -> its committed shard, and what happened on the way: the one worker of every executor.

Batches are composed from the plan: images are taken in windows of the manifest's order, and within a window
those of one prepared shape go through the network together. What arrives first changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..errors import CampError, InputError
from ..extractors.photograph import MAX_PIXELS, read_photograph
from ..manifests.dataset import Dataset
from ..schema import ImageRow, Regions
from .decode_ahead import DecodeAhead, OverTimeError
from .extract_options import ExtractOptions
from .extract_setup import build_from_options, choose_device, describe, features_fingerprint, provenance
from .feature_index import finished_marker
from .job_worker import Announce, UnitStats, no_announce
from .plan import Unit, unit_images
from .remote_dataset import mirror_of
from .shard_reader import Shard
from .shard_writer import ShardWriter

WINDOW_BATCHES = 4  # a window is so many batches of images, and as many again are decoded ahead
PROBE_IMAGES = 64
PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    pixels: npt.NDArray[Any]
    size: tuple[int, int]  # width, height of the upright original


class ExtractWorker:
    """Builds the extractor once, then does unit after unit."""

    def __init__(self, dataset: Dataset, *, name: str, options: ExtractOptions) -> None:
        self.options = options
        self._dataset = dataset
        self.folder = dataset.features_folder(name)
        self._mirror = mirror_of(dataset, name)
        self._waited = 0.0
        self.device = choose_device(options.device)
        self.extractor = build_from_options(options, device=self.device)
        self.description = describe(self.extractor)
        self._spec = options.feature_spec(self.description)
        self.fingerprint = features_fingerprint(options, self.description)
        self._decoder = DecodeAhead(
            self._prepare,
            threads=options.decoders or (2 if self.device == "cuda" else 1),
            seconds=options.image_seconds,
            ahead=options.batch * WINDOW_BATCHES,
        )

    @property
    def hanging(self) -> int:
        """Decoding threads that never came back: a reason to start a fresh worker."""
        return self._decoder.hanging

    def close(self) -> None:
        self._decoder.close()

    def run(
        self,
        unit: Unit,
        *,
        careful: bool = False,
        skip: Mapping[int, str] | None = None,
        retry: bool = False,
        announce: Announce = no_announce,
    ) -> UnitStats:
        """A unit -> its shard, committed. Doing it twice is harmless: the bytes are the same.

        careful works on one image at a time and says on which; skip are images that killed a worker;
        retry takes over the rows of a finished shard and does its failed images again.
        """
        start = time.perf_counter()
        rows = unit_images(self._dataset, unit)
        expected = unit.fingerprint(self.fingerprint)
        kept = self._finished_rows(unit, expected) if retry else {}
        todo = [row for row in rows if row.image_id not in kept]
        announce({"event": "progress", "images": len(kept), "failed": 0})
        self._waited = 0.0
        made = (self._one_by_one if careful else self._in_windows)(todo, skip or {}, announce)
        with ShardWriter(
            self.folder,
            shard=unit.shard,
            spec=self._spec,
            fingerprint=expected,
            capacity=unit.images,
            provenance=provenance(self.options, self.description),
        ) as writer:
            for row in rows:
                if row.image_id in kept:
                    writer.add_stored(kept[row.image_id])
                    continue
                regions = next(made)
                reason = str(regions) if isinstance(regions, CampError) else _add(writer, row, regions)
                if reason is not None:
                    writer.fail(row.image_id, reason)
                    announce({"event": "progress", "images": 0, "failed": 1})
            # Somebody else may have done a straggler's unit meanwhile: its marker vouches for the same bytes.
            done = None if retry else finished_marker(self.folder, unit.shard, expected)
            size = (done or writer.commit())["bytes"]
        self._mirror.push(unit.shard)
        return UnitStats(
            shard=unit.shard,
            images=writer.rows,
            failed=len(writer.failures),
            bytes=size,
            seconds=time.perf_counter() - start,
            wait_seconds=self._waited,
        )

    def probe(self, unit: Unit) -> dict[str, Any]:
        """Time the first images of a unit, without writing anything; the very first only warms up."""
        rows = unit_images(self._dataset, unit)[:PROBE_IMAGES]
        list(self._in_windows(rows[:1], {}, no_announce))
        images = failed = 0
        start = time.perf_counter()
        while images < len(rows) and time.perf_counter() - start < PROBE_SECONDS:
            batch = rows[images : images + self.options.batch]
            made = list(self._in_windows(batch, {}, no_announce))
            images += len(batch)
            failed += sum(isinstance(regions, CampError) for regions in made)
        return {"images": images, "failed": failed, "seconds": time.perf_counter() - start}

    def _finished_rows(self, unit: Unit, expected: str) -> dict[int, dict[str, npt.NDArray[Any]]]:
        """Image id -> its stored row, where the unit has been done before."""
        self._mirror.fetch(unit.shard)
        marker = finished_marker(self.folder, unit.shard, expected)
        if marker is None:
            return {}
        shard = Shard(self.folder, marker, spec=self._spec)
        columns = {column.name: shard.column(column.name) for column in self._spec.layout()}
        return {
            image_id: {name: values[row : row + 1] for name, values in columns.items()}
            for row, image_id in enumerate(columns["image_id"].tolist())
        }

    def _prepare(self, row: ImageRow) -> _Prepared:
        """Runs in the decoding threads."""
        try:
            path = self._dataset.image_path(row)
        except InputError:
            raise InputError("no image file in the manifest") from None
        data = read_bytes(path)
        photograph = read_photograph(
            data, max_pixels=self.options.max_pixels or MAX_PIXELS, exif=self.options.exif
        )
        return _Prepared(self.extractor.prepare(photograph), (photograph.width, photograph.height))

    def _in_windows(
        self, rows: Sequence[ImageRow], skip: Mapping[int, str], announce: Announce
    ) -> Iterator[Regions | CampError]:
        """Each row's regions, in order."""
        size = self.options.batch * WINDOW_BATCHES
        decoded = self._decoder.map([row for row in rows if row.image_id not in skip])
        for first in range(0, len(rows), size):
            window = rows[first : first + size]
            outcome: dict[int, Regions | CampError] = {}
            buckets: dict[tuple[int, ...], list[tuple[ImageRow, _Prepared]]] = {}
            for row in window:
                if row.image_id in skip:
                    outcome[row.image_id] = CampError(skip[row.image_id])
                    continue
                start = time.perf_counter()
                _, prepared = next(decoded)
                self._waited += time.perf_counter() - start
                if isinstance(prepared, Exception):
                    outcome[row.image_id] = CampError(_reason(prepared))
                else:
                    buckets.setdefault(prepared.pixels.shape, []).append((row, prepared))
            announce({"event": "progress", "images": len(outcome), "failed": 0})
            for bucket in buckets.values():
                for start_of_batch in range(0, len(bucket), self.options.batch):
                    batch = bucket[start_of_batch : start_of_batch + self.options.batch]
                    outcome.update(self._extract(batch))
                    announce({"event": "progress", "images": len(batch), "failed": 0})
            for row in window:
                yield outcome[row.image_id]

    def _one_by_one(
        self, rows: Sequence[ImageRow], skip: Mapping[int, str], announce: Announce
    ) -> Iterator[Regions | CampError]:
        """The same, with nothing worked ahead and every image named before it is touched."""
        for row in rows:
            announce({"event": "progress", "images": 1, "failed": 0})
            if row.image_id in skip:
                yield CampError(skip[row.image_id])
                continue
            announce({"event": "at", "image": row.image_id})
            _, prepared = next(self._decoder.map([row]))
            if isinstance(prepared, Exception):
                yield CampError(_reason(prepared))
            else:
                yield self._extract([(row, prepared)])[row.image_id]

    def _extract(self, batch: Sequence[tuple[ImageRow, _Prepared]]) -> dict[int, Regions | CampError]:
        """Prepared images of one shape -> image id -> regions, or why not."""
        try:
            regions = self.extractor.extract(
                [prepared.pixels for _, prepared in batch], [prepared.size for _, prepared in batch]
            )
        except Exception as error:
            if len(batch) == 1:
                return {batch[0][0].image_id: CampError(_reason(error))}
            # Out of memory, or one bad image: each alone, so that the others lose nothing.
            return {key: value for single in batch for key, value in self._extract([single]).items()}
        assert len(regions) == len(batch)
        return {row.image_id: found for (row, _), found in zip(batch, regions, strict=True)}


def _add(writer: ShardWriter, row: ImageRow, regions: Regions) -> str | None:
    """Give one image to the writer; the reason where it is refused."""
    try:
        writer.add(row.image_id, regions)
    except InputError as error:
        return str(error).removeprefix(f"{writer.shard}, image {row.image_id}: ")
    return None


def _reason(error: Exception) -> str:
    """An exception -> one line for failures.parquet, without paths: the same on every machine."""
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, PermissionError):
        return "file not readable (permission denied)"
    if isinstance(error, OSError) and error.strerror:
        return f"file not readable ({error.strerror})"
    text = " ".join(str(error).split())
    if isinstance(error, (CampError, OverTimeError)):
        return text
    return f"{type(error).__name__}: {text}"


def read_bytes(path: str) -> bytes:
    """A local path or a URL -> the file's bytes."""
    if "://" in path:
        import fsspec

        with fsspec.open(path, "rb") as stream:
            data: bytes = stream.read()
            return data
    return Path(path).read_bytes()
