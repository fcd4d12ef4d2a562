"""What the restricted unpickler admits, and that everything else is refused by name."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from camp.errors import InputError
from camp.pickles import load_npy, load_pickle, load_pickle_file

ARRAYS = hnp.arrays(
    dtype=st.sampled_from(["<f4", ">f4", "<f8", "<f2", "<i8", ">i4", "u1", "?", "<U3", "S4"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(array=ARRAYS, protocol=st.integers(0, 4))
def test_arrays_survive_every_protocol(array: np.ndarray[Any, Any], protocol: int) -> None:
    read = load_pickle(pickle.dumps({"array": [array]}, protocol), name="x.pkl")["array"][0]
    assert type(read) is np.ndarray
    native = array.astype(array.dtype.newbyteorder("="))  # what numpy makes of big-endian pickles too
    assert read.shape == array.shape
    assert read.astype(native.dtype).tobytes() == native.tobytes()
    assert read.dtype.newbyteorder("=") == native.dtype


def test_protocol_5_and_fortran_order() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for protocol in (2, 5):
        np.testing.assert_array_equal(load_pickle(pickle.dumps(array, protocol), name="x"), array)


def test_containers_scalars_and_bytes() -> None:
    value = OrderedDict(
        a=np.float32(1.5), b=np.int64(7), c=(1, None, True, b"\xff\x00", b""), d={1, 2}, e=["ü", 2.5]
    )
    for protocol in (0, 2, 5):
        read = load_pickle(pickle.dumps(value, protocol), name="x")
        assert read == value
        assert type(read["a"]) is np.float32


def test_a_pickle_of_python_2() -> None:
    # {'a': numpy.array([1, 2], '<i4')} as protocol 2 of Python 2 writes it: array content is a byte string.
    content = (
        b"\x80\x02}q\x01U\x01aq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x02\x85q\x09cnumpy\ndtype\nq\x0aU\x02i4q\x0b"
        b"K\x00K\x01\x87q\x0cRq\x0d(K\x03U\x01<q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb"
        b"\x89U\x08\x01\x00\x00\x00\x02\x00\x00\x00q\x10tq\x11bs."
    )
    pickletools.dis(content, out=io.StringIO())
    assert load_pickle(content, name="x")["a"].tolist() == [1, 2]


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def test_code_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps({"x": _Attack()}))
    with pytest.raises(InputError, match=r"bad\.pkl: the pickle asks for posix\.system"):
        load_pickle_file(path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "value", [eval, getattr, np.load, np.memmap, pickle.loads, bytearray(b"x"), object()]
)
def test_everything_else_is_refused(value: object, protocol: int) -> None:
    with pytest.raises(InputError, match="asks for"):
        load_pickle(pickle.dumps(value, protocol), name="x")


def test_callers_may_admit_a_class_of_theirs() -> None:
    class Vocabulary:
        word2idx: dict[str, int]

    content = b"\x80\x02c__main__\nVocabulary\n)\x81}U\x08word2idx}U\x01aK\x04ssb."
    with pytest.raises(InputError, match=r"__main__\.Vocabulary"):
        load_pickle(content, name="x")
    read = load_pickle(content, name="x", classes={("__main__", "Vocabulary"): Vocabulary})
    assert read.word2idx == {"a": 4}


def test_lying_arrays_are_refused() -> None:
    def forged(shape: bytes, dtype: bytes, state: bytes, content: bytes) -> bytes:
        return (
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
            + shape
            + b"cnumpy\ndtype\nU\x02"
            + dtype
            + b"K\x00K\x01\x87R(K\x03U\x01"
            + state
            + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            + content
            + b"tb."
        )

    plain = forged(b"K\x01\x85", b"i4", b"<NNN", b"U\x04\x01\x00\x00\x00")
    assert load_pickle(plain, name="x").tolist() == [1]
    for bad in (
        forged(b"K\x05\x85", b"i4", b"<NNN", b"U\x04\x01\x00\x00\x00"),  # 20 bytes promised
        forged(b"K\x05\x85", b"O8", b"|NNN", b"]K\x01a"),  # five objects promised
        forged(b"K\x01\x85", b"V4", b"|NNN", b"U\x04\x01\x00\x00\x00"),  # raw memory
        forged(b"K\x01\x85", b"i4", b"<K\x01NN", b"U\x04\x01\x00\x00\x00"),  # a sub-array type
    ):
        with pytest.raises(InputError, match="not a readable pickle"):
            load_pickle(bad, name="x")


@given(content=st.binary(max_size=60))
def test_noise_is_an_input_error(content: bytes) -> None:
    for read in (load_pickle, load_npy):
        try:
            read(content, name="noise")
        except InputError as error:
            assert "noise" in str(error)  # noqa: PT017 - either outcome is right, a traceback is not


def test_truncated_pickle_says_so() -> None:
    content = pickle.dumps(np.arange(100))
    with pytest.raises(InputError, match="x: not a readable pickle"):
        load_pickle(content[:80], name="x")


def test_npy_of_objects_and_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "info.npy"
    np.save(path, {"bbox": np.ones((2, 4), np.float32), "image_width": 640}, allow_pickle=True)  # type: ignore[arg-type]
    info = load_npy(path.read_bytes(), name="info.npy").item()
    assert info["image_width"] == 640
    assert type(info["bbox"]) is np.ndarray

    numbers = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    np.save(path, numbers)
    with path.open("rb") as stream:
        np.testing.assert_array_equal(load_npy(stream, name="info.npy"), numbers)
    with pytest.raises(InputError, match=r"info\.npy: not a readable \.npy"):
        load_npy(path.read_bytes()[:-1], name="info.npy")
    np.save(path, np.array(_Attack(), dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"posix\.system"):
        load_npy(path.read_bytes(), name="info.npy")
