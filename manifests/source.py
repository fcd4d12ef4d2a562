"""What every importer gives: one source record per image, and the findings along the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ..errors import InputError
from ..schema import SPLITS

EXAMPLES_KEPT = 5
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_SPLIT_ALIASES = {"dev": "val", "valid": "val", "validation": "val", "testall": "test"}


@dataclass(frozen=True, slots=True)
class SourceCaption:
    """A caption as the source has it."""

    text: str
    sentid: int | None = None


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image as the source has it; the manifest's own ids come later."""

    key: str
    split: str
    captions: Sequence[SourceCaption] = ()
    file: str = ""
    imgid: int | None = None
    cocoid: int | None = None
    width: int | None = None
    height: int | None = None
    labels: Sequence[str] | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What the user may say about a source beside its path."""

    images: str | None = None  # a folder or URL
    split_files: Mapping[str, Path] = field(default_factory=dict)
    instances: Sequence[Path] = ()
    columns: Mapping[str, str] = field(default_factory=dict)  # table: image/caption/split/labels -> name
    max_captions: int | None = None  # None: the format's own rule


Importer = Callable[[Path, SourceOptions, "Findings"], Iterator[SourceImage]]


class Findings:
    """Kinds of oddities in a source -> how many, and the first few of each."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}
        self.dataset_name: str | None = None
        self.label_names: list[str] | None = None

    def note(self, kind: str, example: str) -> None:
        """Count one oddity; the example names where it is."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        examples = self._examples.setdefault(kind, [])
        if len(examples) < EXAMPLES_KEPT:
            examples.append(example)

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Kind -> {'count': n, 'examples': [...]}, in alphabetical order."""
        return {
            kind: {"count": self._counts[kind], "examples": self._examples[kind]}
            for kind in sorted(self._counts)
        }


def known_split(name: object, where: str, *, aliases: Mapping[str, str] = _SPLIT_ALIASES) -> str:
    """A split's name in the source -> ours, or an error that says where it stands."""
    split = aliases.get(name, name) if isinstance(name, str) else name
    if split not in SPLITS:
        known = ", ".join([*SPLITS, *aliases])
        raise InputError(f"{where}: found split {name!r}, expected one of {known}; correct it in the source")
    assert isinstance(split, str)
    return split


def safe_relative(file: str, where: str) -> str:
    """A file name from a source -> the same below the image root, or an error: it may not point elsewhere."""
    windows = PureWindowsPath(file)
    if not file or "\0" in file:
        raise InputError(f"{where}: found file name {file!r}, expected a path below the image root")
    if file.startswith("/") or windows.drive or windows.root or "://" in file:
        raise InputError(f"{where}: found absolute path {file!r}, expected one relative to the image root")
    if ".." in windows.parts:
        raise InputError(
            f"{where}: path {file!r} climbs out of the image root; remove the '..' from the source"
        )
    return PurePosixPath(file).as_posix()


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """A UTF-8 text file -> its lines with their numbers from 1; the last may lack a newline."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: invalid UTF-8 after line {number} ({error.reason}); convert it, e.g. with iconv"
        ) from None


def read_split_lists(split_files: Mapping[str, Path]) -> dict[str, str]:
    """Split -> file of names, one a line, to name -> split. A name in two lists is an error."""
    split_of: dict[str, str] = {}
    for split, path in split_files.items():
        ours = known_split(split, f"--split-file {split}={path}")
        for number, line in numbered_lines(path):
            name = line.strip()
            if not name:
                continue
            if split_of.setdefault(name, ours) != ours:
                raise InputError(
                    f"{path}: line {number}: {name!r} is already in split {split_of[name]!r}, "
                    f"expected one split per image"
                )
    return split_of


def require(condition: bool, where: str, found: object, expected: str) -> None:
    """An error naming the field, what stands there and what should, unless the condition holds."""
    if not condition:
        shown = repr(found)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise InputError(f"{where}: found {shown}, expected {expected}")


def text_field(record: Mapping[str, Any], name: str, where: str, *, expected: str = "a text") -> str:
    """A text field that must be there; `expected` says 'a file name' where it may not be empty."""
    value = record.get(name)
    empty_allowed = expected == "a text"
    require(isinstance(value, str) and (empty_allowed or value != ""), f"{where}.{name}", value, expected)
    assert isinstance(value, str)
    return value


def optional_int(record: Mapping[str, Any], name: str, where: str) -> int | None:
    """An integer field that may be absent."""
    value = record.get(name)
    require(
        value is None or (isinstance(value, int) and not isinstance(value, bool)),
        f"{where}.{name}",
        value,
        "a whole number",
    )
    return value
