"""A folder of photographs -> source images without captions, in one split called 'all'."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from .source import IMAGE_SUFFIXES, Findings, SourceImage, SourceOptions


def read_folder(source: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """Every image below the folder, sorted by path; other files are counted."""
    if not source.is_dir():
        raise InputError(f"{source}: no such folder")
    findings.dataset_name = source.resolve().name
    for current, folders, files in os.walk(source):
        folders.sort()
        for name in sorted(files):
            path = Path(current, name)
            relative = path.relative_to(source).as_posix()
            if path.suffix.lower() not in IMAGE_SUFFIXES:
                findings.note("files that are not images, left out", relative)
                continue
            yield SourceImage(key=relative, file=relative, split="all")
