"""A directory <-> a data set: dataset.json, the manifest's generations, and where each part lives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InputError, MismatchError, VerificationError
from ..files import atomic_writer, checksum_file, fingerprint, write_sealed
from ..schema import DATASET_VERSION, SPLITS, ImageRow
from .manifest import CAPTIONS_SCHEMA, IMAGES_SCHEMA, Manifest, image_rows

DATASET_FILE = "dataset.json"


@dataclass(frozen=True)
class Dataset:
    """An opened data set. Tables are read when first asked for."""

    root: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, root: Path | str) -> Dataset:
        """A directory -> its data set, or an error that says what is missing."""
        root = Path(root)
        path = root / DATASET_FILE
        try:
            header = json.loads(path.read_bytes())
            version = header["schema_version"]
        except FileNotFoundError:
            raise InputError(
                f"{root}: no {DATASET_FILE} found, expected a data set; make one with 'camp-data import'"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise VerificationError(f"{path}: not a data set header ({error!r}); import again") from None
        if version != DATASET_VERSION:
            raise MismatchError(
                f"{path}: schema version {version}, expected {DATASET_VERSION}; "
                "import again or use the release that wrote it"
            )
        return cls(root=root, header=header)

    @property
    def name(self) -> str:
        return str(self.header["name"])

    @property
    def fingerprint(self) -> str:
        """Of all generations; changes with every append."""
        return str(self.header["fingerprint"])

    @property
    def generations(self) -> list[dict[str, Any]]:
        """One entry per import or append, oldest first."""
        return list(self.header["generations"])

    @property
    def history(self) -> list[str]:
        """The fingerprints the data set has had, one per generation, oldest first."""
        marks = [generation["fingerprint"] for generation in self.generations]
        return [fingerprint(marks[: count + 1]) for count in range(len(marks))]

    @property
    def label_names(self) -> list[str]:
        return list(self.header["label_names"])

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Split -> {'images': n, 'captions': m}."""
        found = self.header["splits"]
        return {split: found[split] for split in SPLITS if split in found}

    @property
    def splits(self) -> list[str]:
        return list(self.counts)

    @cached_property
    def images(self) -> pa.Table:
        """Every image, in Karpathy's order, generation after generation."""
        return self._read("images", IMAGES_SCHEMA)

    @cached_property
    def captions(self) -> pa.Table:
        """Every caption, in the order of the source."""
        return self._read("captions", CAPTIONS_SCHEMA)

    def _read(self, part: str, schema: pa.Schema) -> pa.Table:
        tables = []
        for generation in self.generations:
            path = self.root / generation[part]["file"]
            try:
                table = pq.read_table(path)
                names = table.schema.names
                tables.append(table.cast(schema))
            except Exception as error:  # one flipped bit makes Parquet's reader raise nearly anything
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise VerificationError(
                    f"{path}: cannot be read ({reason}); restore it or import again"
                ) from None
            if names != schema.names:
                raise VerificationError(f"{path}: columns {names}, expected {schema.names}; import again")
        return pa.concat_tables(tables)

    def select_images(self, splits: Sequence[str] | None = None) -> pa.Table:
        """The images of some splits (default: all), order kept."""
        if splits is None:
            return self.images
        self.check_splits(splits)
        return self.images.filter(pc.is_in(self.images["split"], pa.array(list(splits), pa.string())))

    def select_captions(self, splits: Sequence[str] | None = None) -> pa.Table:
        """The captions of some splits (default: all), order kept."""
        if splits is None:
            return self.captions
        wanted = self.select_images(splits)["image_id"]
        return self.captions.filter(pc.is_in(self.captions["image_id"], wanted.combine_chunks()))

    def image_rows(self, splits: Sequence[str] | None = None) -> Iterator[ImageRow]:
        """The images of some splits as records."""
        return image_rows(self.select_images(splits))

    def check_splits(self, splits: Iterable[str]) -> None:
        """Refuse a split the data set does not have."""
        unknown = [split for split in splits if split not in self.counts]
        if unknown:
            raise InputError(
                f"{self.root}: no split {unknown[0]!r}; this data set has {', '.join(self.counts)}"
            )

    def image_path(self, row: ImageRow) -> str:
        """Where an image's pixels are: a local path or a URL."""
        roots = self.header["image_roots"]
        if not row.file or row.root >= len(roots) or roots[row.root] is None:
            raise InputError(f"{self.root}: image {row.key!r} has no file; import again with --images DIR")
        return join_root(self.root, roots[row.root], row.file)

    def features_folder(self, name: str) -> Path:
        return self.root / "features" / name

    def vocab_file(self, name: str) -> Path:
        return self.root / "vocab" / f"{name}.json"

    def tokens_folder(self, vocab: str) -> Path:
        return self.root / "tokens" / vocab


def join_root(dataset_root: Path, image_root: str, file: str) -> str:
    """An image root as kept in dataset.json and a relative file -> a path or URL."""
    if "://" in image_root:
        return f"{image_root.rstrip('/')}/{file}"
    return os.path.normpath(dataset_root / image_root / file)


def portable_root(dataset_root: Path, images: Path | str | None) -> str | None:
    """Where the images are -> how dataset.json keeps it: URLs as they are, folders relative to the data set.

    Relative, because a data set and its photographs are usually moved and mounted together.
    """
    if images is None or "://" in str(images):
        return None if images is None else str(images)
    return os.path.relpath(Path(images).resolve(), dataset_root.resolve())


def write_generation(
    root: Path,
    manifest: Manifest,
    *,
    name: str,
    source: Mapping[str, Any],
    findings: Mapping[str, Any],
    label_names: Sequence[str],
    image_roots: Sequence[str | None],
    previous: Dataset | None = None,
) -> Dataset:
    """A manifest -> the first or next generation of a data set; dataset.json is replaced last, atomically.

    Killed before that, the directory is what it was; a re-run overwrites stray files of the new generation.
    """
    number = 1 if previous is None else len(previous.generations) + 1
    suffix = "" if number == 1 else f"-{number}"
    generation: dict[str, Any] = {
        "source": dict(source),
        "findings": dict(findings),
        "fingerprint": manifest.fingerprint(),
    }
    for part, table in (("images", manifest.images), ("captions", manifest.captions)):
        path = root / "manifest" / f"{part}{suffix}.parquet"
        with atomic_writer(path) as stream:
            pq.write_table(table, stream, compression="zstd")
        generation[part] = {
            "file": path.relative_to(root).as_posix(),
            "rows": table.num_rows,
            "checksum": checksum_file(path),
        }
    generations = [*(previous.generations if previous else []), generation]
    whole = manifest
    if previous is not None:
        whole = Manifest(
            images=pa.concat_tables([previous.images, manifest.images]),
            captions=pa.concat_tables([previous.captions, manifest.captions]),
        )
    header = {
        "name": name,
        "schema_version": DATASET_VERSION,
        "fingerprint": fingerprint([entry["fingerprint"] for entry in generations]),
        "splits": whole.split_counts(),
        "label_names": list(label_names),
        "image_roots": list(image_roots),
        "generations": generations,
    }
    write_sealed(root / DATASET_FILE, header)
    return Dataset.open(root)
