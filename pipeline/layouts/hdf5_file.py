"""A foreign HDF5 file -> an open handle, or an error that says what is wrong; and whole files of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from ...errors import InputError
from ...files import publish, storage_errors, temporary_name

SUFFIXES = (".h5", ".hdf5", ".hdf")


def open_hdf5(path: Path) -> Any:
    """A path -> an h5py.File for reading; locks are not taken, so a read-only disk is fine."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        with path.open("rb") as stream:
            magic = stream.read(8)
        reason = "it is cut off or damaged" if magic == b"\x89HDF\r\n\x1a\n" else "it is not HDF5"
        raise InputError(f"{path}: cannot be read, {reason} ({str(error).splitlines()[0]})") from None


def is_hdf5(name: str) -> bool:
    return name.endswith(SUFFIXES)


@contextlib.contextmanager
def atomic_hdf5(path: Path) -> Iterator[Any]:
    """A path -> an h5py.File to fill, which gets that name when it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with storage_errors(path):
            with h5py.File(temporary, "w") as file:
                yield file
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
