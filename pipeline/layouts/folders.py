"""A folder of many files that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from ...files import publish, storage_errors


@contextlib.contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """A path -> a folder to fill, which gets that name at the end; leftovers of a killed run are removed."""
    temporary = destination.with_name(f".{destination.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with storage_errors(destination):
            temporary.mkdir(parents=True)
            yield temporary
            # One sync for 100,000 small files: one each would take longer than writing them.
            os.sync()
            publish(temporary, destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def file_below(folder: Path, name: str) -> Path:
    """A file named after an image -> its path in the folder, never outside of it."""
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(folder) or path == folder:
        raise InputError(f"image id {name!r} points outside the folder; export with --ids image-id")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
