"""A source of captions and splits -> a new data set, or the next generation of one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..progress import ProgressFactory, no_progress
from .builder import ManifestBuilder
from .coco_captions import read_coco_captions
from .dataset import DATASET_FILE, Dataset, portable_root, write_generation
from .flickr_token import read_flickr_token
from .folder import read_folder
from .image_files import present_files, read_sizes
from .karpathy import read_karpathy
from .scan_precomp import read_scan_precomp
from .source import Findings, Importer, SourceOptions
from .table import read_table

IMPORTERS: dict[str, Importer] = {
    "karpathy": read_karpathy,
    "flickr-token": read_flickr_token,
    "coco-captions": read_coco_captions,
    "scan-precomp": read_scan_precomp,
    "table": read_table,
    "folder": read_folder,
}

_NO_OPTIONS = SourceOptions()


@dataclass(frozen=True)
class ImportResult:
    """What an import or append did."""

    dataset: Dataset
    added_images: int
    added_captions: int
    findings: Mapping[str, Any]


def import_dataset(
    source: Path,
    *,
    format: str,
    out: Path,
    options: SourceOptions = _NO_OPTIONS,
    name: str | None = None,
    sizes: bool = True,
    progress: ProgressFactory = no_progress,
) -> ImportResult:
    """Read a source completely, then write the data set; bad input leaves nothing behind."""
    if (out / DATASET_FILE).exists():
        existing = Dataset.open(out)
        raise InputError(
            f"{out}: already holds data set {existing.name!r} ({existing.images.num_rows:,} images); "
            "add to it with 'camp-data append' or choose another --out"
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: found a file, expected a folder to write the data set to")
    return _add_generation(
        source, format=format, out=out, options=options, name=name, sizes=sizes, progress=progress
    )


def append_dataset(
    dataset: Dataset,
    source: Path,
    *,
    format: str,
    options: SourceOptions = _NO_OPTIONS,
    sizes: bool = True,
    progress: ProgressFactory = no_progress,
) -> ImportResult:
    """New images and new captions of known images become the next generation; existing ids stay."""
    return _add_generation(
        source,
        format=format,
        out=dataset.root,
        options=options,
        name=dataset.name,
        sizes=sizes,
        progress=progress,
        previous=dataset,
    )


def _add_generation(
    source: Path,
    *,
    format: str,
    out: Path,
    options: SourceOptions,
    name: str | None,
    sizes: bool,
    progress: ProgressFactory,
    previous: Dataset | None = None,
) -> ImportResult:
    importer = IMPORTERS.get(format)
    if importer is None:
        close = difflib.get_close_matches(format, IMPORTERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"found format {format!r}, expected one of {', '.join(IMPORTERS)}{hint}")
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    for path in [*options.split_files.values(), *options.instances]:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    options = replace(options, images=_image_root(source, format, options.images))
    roots = list(previous.header["image_roots"]) if previous else []
    root = portable_root(out, options.images)
    if root not in roots:
        roots.append(root)
    findings = Findings()
    builder = ManifestBuilder(findings=findings, previous=previous, root=roots.index(root))
    with progress(f"importing {source.name}", None, "images") as bar:
        for image in importer(source, options, findings):
            builder.add(image)
            bar.advance()
    if not builder.images and previous is None:
        raise InputError(f"{source}: no images found, expected at least one; is --format {format} right?")
    measured = _check_files(builder, options, sizes=sizes, findings=findings, progress=progress)
    manifest, label_names = builder.build(measured)
    facts = findings.as_dict()
    if previous is not None and not (manifest.images.num_rows or manifest.captions.num_rows):
        return ImportResult(previous, 0, 0, facts)
    dataset = write_generation(
        out,
        manifest,
        name=name or findings.dataset_name or out.resolve().name,
        source={"format": format, "name": source.name},
        findings=facts,
        label_names=label_names,
        image_roots=roots,
        previous=previous,
    )
    return ImportResult(dataset, manifest.images.num_rows, manifest.captions.num_rows, facts)


def _image_root(source: Path, format: str, images: str | None) -> str | None:
    """Where the photographs are: as said, the folder itself, or the 'images' folder beside the source."""
    if images is not None:
        return images
    if format == "folder":
        return str(source)
    beside = (source if source.is_dir() else source.parent) / "images"
    return str(beside) if beside.is_dir() else None


def _check_files(
    builder: ManifestBuilder,
    options: SourceOptions,
    *,
    sizes: bool,
    findings: Findings,
    progress: ProgressFactory,
) -> dict[int, tuple[int, int]]:
    """Missing files become findings; sizes are measured where the source does not give them."""
    if options.images is None or "://" in options.images:
        return {}
    root = Path(options.images)
    present = present_files(root, [row for row in builder.images if row.file], findings=findings)
    unmeasured = [row for row in present if row.width is None or row.height is None]
    if not sizes or not unmeasured:
        return {}
    return read_sizes(root, unmeasured, findings=findings, progress=progress)
