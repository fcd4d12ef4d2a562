"""Karpathy's dataset_{flickr8k,flickr30k,coco}.json (and object annotations for labels) -> source images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InputError
from .instances import check_used, read_instances
from .json_stream import members
from .source import (
    Findings,
    SourceCaption,
    SourceImage,
    SourceOptions,
    known_split,
    optional_int,
    require,
    safe_relative,
    text_field,
)

COCO_CAPTIONS = 5  # the papers evaluate five captions per image; COCO has up to seven
_SPLITS = {"restval": "train"}  # COCO's rest of val joins train: 113,287 images


def read_karpathy(path: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """Images in file order, which is the order of evaluation folds."""
    has_images = False
    labels = read_instances(options, findings)
    images = labelled = 0
    for key, index, value in members(path, streamed=("images",)):
        if key == "dataset" and isinstance(value, str):
            findings.dataset_name = value
        if key == "images":
            require(index is not None, f"{path}: images", value, "a list")
            has_images = True
            image = _image(value, f"{path}: images[{index}]", options, findings)
            if labels is not None:
                image = replace(image, labels=labels.of(cocoid=image.cocoid, file=image.key))
                labelled += bool(image.labels)
            images += 1
            yield image
    if not has_images:
        raise InputError(f"{path}: no 'images' list found, expected Karpathy's format; see --format")
    check_used(path, labels, images=images, labelled=labelled)


def _image(record: Any, where: str, options: SourceOptions, findings: Findings) -> SourceImage:
    require(isinstance(record, dict), where, record, "an object")
    filename, folder = (
        text_field(record, "filename", where, expected="a file name"),
        record.get("filepath", ""),
    )
    require(isinstance(folder, str), f"{where}.filepath", folder, "a folder name")
    sentences = record.get("sentences")
    require(isinstance(sentences, list), f"{where}.sentences", sentences, "a list of sentences")
    cocoid = optional_int(record, "cocoid", where)
    captions = [
        _caption(sentence, f"{where}.sentences[{number}]") for number, sentence in enumerate(sentences)
    ]
    limit = options.max_captions
    if limit is None:
        limit = COCO_CAPTIONS if cocoid is not None else 0
    for surplus in islice(captions, limit or None, None) if limit else ():
        findings.note(f"captions beyond the first {limit}, left out", f"{filename}: {surplus.text.strip()}")
    return SourceImage(
        key=filename,
        split=known_split(record.get("split"), f"{where}.split", aliases=_SPLITS),
        captions=captions[: limit or None],
        file=safe_relative(f"{folder}/{filename}" if folder else filename, where),
        imgid=optional_int(record, "imgid", where),
        cocoid=cocoid,
    )


def _caption(sentence: Any, where: str) -> SourceCaption:
    require(isinstance(sentence, dict), where, sentence, "an object")
    return SourceCaption(text_field(sentence, "raw", where), sentid=optional_int(sentence, "sentid", where))
