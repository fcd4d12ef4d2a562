"""TSV import -> its share of what base64 decoding alone allows, and how often it is done before csv and h5py.

python benchmarks/tsv_import.py [--quick] [--json FILE]
"""

from __future__ import annotations

import base64
import binascii
import csv
import shutil
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from harness import Result, arguments, interleaved

from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.pipeline.feature_import import FeatureImportOptions, import_features
from camp.pipeline.layouts import tsv
from camp.pipeline.layouts.record import ForeignRow
from camp.schema import ImageRow, Regions

R, D = 36, 2048


def make_source(folder: Path, images: int) -> tuple[Dataset, Path]:
    """Anderson's TSV of random features, and the data set it belongs to."""
    random = np.random.default_rng(0)
    corner = random.random((R, 2), np.float32) * 200
    boxes = np.concatenate([corner, corner * 2], axis=1)  # (R, 4)
    rows = (
        ForeignRow(str(number), Regions(boxes, random.random((R, D), np.float32), 640, 480))
        for number in range(images)
    )
    tsv.write_tsv(rows, folder / "features.tsv", columns=tsv.ANDERSON)
    manifest = manifest_from_rows(
        (ImageRow(number, f"{number}.jpg", "", "train", 640, 480, cocoid=number) for number in range(images)),
        [],
    )
    dataset = write_generation(
        folder / "dataset", manifest, name="bench", source={}, findings={}, label_names=[], image_roots=[None]
    )
    return dataset, folder / "features.tsv"


def decode_alone(fields: list[tuple[bytes, bytes]]) -> None:
    """What bounds Python's own base64: nothing but the decoding, of fields that are in memory already."""
    for boxes, features in fields:
        binascii.a2b_base64(boxes)
        binascii.a2b_base64(features)


def ours(dataset: Dataset, source: Path, dtype: str) -> None:
    shutil.rmtree(dataset.features_folder("bench"), ignore_errors=True)
    import_features(
        dataset, source, format="anderson-tsv", name="bench", options=FeatureImportOptions(dtype=dtype)
    )


def csv_and_h5py(source: Path, target: Path, images: int) -> None:
    """The usual script: csv.DictReader, base64, one h5py row at a time; no checks, no sync."""
    csv.field_size_limit(sys.maxsize)
    with h5py.File(target, "w") as file, source.open(newline="") as stream:
        features = file.create_dataset("image_features", (images, R, D), "f4")
        boxes = file.create_dataset("image_bb", (images, R, 4), "f4")
        reader = csv.DictReader(stream, delimiter="\t", fieldnames=tsv.ANDERSON.names)
        for number, item in enumerate(reader):
            for column, name in ((features, "features"), (boxes, "boxes")):
                raw = np.frombuffer(base64.b64decode(item[name]), np.float32)
                column[number] = raw.reshape(int(item["num_boxes"]), -1)


def main() -> None:
    given = arguments(__doc__ or "")
    images = 300 if given.quick else 1500
    result = Result("tsv_import")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, source = make_source(folder, images)
        lines = source.read_bytes().split(b"\r\n")[:images]
        fields = [(line.split(b"\t")[4], line.split(b"\t")[5]) for line in lines]
        del lines
        times = interleaved(
            {
                "base64 alone": lambda: decode_alone(fields),
                "import to float32": lambda: ours(dataset, source, "float32"),
                "import to float16": lambda: ours(dataset, source, "float16"),
                "csv and h5py": lambda: csv_and_h5py(source, folder / "peer.h5", images),
            }
        )
    for label, seconds in times.items():
        result.row(label, images / seconds, "rows/s")
    result.ratio("base64", times["base64 alone"] / times["import to float16"])
    result.ratio("base64_float32", times["base64 alone"] / times["import to float32"])
    result.ratio("csv_h5py", times["csv and h5py"] / times["import to float16"])
    result.notes.append(f"{images} rows of {R}×{D}; imports are checked, checksummed and synced to disk")
    result.finish(given.json)


if __name__ == "__main__":
    main()
