"""A large JSON object -> the elements of its lists, one at a time.

`json.load` on COCO's Karpathy file holds every token of 616,767 captions at once. Reading element by element
with the standard decoder is as fast, needs only the text itself, and can say which element is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError

_SPACE = " \t\n\r"


def members(path: Path, *, streamed: Collection[str]) -> Iterator[tuple[str, int | None, Any]]:
    """A JSON file -> (key, index, element) of the lists in `streamed`, (key, None, value) of the rest."""
    text = _read_text(path)
    decoder = json.JSONDecoder()
    try:
        position = _skip(text, 0)
        if text[position : position + 1] != "{":
            raise InputError(f"{path}: found {_peek(text, position)}, expected a JSON object")
        position = _skip(text, position + 1)
        while text[position : position + 1] != "}":
            key, position = decoder.raw_decode(text, position)
            position = _skip(text, _expect(text, _skip(text, position), ":", path))
            if key in streamed and text[position : position + 1] == "[":
                index = 0
                position = _skip(text, position + 1)
                while text[position : position + 1] != "]":
                    element, position = decoder.raw_decode(text, position)
                    yield key, index, element
                    index += 1
                    position = _next(text, position, "]", path)
                position += 1
            else:
                value, position = decoder.raw_decode(text, position)
                yield key, None, value
            position = _next(text, position, "}", path)
        position = _skip(text, position + 1)
        if position != len(text):
            raise InputError(f"{path}: found {_peek(text, position)} after the JSON object, expected the end")
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: line {error.lineno}: not valid JSON ({error.msg}); is the download complete?"
        ) from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply, expected a few levels; not a caption file") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: invalid UTF-8 at byte {error.start}; convert it, e.g. with iconv"
        ) from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: found a folder, expected a JSON file") from None


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] and text[position] in _SPACE:
        position += 1
    return position


def _next(text: str, position: int, closing: str, path: Path) -> int:
    """Behind an element: over a comma to the next one, or to the closing bracket."""
    position = _skip(text, position)
    if text[position : position + 1] == closing:
        return position
    return _skip(text, _expect(text, position, ",", path))


def _expect(text: str, position: int, character: str, path: Path) -> int:
    if text[position : position + 1] != character:
        line = text.count("\n", 0, position) + 1
        raise InputError(
            f"{path}: line {line}: not valid JSON, found {_peek(text, position)}, expected {character!r}; "
            "is the download complete?"
        )
    return position + 1


def _peek(text: str, position: int) -> str:
    return repr(text[position : position + 12]) if position < len(text) else "the end of the file"
