"""CSV, TSV, JSON lines or Parquet with image, caption, split and label columns -> source images."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError
from .source import (
    Findings,
    SourceCaption,
    SourceImage,
    SourceOptions,
    known_split,
    numbered_lines,
    read_split_lists,
    require,
    safe_relative,
    text_field,
)

_NAMES = {
    "image": ("image", "file", "filename", "file_name", "image_path", "path", "image_id"),
    "caption": ("caption", "text", "sentence", "raw"),
    "split": ("split", "set", "subset"),
    "labels": ("labels", "label", "tags", "categories"),
}
_LABEL_SEPARATORS = ";|"


def read_table(path: Path, options: SourceOptions, findings: Findings) -> Iterator[SourceImage]:
    """One row per caption, or per image where there are no captions; images in order of first appearance."""
    split_of = read_split_lists(options.split_files)
    images: dict[str, dict[str, Any]] = {}
    columns: dict[str, str | None] | None = None
    for number, row in _rows(path):
        if columns is None:
            columns = _columns(row, options.columns, path)
        where = f"{path}: row {number}"
        key = text_field(row, columns["image"] or "", where, expected="a file name")
        split = split_of.get(key, "") if split_of else "all"
        if columns["split"] and not split_of:
            split = known_split(row.get(columns["split"]), f"{where}.{columns['split']}")
        image = images.setdefault(key, {"split": split, "captions": [], "labels": None, "where": where})
        if image["split"] != split:
            raise InputError(
                f"{where}: image {key!r} is in split {split!r}, expected {image['split']!r} as before"
            )
        if columns["caption"]:
            image["captions"].append(SourceCaption(text_field(row, columns["caption"], where)))
        if columns["labels"]:
            found = _labels(row.get(columns["labels"]), f"{where}.{columns['labels']}")
            image["labels"] = list(dict.fromkeys([*(image["labels"] or []), *found]))
    for key, image in images.items():
        if not image["split"]:
            findings.note("images in no split list, left out", key)
            continue
        yield SourceImage(
            key=key,
            file=safe_relative(key, image["where"]),
            split=image["split"],
            captions=image["captions"][: options.max_captions or None],
            labels=image["labels"],
        )


def _columns(row: Mapping[str, Any], named: Mapping[str, str], path: Path) -> dict[str, str | None]:
    """Which column is which: as the user says, else by the usual names."""
    for role, name in named.items():
        if name not in row:
            raise InputError(f"{path}: no column {name!r} for --{role}-column; it has {', '.join(row)}")
    chosen = {
        role: named.get(role) or next((name for name in usual if name in row), None)
        for role, usual in _NAMES.items()
    }
    if chosen["image"] is None:
        raise InputError(
            f"{path}: found columns {', '.join(row)}, expected one of {', '.join(_NAMES['image'])}; "
            "name it with --image-column"
        )
    return chosen


def _labels(value: Any, where: str) -> Sequence[str]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        for separator in _LABEL_SEPARATORS:
            if separator in value:
                return [label.strip() for label in value.split(separator) if label.strip()]
        return [value.strip()]
    require(
        isinstance(value, list) and all(isinstance(label, (str, int)) for label in value),
        where,
        value,
        "a list of labels",
    )
    return [str(label) for label in value]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their numbers from 1, the header not counted."""
    readers = {".csv": _delimited, ".tsv": _delimited, ".jsonl": _json_lines, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: found suffix {path.suffix!r}, expected one of {', '.join(readers)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    count = 0
    for count, row in enumerate(reader(path), start=1):
        yield count, row
    if not count:
        raise InputError(f"{path}: no rows found, expected one per caption")


def _delimited(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default, 128 KiB, fails on long label lists
    lines = (line + "\n" for _, line in numbered_lines(path))
    reader = csv.DictReader(lines, delimiter="," if path.suffix.lower() == ".csv" else "\t", strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{path}: line {reader.line_num}: found another number of fields than the header's "
                    f"{len(reader.fieldnames or ())}; quote fields that hold the separator"
                )
            yield row
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from None


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number}: not valid JSON ({error.msg})") from None
        except RecursionError:
            raise InputError(f"{path}: line {number}: nested too deeply, expected a flat object") from None
        require(isinstance(row, dict), f"{path}: line {number}", row, "an object")
        yield row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from None
