"""Pickle bytes -> plain numpy data and containers, and nothing else: no code in them ever runs.

Old formats keep dictionaries of arrays as pickles, many of them written by Python 2. What they need is small:
containers, strings, numbers and numpy arrays. Everything a pickle names is looked up in one table of harmless
stand-ins; numpy's own reconstruction (whose C code trusts what it is given) is done here, with checks.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import InputError

_PLAIN_KINDS = "biufcSU"  # bool, integers, floats, complex, byte and text strings

Classes = Mapping[tuple[str, str], Callable[..., Any]]
"""(module, name) as the pickle spells it -> the class or function of ours that stands in for it."""


def load_pickle(source: bytes | BinaryIO, *, name: str, classes: Classes | None = None) -> Any:
    """A pickle -> its value. `name` is what errors call it; `classes` admits more than numpy's own."""
    stream = io.BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else source
    try:
        return _plain(_Unpickler(stream, name=name, classes=classes or {}).load())
    except InputError:
        raise
    except Exception as error:
        # A damaged or hostile pickle can raise anything at all; none of it is our own state.
        raise InputError(
            f"{name}: not a readable pickle ({type(error).__name__}: {error}); the file may be truncated"
        ) from None


def load_pickle_file(path: Path, *, classes: Classes | None = None) -> Any:
    """A .pkl file -> its value."""
    try:
        with path.open("rb") as stream:
            return load_pickle(stream, name=str(path), classes=classes)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


def load_npy(source: bytes | BinaryIO, *, name: str, classes: Classes | None = None) -> npt.NDArray[Any]:
    """The bytes of a .npy -> its array; one of objects goes through the same narrow gate as a pickle."""
    stream = io.BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else source
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(stream)
        if not dtype.hasobject:
            raw = stream.read(math.prod(shape) * dtype.itemsize)
            return np.frombuffer(bytearray(raw), dtype).reshape(shape, order="F" if fortran else "C")
    except Exception as error:
        raise InputError(f"{name}: not a readable .npy ({error}); the file may be truncated") from None
    value = load_pickle(stream, name=name, classes=classes)
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name}: holds a {type(value).__name__}, expected an array")
    return value


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: BinaryIO, *, name: str, classes: Classes) -> None:
        # latin1 turns the byte strings of Python 2 into text without loss.
        super().__init__(stream, encoding="latin1")
        self._name, self._classes = name, classes

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._classes:
            return self._classes[module, name]
        package = module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins")
        if (package, name) in _STAND_INS:
            return _STAND_INS[package, name]
        raise InputError(
            f"{self._name}: the pickle asks for {module}.{name}, expected plain numpy data; "
            "nothing was run, and the file is not read further"
        )


class _Dtype:
    """What a pickle calls numpy.dtype, rebuilt from its letters alone."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        self._code, self._order = _text(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = _text(state[1])
        if state[2] is not None or state[3] is not None or state[4] is not None:
            raise ValueError("structured arrays are not expected here")

    def dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self._code)
        if dtype.kind not in _PLAIN_KINDS + "O" or dtype.names is not None:
            raise ValueError(f"arrays of {self._code} are not expected here")
        return dtype if self._order == "|" else dtype.newbyteorder(self._order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    """An array between its two pickle opcodes: made empty, then filled with a state that is checked first."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        dtype = kind.dtype()
        if dtype.kind == "O":
            # numpy reads the list without looking at its length.
            if not isinstance(content, list) or len(content) != math.prod(shape):
                raise ValueError(f"an array of objects of shape {shape} has the wrong number of them")
        else:
            content = _bytes(content)
            if len(content) != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{len(content)} bytes for an array of shape {shape} and dtype {dtype}")
        super().__setstate__((1, shape, dtype, bool(fortran), content))  # type: ignore[arg-type]


_NDARRAY = object()  # stands for the class itself; not callable, so a pickle can only pass it on


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    if kind is not _NDARRAY:
        raise ValueError("an array of an unknown class")
    return _Array((0,), np.int8)


def _scalar(kind: _Dtype, content: bytes | str) -> Any:
    dtype = kind.dtype()
    if dtype.kind == "O":
        raise ValueError("a scalar of objects")
    return np.frombuffer(_bytes(content), dtype, count=1)[0]


def _frombuffer(content: Any, kind: _Dtype, shape: tuple[int, ...], order: str) -> npt.NDArray[Any]:
    array = np.frombuffer(bytearray(content), kind.dtype())
    return array.reshape(shape, order="F" if order == "F" else "C")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    return b""


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytes"): _empty_bytes,  # how protocol 2 spells b""
    ("_codecs", "encode"): _encode,  # how protocol 2 spells any other bytes
}


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _bytes(value: object) -> bytes:
    """Raw array content: bytes from Python 3, text in latin1 from Python 2."""
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes):
        raise ValueError(f"array content is a {type(value).__name__}, expected bytes")
    return value


def _plain(value: Any) -> Any:
    """Our array class -> numpy's, through containers; their identity and order stay."""
    if isinstance(value, _Array):
        if value.dtype.kind == "O":
            for index, item in enumerate(value.flat):
                value.flat[index] = _plain(item)
        return value.view(np.ndarray)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _plain(item)
    elif isinstance(value, list):
        value[:] = [_plain(item) for item in value]
    elif type(value) is tuple:
        return tuple(_plain(item) for item in value)
    return value
