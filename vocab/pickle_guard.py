"""A foreign pickle -> plain values and the attributes of one known class; all else is refused by name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import InputError


class Stranger:
    """Stands for the known foreign class: holds attributes, runs nothing."""


def _reconstruct(cls: type, base: type, state: object) -> object:
    """What the oldest pickle protocols call to make an object."""
    return cls()


_HARMLESS: Mapping[tuple[str, str], Any] = {
    ("copy_reg", "_reconstructor"): _reconstruct,
    ("copyreg", "_reconstructor"): _reconstruct,
    ("__builtin__", "object"): object,
    ("builtins", "object"): object,
    ("collections", "Counter"): dict,
}


def load_guarded(content: bytes, *, known: Collection[str], where: str) -> tuple[Any, bool]:
    """A pickle's bytes -> its value, with a Stranger for each 'module.Class' in `known`.

    Also says whether Python 2 byte strings had to be read as Latin-1 because they are not UTF-8.
    """
    for encoding in ("utf-8", "latin1"):
        try:
            value = _Unpickler(content, known=known, where=where, encoding=encoding).load()
        except InputError:
            raise
        except Exception as error:  # a damaged pickle may raise anything
            if isinstance(error, UnicodeDecodeError) and encoding == "utf-8":
                continue
            raise InputError(f"{where}: not a readable pickle ({type(error).__name__}: {error})") from None
        return value, encoding == "latin1"
    raise AssertionError("Latin-1 reads any bytes")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, *, known: Collection[str], where: str, encoding: str) -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)
        self._known, self._where = known, where

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in self._known:
            return Stranger
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        raise InputError(
            f"{self._where}: the pickle contains {module}.{name}, "
            f"expected {' or '.join(sorted(self._known))} alone; it was not loaded"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise InputError(f"{self._where}: the pickle refers to something outside itself; it was not loaded")
