"""Flickr's token file (name.jpg#k<TAB>caption) and split lists -> source images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import InputError
from .source import (
    IMAGE_SUFFIXES,
    Findings,
    SourceCaption,
    SourceImage,
    SourceOptions,
    numbered_lines,
    read_split_lists,
    safe_relative,
)


def read_flickr_token(path: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """Images in order of first appearance; without split lists all of them are in split 'all'."""
    captions: dict[str, list[tuple[int, str]]] = {}
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        head, tab, text = line.partition("\t")
        name, hash_sign, position = head.rpartition("#")
        if not (tab and hash_sign and position.strip().isdecimal()):
            raise InputError(
                f"{path}: line {number}: found {line[:60]!r}, expected 'name.jpg#k<TAB>caption'; see --format"
            )
        if PurePosixPath(name).suffix.lower() not in IMAGE_SUFFIXES:
            # Flickr8k's token file has one: 2258277193_586949ec62.jpg.1
            findings.note("orphan keys that name no image, left out", f"{path.name}: line {number}: {name}")
            continue
        captions.setdefault(safe_relative(name, f"{path}: line {number}"), []).append((int(position), text))
    split_of = read_split_lists(options.split_files)
    listed_names = set(split_of)
    for name, texts in captions.items():
        # Some split lists carry names without the suffix.
        listed = name if name in split_of else PurePosixPath(name).stem
        listed_names.discard(listed)
        if split_of and listed not in split_of:
            findings.note("images in no split list, left out", name)
            continue
        yield SourceImage(
            key=name,
            file=name,
            split=split_of.get(listed, "all"),
            captions=[SourceCaption(text) for _, text in sorted(texts, key=lambda pair: pair[0])],
        )
    for name in sorted(listed_names):
        findings.note("names in a split list without captions, left out", name)
