"""Ids of a foreign feature set and the images of a manifest -> which row belongs to which image.

Ways to join, from the most telling to the least:
  key       the id is the image's whole name, with or without its image suffix
  stem      the same without folders on either side; dots inside a name stay
  cocoid    a COCO id, or a name that holds one (COCO_train2014_000000573195)
  imgid     Karpathy's imgid
  image-id  the manifest's own image_id
  order     'test-000017' is the image at position 17 of its split, as in SCAN's files without ids
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..errors import InputError
from ..manifests.source import IMAGE_SUFFIXES, known_split
from ..schema import ImageRow

WAYS = ("key", "stem", "cocoid", "imgid", "image-id", "order")
# Small numbers match by chance: 'auto' trusts them only when one side is matched completely.
_NUMBERS = ("imgid", "image-id", "order")
_COCO_NAME = re.compile(r"COCO_[a-z]+20\d\d_(\d{12})")
_COCO_FILE = re.compile(r"\d{12}")
_POSITION = re.compile(r"(train|dev|val|test|testall|all)-(\d+)")


@dataclass(frozen=True)
class Join:
    """Which row each image gets, and what found no partner."""

    way: str
    row_of_image: dict[int, int]  # image_id -> row
    images_without_row: list[ImageRow]
    rows_without_image: list[int]
    repeated_rows: list[int]  # for an image that has a row already
    matches: dict[str, int]  # way -> images it would match


def join_rows(images: Sequence[ImageRow], ids: Sequence[str], *, way: str = "auto") -> Join:
    """Images and foreign ids -> the join; 'auto' takes the way that matches the most."""
    if way != "auto" and way not in WAYS:
        raise InputError(f"--join {way!r}, expected auto or one of {', '.join(WAYS)}")
    found = {name: _join(name, images, ids) for name in (WAYS if way == "auto" else (way,))}
    best = max(found.values(), key=lambda join: len(join.row_of_image))  # the first of equals
    matches = {name: len(join.row_of_image) for name, join in found.items()}
    if not best.row_of_image:
        raise InputError(
            f"no row belongs to an image of this data set: ids such as {_examples(ids)}, "
            f"keys such as {_examples([row.key for row in images])}; is it the right file? See --join"
        )
    if way == "auto":
        best = _trusted(found, matches, images=len(images), rows=len(ids))
    return Join(
        way=best.way,
        row_of_image=best.row_of_image,
        images_without_row=best.images_without_row,
        rows_without_image=best.rows_without_image,
        repeated_rows=best.repeated_rows,
        matches=matches,
    )


def _trusted(found: dict[str, Join], matches: dict[str, int], *, images: int, rows: int) -> Join:
    """The best way, unless it may be chance or another one says something else."""
    most = max(matches.values())
    doubtful = {name: most for name in _NUMBERS if matches[name] == most and most < images and most < rows}
    best = [join for name, join in found.items() if matches[name] == most and name not in doubtful]
    if not best:
        name = next(iter(doubtful))
        raise InputError(
            f"as {name} only {most:,} of {rows:,} rows belong to one of {images:,} images, "
            f"which may be chance; if it is meant, say --join {name}"
        )
    for other in best[1:]:
        if other.row_of_image != best[0].row_of_image:
            raise InputError(
                f"{most:,} rows match both as {best[0].way} and as {other.way}, but to different images; "
                f"say --join {best[0].way} or --join {other.way}"
            )
    return best[0]


def _join(way: str, images: Sequence[ImageRow], ids: Sequence[str]) -> Join:
    image_of = _image_table(way, images)
    key_of_id = _ID_KEYS[way]
    row_of_image: dict[int, int] = {}
    without, repeated = [], []
    for row, foreign in enumerate(ids):
        key = key_of_id(foreign)
        image_id = None if key is None else image_of.get(key)
        if image_id is None:
            without.append(row)
        elif image_id in row_of_image:
            repeated.append(row)
        else:
            row_of_image[image_id] = row
    return Join(
        way=way,
        row_of_image=row_of_image,
        images_without_row=[image for image in images if image.image_id not in row_of_image],
        rows_without_image=without,
        repeated_rows=repeated,
        matches={},
    )


def _image_table(way: str, images: Sequence[ImageRow]) -> dict[Hashable, int]:
    """What a foreign id may be -> image_id; what two images share is left out, as it names neither."""
    table: dict[Hashable, int | None] = {}
    position: dict[str, int] = {}
    for image in images:
        keys: Iterable[Hashable]
        if way == "key":
            keys = {image.key, without_suffix(image.key)}
        elif way == "stem":
            keys = {stem(image.key)}
        elif way == "cocoid":
            keys = {image.cocoid if image.cocoid is not None else _coco_of_key(image.key)}
        elif way == "imgid":
            keys = {image.imgid}
        elif way == "image-id":
            keys = {image.image_id}
        else:
            number = position.get(image.split, 0)
            position[image.split] = number + 1
            keys = {(image.split, number)}
        for key in keys:
            if key is not None:
                table[key] = None if key in table else image.image_id
    return {key: image_id for key, image_id in table.items() if image_id is not None}


def without_suffix(name: str) -> str:
    """A name without its image suffix; any other dot belongs to the name."""
    suffix = PurePosixPath(name).suffix
    return name[: -len(suffix)] if suffix.lower() in IMAGE_SUFFIXES else name


def stem(name: str) -> str:
    """A name without folders and image suffix."""
    return without_suffix(name.replace("\\", "/").rsplit("/", 1)[-1])


def _coco_of_key(key: str) -> int | None:
    match = _COCO_NAME.fullmatch(stem(key))
    if match:
        return int(match[1])
    return int(stem(key)) if _COCO_FILE.fullmatch(stem(key)) else None


def _coco_of_id(foreign: str) -> int | None:
    number = _number(stem(foreign))
    return _coco_of_key(foreign) if number is None else number


def _number(foreign: str) -> int | None:
    return int(foreign) if foreign.isascii() and foreign.isdigit() else None


def _position(foreign: str) -> tuple[str, int] | None:
    match = _POSITION.fullmatch(foreign)
    return (known_split(match[1], foreign), int(match[2])) if match else None


def _itself(foreign: str) -> str:
    return foreign


_ID_KEYS: dict[str, Callable[[str], Hashable]] = {
    "key": _itself,
    "stem": stem,
    "cocoid": _coco_of_id,
    "imgid": _number,
    "image-id": _number,
    "order": _position,
}


def _examples(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:2]) or "none"
