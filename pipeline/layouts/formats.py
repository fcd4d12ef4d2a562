"""Format names -> how each foreign layout is opened and written, and what it can hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import InputError
from ...progress import ProgressFactory, no_progress
from . import milvlg_npz, mmf_lmdb, mmf_npy, scan_npy, tsv, vlt5_hdf5, vqa_hdf5
from .record import Layout, Writer

_CLASSES = ("classes", "class_scores")
_ALL = (*_CLASSES, "attributes", "attribute_scores")


class Opener(Protocol):
    def __call__(self, source: Path, *, progress: ProgressFactory = ...) -> Layout: ...


@dataclass(frozen=True, kw_only=True)
class Format:
    """One foreign layout."""

    open: Opener
    write: Writer | None  # None: SCAN's, which is written split by split
    holds: tuple[str, ...]  # the optional columns it has a place for
    needs: tuple[str, ...] = ()  # those it cannot do without
    numbers: bool = False  # whether its readers expect numbers as ids, rather than names


FORMATS: dict[str, Format] = {
    "anderson-tsv": Format(open=tsv.open_anderson, write=tsv.write_anderson, holds=(), numbers=True),
    "lxmert-tsv": Format(open=tsv.open_lxmert, write=tsv.write_lxmert, holds=_ALL, needs=_ALL),
    "milvlg-npz": Format(open=milvlg_npz.NpzLayout, write=milvlg_npz.write_npz, holds=_ALL),
    "mmf-npy": Format(open=mmf_npy.NpyLayout, write=mmf_npy.write_npy, holds=_CLASSES),
    "mmf-lmdb": Format(open=mmf_lmdb.LmdbLayout, write=mmf_lmdb.write_lmdb, holds=_CLASSES),
    "vqa-hdf5": Format(open=vqa_hdf5.VqaLayout, write=vqa_hdf5.write_vqa, holds=(), numbers=True),
    "vlt5-hdf5": Format(open=vlt5_hdf5.Vlt5Layout, write=vlt5_hdf5.write_vlt5, holds=_ALL),
    "scan-npy": Format(open=scan_npy.ScanLayout, write=None, holds=(), numbers=True),
}


def find_format(name: str) -> Format:
    """A format's name -> the format."""
    if name not in FORMATS:
        raise InputError(f"format {name!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def open_layout(source: Path, *, format: str, progress: ProgressFactory = no_progress) -> Layout:
    """A file or folder -> the foreign feature set in it."""
    return find_format(format).open(source, progress=progress)
