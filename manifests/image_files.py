"""Manifest rows and an image root -> which files exist, and how large the photographs are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from ..errors import InputError
from ..progress import ProgressFactory, no_progress
from ..schema import ImageRow
from .source import Findings

_EXIF_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap width and height
_THREADS = 8


def present_files(root: Path, images: Sequence[ImageRow], *, findings: Findings) -> list[ImageRow]:
    """The images whose files are there; the others are findings, and all of them missing is an error."""
    if not root.is_dir():
        raise InputError(f"{root}: no such image folder; pass the right one with --images")
    listed = _listing(root, {os.path.dirname(row.file) for row in images})  # noqa: PTH120 - a million rows
    present = []
    for row in images:
        if row.file in listed:
            present.append(row)
        else:
            findings.note("image files that are missing", row.file)
    if images and not present:
        raise InputError(
            f"{root}: none of the {len(images):,} images is there, expected for instance "
            f"{root / images[0].file}; pass the folder that these names are relative to with --images"
        )
    return present


def _listing(root: Path, folders: Iterable[str]) -> set[str]:
    """Relative names of the files in some folders: one scan each instead of one stat per image."""
    names: set[str] = set()
    for folder in folders:
        try:
            with os.scandir(root / folder) as entries:
                prefix = f"{folder}/" if folder else ""
                names.update(prefix + entry.name for entry in entries if not entry.is_dir())
        except FileNotFoundError:
            continue
    return names


def read_sizes(
    root: Path,
    images: Sequence[ImageRow],
    *,
    findings: Findings,
    progress: ProgressFactory = no_progress,
) -> dict[int, tuple[int, int]]:
    """Image id -> (width, height) of the upright image, from the files' headers alone."""
    sizes: dict[int, tuple[int, int]] = {}
    with (
        progress("reading sizes", len(images), "images") as bar,
        ThreadPoolExecutor(_THREADS) as pool,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # damaged EXIF blocks and large images: the extractor judges them
        for row, size in zip(images, pool.map(lambda row: _size(root / row.file), images), strict=True):
            bar.advance()
            if isinstance(size, str):
                findings.note("images whose size cannot be read", f"{row.file}: {size}")
            else:
                sizes[row.image_id] = size
    return sizes


def _size(path: Path) -> tuple[int, int] | str:
    try:
        with Image.open(path) as image:
            width, height = image.size
            if image.getexif().get(_EXIF_ORIENTATION) in _SIDEWAYS:
                width, height = height, width
            return width, height
    except UnidentifiedImageError:
        return "not an image"
    except Image.DecompressionBombError:
        return "more pixels than the limit"
    except Exception as error:  # Pillow's plugins raise whatever a damaged header leads them to
        return f"{type(error).__name__}: {error}".splitlines()[0]
