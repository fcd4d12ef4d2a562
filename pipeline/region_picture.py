"""A data set and an image's key -> its regions as stored, by name, and drawn on the photograph."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from ..errors import InputError
from ..extractors.photograph import read_photograph
from ..manifests.dataset import Dataset
from ..manifests.manifest import image_rows
from ..schema import ImageRow, Regions
from .drawing import draw_regions
from .extract_state import read_names
from .extract_worker import read_bytes
from .feature_index import INDEX_FILE
from .shard_reader import ShardReader


@dataclass(frozen=True)
class RegionPicture:
    """What is known about one image's regions."""

    row: ImageRow
    features: str
    regions: Regions
    labels: Sequence[str] | None  # class and attribute of each region
    picture: Image.Image

    def to_json(self) -> dict[str, Any]:
        regions = self.regions
        return {
            "image_id": self.row.image_id,
            "key": self.row.key,
            "split": self.row.split,
            "features": self.features,
            "width": regions.width,
            "height": regions.height,
            "regions": [
                {
                    "box": [round(float(edge), 2) for edge in box],
                    **({} if self.labels is None else {"label": self.labels[rank]}),
                    **(
                        {}
                        if regions.class_scores is None
                        else {"score": round(float(regions.class_scores[rank]), 4)}
                    ),
                }
                for rank, box in enumerate(regions.boxes)
            ],
        }


def picture_regions(
    dataset: Dataset, key: str, *, features: str | None = None, top: int | None = None
) -> RegionPicture:
    """Look an image up, read its regions, draw them."""
    row = find_image(dataset, key)
    name = features or only_features(dataset)
    folder = dataset.features_folder(name)
    with ShardReader.open(folder) as reader:
        if row.image_id not in reader:
            failures = reader.index.failures().to_pylist()
            why = next((entry["reason"] for entry in failures if entry["image_id"] == row.image_id), None)
            raise InputError(
                f"{dataset.root}: features {name!r} have no row for {row.key!r}"
                + (f" ({why})" if why else "; extract its split first")
            )
        regions = reader.by_id(row.image_id)
        decoding = reader.index.provenance.get("decoding", {})
    labels = region_labels(
        regions,
        classes=read_names(folder, "class_names"),
        attributes=read_names(folder, "attribute_names"),
    )
    photograph = read_photograph(read_bytes(dataset.image_path(row)), exif=decoding.get("exif", True))
    picture = draw_regions(photograph.pixels, regions, labels=labels, top=top)
    return RegionPicture(row, name, regions, labels, picture)


def region_labels(
    regions: Regions, *, classes: Sequence[str] | None, attributes: Sequence[str] | None
) -> list[str] | None:
    """Each region's name as people say it: 'red car'; None where the features have no classes."""
    if regions.classes is None or classes is None:
        return None
    names = [_name(classes, int(number)) for number in regions.classes]
    if regions.attributes is None or attributes is None:
        return names
    return [
        f"{_name(attributes, int(number))} {name}"
        for number, name in zip(regions.attributes, names, strict=True)
    ]


def _name(names: Sequence[str], number: int) -> str:
    """Detectors' lists write synonyms as 'stop sign,stopsign'; the first will do."""
    return names[number].split(",")[0] if 0 <= number < len(names) else f"class {number}"


def find_image(dataset: Dataset, key: str) -> ImageRow:
    """A key, the end of one, or an image id -> its row; close keys are offered where there is none."""
    keys = dataset.images["key"]
    matches = dataset.images.filter(pc.equal(keys, key))
    if not matches.num_rows and key.isdigit():
        matches = dataset.images.filter(pc.equal(dataset.images["image_id"], pa.scalar(int(key), pa.int64())))
    if not matches.num_rows:
        matches = dataset.images.filter(pc.ends_with(keys, pattern=f"/{key}"))
    if matches.num_rows == 1:
        return next(image_rows(matches))
    if matches.num_rows:
        several = ", ".join(matches["key"].slice(0, 3).to_pylist())
        raise InputError(
            f"{dataset.root}: {key!r} fits {matches.num_rows} images ({several}); give the whole key"
        )
    close = difflib.get_close_matches(key, keys.slice(0, 100_000).to_pylist(), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else f"; e.g. {keys[0].as_py()!r}"
    raise InputError(f"{dataset.root}: no image {key!r}{hint}")


def only_features(dataset: Dataset) -> str:
    """The name of a data set's features where it has one set, else an error that lists them."""
    folder = dataset.root / "features"
    names = sorted(path.parent.name for path in folder.glob(f"*/{INDEX_FILE}"))
    if len(names) == 1:
        return names[0]
    if not names:
        raise InputError(
            f"{dataset.root}: no finished features; run 'camp-data extract {dataset.root}' first"
        )
    raise InputError(f"{dataset.root}: has features {', '.join(names)}; choose with --features NAME")
