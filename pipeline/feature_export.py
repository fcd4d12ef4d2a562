"""Shards of a data set -> a foreign feature set, a row at a time; whole or not there at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..manifests.dataset import Dataset
from ..manifests.manifest import caption_rows
from ..progress import Bar, ProgressFactory, no_progress
from ..schema import ImageRow, Regions
from .joins import without_suffix
from .layouts.formats import Format, find_format
from .layouts.record import ExportShape, ForeignRow
from .layouts.scan_npy import REPETITIONS, ScanSplit, write_scan
from .shard_reader import ShardReader

ID_KINDS = ("auto", "key", "stem", "cocoid", "imgid", "image-id")


@dataclass(frozen=True, kw_only=True)
class FeatureExportResult:
    """What went out, and what the layout has no place for."""

    destination: Path
    features: str
    images: int
    without_features: int
    ids: str  # which ids were written
    left_out: tuple[str, ...]  # columns

    def as_json(self) -> dict[str, Any]:
        return {
            "destination": str(self.destination),
            "features": self.features,
            "images": self.images,
            "without_features": self.without_features,
            "ids": self.ids,
            "left_out": list(self.left_out),
        }


def export_features(
    dataset: Dataset,
    destination: Path,
    *,
    format: str,
    name: str | None = None,
    splits: Sequence[str] | None = None,
    ids: str = "auto",
    progress: ProgressFactory = no_progress,
) -> FeatureExportResult:
    """Write the features of some splits (default: all), in the order of the manifest."""
    layout = find_format(format)
    if destination.exists():
        raise InputError(f"{destination}: is there already; remove it or choose another name")
    name = choose_features(dataset, name)
    with ShardReader.open(dataset.features_folder(name)) as reader:
        images = list(dataset.image_rows(splits))
        present = [image for image in images if image.image_id in reader]
        if not present:
            raise InputError(f"{dataset.root}: features {name!r} have no row for these splits")
        spec = reader.spec
        missing = [column for column in layout.needs if column not in spec.columns]
        if missing:
            raise InputError(
                f"features {name!r} have no {missing[0]}, which {format} needs; choose another format"
            )
        if not spec.boxes and layout.write is not None:
            raise InputError(f"features {name!r} have no boxes, which {format} needs; choose scan-npy")
        kind = _kind_of_ids(ids, images, layout)
        foreign = _foreign_ids(kind, present)
        positions = reader.positions_of([image.image_id for image in present])
        counts = reader.num_regions[positions]
        shape = ExportShape(
            images=len(present),
            regions=spec.regions if layout.write is None else int(counts.max()),
            dim=spec.dim,
            total_regions=int(counts.sum()),
            columns=spec.columns,
        )
        with progress("export features", len(present), "images") as bar:
            if layout.write is None:
                write_scan(
                    _scan_splits(dataset, present, foreign, positions, reader, bar), destination, shape
                )
            else:
                layout.write(_rows(foreign, positions, reader, bar), destination, shape)
    return FeatureExportResult(
        destination=destination,
        features=name,
        images=len(present),
        without_features=len(images) - len(present),
        ids=kind,
        left_out=tuple(column for column in spec.columns if column not in layout.holds),
    )


def choose_features(dataset: Dataset, name: str | None) -> str:
    """A name that was given, or the only one there is."""
    folder = dataset.root / "features"
    there = sorted(path.parent.name for path in folder.glob("*/index.json"))
    if name is not None and name in there:
        return name
    if name is None and len(there) == 1:
        return there[0]
    listed = ", ".join(there) or "none yet"
    if name is None and there:
        raise InputError(f"{dataset.root}: has several features ({listed}); say which with --features")
    wanted = "" if name is None else f" {name!r}"
    raise InputError(f"{dataset.root}: no features{wanted}, there are: {listed}")


def _rows(
    foreign: Iterable[str], positions: npt.NDArray[np.int64], reader: ShardReader, bar: Bar
) -> Iterator[ForeignRow]:
    for image_id, position in zip(foreign, positions, strict=True):
        yield ForeignRow(image_id, _as_float32(reader[int(position)]))
        bar.advance()


def _as_float32(regions: Regions) -> Regions:
    return replace(regions, features=regions.features.astype(np.float32))


def _scan_splits(
    dataset: Dataset,
    images: Sequence[ImageRow],
    foreign: Sequence[str],
    positions: npt.NDArray[np.int64],
    reader: ShardReader,
    bar: Bar,
) -> Iterator[ScanSplit]:
    """One split after the other; with its captions, where every image has SCAN's five."""
    texts: dict[int, list[str]] = {}
    for caption in caption_rows(dataset.captions):
        texts.setdefault(caption.image_id, []).append(caption.text)
    for split in dict.fromkeys(image.split for image in images):
        chosen = [number for number, image in enumerate(images) if image.split == split]
        captions = [texts.get(images[number].image_id, []) for number in chosen]
        complete = all(len(own) == REPETITIONS for own in captions)
        ids = [foreign[number] for number in chosen]
        yield ScanSplit(
            name=split,
            ids=ids,
            rows=_rows(ids, positions[chosen], reader, bar),
            captions=[text for own in captions for text in own] if complete else (),
        )


def _kind_of_ids(kind: str, images: Sequence[ImageRow], layout: Format) -> str:
    """auto: names, or for layouts of numbers the first number that every image has."""
    if kind not in ID_KINDS:
        raise InputError(f"--ids {kind!r}, expected one of {', '.join(ID_KINDS)}")
    if kind != "auto":
        return kind
    if not layout.numbers:
        return "stem"
    for candidate in ("cocoid", "imgid"):
        if all(getattr(image, candidate) is not None for image in images):
            return candidate
    return "image-id"


def _foreign_ids(kind: str, images: Sequence[ImageRow]) -> list[str]:
    found: list[str] = []
    for image in images:
        if kind == "key":
            found.append(image.key)
        elif kind == "stem":
            found.append(without_suffix(image.key))
        else:
            number = getattr(image, kind.replace("-", "_"))
            if number is None:
                raise InputError(f"image {image.key!r} has no {kind}; choose other --ids")
            found.append(str(number))
    if len(set(found)) < len(found):
        seen: set[str] = set()
        twice = next(name for name in found if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"{twice!r} would be the id of two images; choose other --ids, such as image-id")
    return found
