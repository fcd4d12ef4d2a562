"""SCAN's precomp folder ({train,dev,test}_caps.txt, _ids.txt, _ims.npy) -> source images without pixels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import InputError
from .source import Findings, SourceCaption, SourceImage, SourceOptions, numbered_lines

CAPTIONS_PER_IMAGE = 5
_SPLITS = {"train": "train", "dev": "val", "test": "test", "testall": "test"}


def read_scan_precomp(source: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """Five captions per image, in order; the feature rows themselves come in with 'import-features'."""
    if not source.is_dir():
        raise InputError(
            f"{source}: found a file, expected the folder that holds train_caps.txt and its like"
        )
    present = [name for name in _SPLITS if (source / f"{name}_caps.txt").is_file()]
    if not present:
        raise InputError(
            f"{source}: no train_caps.txt, dev_caps.txt, test_caps.txt or testall_caps.txt found"
        )
    if "testall" in present and "test" in present:
        present.remove("test")
        findings.note("splits left out", "test (testall holds the whole test split)")
    findings.dataset_name = source.name
    for name in present:
        yield from _read_split(source, name)


def _read_split(source: Path, name: str) -> Iterator[SourceImage]:
    path = source / f"{name}_caps.txt"
    captions = [line for _, line in numbered_lines(path)]
    if captions and not captions[-1]:
        captions.pop()
    per_image = 1 if _one_caption_each(source, name, len(captions)) else CAPTIONS_PER_IMAGE
    if len(captions) % per_image:
        raise InputError(
            f"{path}: found {len(captions)} captions, expected a multiple of {per_image}; is it complete?"
        )
    count = len(captions) // per_image
    ids = _read_ids(source / f"{name}_ids.txt", count=count, per_image=per_image)
    for number in range(count):
        texts = captions[number * per_image : (number + 1) * per_image]
        yield SourceImage(
            key=f"{name}-{number:06d}" if ids is None else f"{name}-{ids[number]}",
            split=_SPLITS[name],
            captions=[SourceCaption(text) for text in texts],
            imgid=None if ids is None else ids[number],
        )


def _one_caption_each(source: Path, name: str, captions: int) -> bool:
    """SCAN's rule, `5 if rows != captions else 1`, with its flaw mended.

    As many rows as captions may also mean that each image's row stands there five times: then they agree.
    """
    path = source / f"{name}_ims.npy"
    if not path.is_file():
        return False
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a readable .npy file ({error})") from None
    if rows.shape[0] * CAPTIONS_PER_IMAGE == captions:
        return False
    if rows.shape[0] != captions:
        raise InputError(
            f"{path}: found {rows.shape[0]} rows, expected {captions} as the captions, or a fifth of it"
        )
    repeated = captions % CAPTIONS_PER_IMAGE == 0 and all(
        np.array_equal(rows[0], rows[other]) for other in range(1, min(CAPTIONS_PER_IMAGE, captions))
    )
    return not repeated


def _read_ids(path: Path, *, count: int, per_image: int) -> list[int] | None:
    """One id per image or one per caption; F30K's are Karpathy's imgids."""
    if not path.is_file():
        return None
    ids = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            ids.append(int(line))
        except ValueError:
            raise InputError(f"{path}: line {number}: found {line[:40]!r}, expected a whole number") from None
    if len(ids) == count * per_image and per_image > 1:
        ids = ids[::per_image]
    if len(ids) != count:
        raise InputError(f"{path}: found {len(ids)} ids, expected {count} or {count * per_image}")
    return ids
