"""COCO's captions_*.json (and instances_*.json for labels) -> source images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from .instances import InstanceLabels, read_instances, required_int
from .json_stream import members
from .source import (
    Findings,
    SourceCaption,
    SourceImage,
    SourceOptions,
    known_split,
    optional_int,
    read_split_lists,
    require,
    safe_relative,
    text_field,
)

_FILE_NAME = re.compile(r"captions_((train|val|test)\w*)\.json$")  # captions_val2017.json: val2017, val


def read_coco_captions(source: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """One captions file, or a folder of them; the split comes from the id lists or from the file's name."""
    files = sorted(source.glob("captions_*.json")) if source.is_dir() else [source]
    if not files:
        raise InputError(f"{source}: no captions_*.json found, expected COCO's annotations folder")
    labels = read_instances(options, findings)
    split_of = _read_id_lists(options)
    for path in files:
        match = _FILE_NAME.search(path.name)
        if not match and not split_of:
            raise InputError(
                f"{path}: the name does not tell its split, expected captions_<split><year>.json; "
                "rename it or pass --split-file"
            )
        subfolder, split = match.groups() if match else ("", "")
        yield from _read_file(
            path,
            subfolder=subfolder,
            split=split,
            split_of=split_of,
            labels=labels,
            options=options,
            findings=findings,
        )


def _read_file(
    path: Path,
    *,
    subfolder: str,
    split: str,
    split_of: Mapping[int, str],
    labels: InstanceLabels | None,
    options: SourceOptions,
    findings: Findings,
) -> Iterator[SourceImage]:
    images: dict[int, dict[str, Any]] = {}
    captions: dict[int, list[SourceCaption]] = {}
    seen = set()
    for key, index, value in members(path, streamed=("images", "annotations")):
        where = f"{path}: {key}[{index}]"
        if key not in ("images", "annotations"):
            continue
        require(index is not None, f"{path}: {key}", value, "a list")
        require(isinstance(value, dict), where, value, "an object")
        seen.add(key)
        if key == "images":
            cocoid = required_int(value, "id", where)
            require(cocoid not in images, f"{where}.id", cocoid, "an id that no earlier image has")
            name = text_field(value, "file_name", where, expected="a file name")
            images[cocoid] = {
                "file": safe_relative(name, where),
                "width": optional_int(value, "width", where),
                "height": optional_int(value, "height", where),
            }
        else:
            text = text_field(value, "caption", where)
            captions.setdefault(required_int(value, "image_id", where), []).append(
                SourceCaption(text=text, sentid=optional_int(value, "id", where))
            )
    for part in ("images", "annotations"):
        if part not in seen:
            raise InputError(f"{path}: no {part!r} found, expected COCO's caption format; see --format")
    for cocoid, texts in captions.items():
        if cocoid not in images:
            findings.note(
                "captions of images that are not listed, left out", f"image {cocoid}: {texts[0].text.strip()}"
            )
    folder = _subfolder(options, subfolder, images)
    for cocoid, image in images.items():
        if split_of and cocoid not in split_of:
            findings.note("images in no split list, left out", str(cocoid))
            continue
        texts = captions.get(cocoid, [])
        limit = options.max_captions or len(texts)
        for surplus in texts[limit:]:
            findings.note(f"captions beyond the first {limit}, left out", f"{cocoid}: {surplus.text.strip()}")
        yield SourceImage(
            key=image["file"],
            file=f"{folder}{image['file']}",
            split=split_of.get(cocoid, split),
            captions=texts[:limit],
            cocoid=cocoid,
            width=image["width"],
            height=image["height"],
            labels=None if labels is None else labels.of(cocoid=cocoid, file=image["file"]),
        )


def _subfolder(options: SourceOptions, subfolder: str, images: Mapping[int, Mapping[str, Any]]) -> str:
    """'train2017/' when the image root holds COCO's folders rather than the photographs themselves."""
    if not options.images or "://" in options.images or not subfolder:
        return ""
    root = Path(options.images)
    nested = (root / subfolder).is_dir() and not any(
        (root / image["file"]).exists() for image in images.values()
    )
    return f"{subfolder}/" if nested else ""


def _read_id_lists(options: SourceOptions) -> dict[int, str]:
    """Lists of COCO ids (or file names that end in one), or a Karpathy JSON as one list, to id -> split."""
    split_of: dict[int, str] = {}
    plain = {split: path for split, path in options.split_files.items() if path.suffix != ".json"}
    for name, split in read_split_lists(plain).items():
        match = re.search(r"(\d+)(\.\w+)?$", name)
        if not match:
            raise InputError(
                f"--split-file: found {name!r}, expected a COCO id or a file name that ends in one"
            )
        split_of[int(match.group(1))] = split
    for wanted, path in options.split_files.items():
        if path.suffix != ".json":
            continue
        for key, index, record in members(path, streamed=("images",)):
            if key == "images" and isinstance(record, dict):
                where = f"{path}: images[{index}]"
                split = known_split(record.get("split"), f"{where}.split", aliases={"restval": "train"})
                if split == known_split(wanted, "--split-file"):
                    split_of[required_int(record, "cocoid", where)] = split
    return split_of
