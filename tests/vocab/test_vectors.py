"""Word vectors of every format -> the same matrix; files that are wrong say where."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from camp.errors import InputError, MismatchError, VerificationError
from camp.vocab.vectors import (
    WordVectors,
    load_vectors,
    open_vectors,
    save_vectors,
    vectors_file,
    vectors_name,
)
from camp.vocab.vocabulary import Vocabulary

MakeVocabulary = Callable[..., Vocabulary]
ENTRIES: dict[str, list[float]] = {
    "the": [0.1, -2.5, 3e-05],
    "London": [1, 2, 3],
    "dog": [4, 5, 6.5],
    "Dog": [7, 8, 9],
    "日本": [0, 1, 0],
}
TEXT = "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in ENTRIES.items()).encode()
WANTED = ["dog", "the", "london", "日本", "absent", "Dog", "THE"]
EXPECTED = [
    ENTRIES["dog"],
    ENTRIES["the"],
    ENTRIES["London"],
    ENTRIES["日本"],
    None,
    ENTRIES["Dog"],
    ENTRIES["the"],
]


def binary(entries: dict[str, list[float]] = ENTRIES, *, newline: bytes = b"\n") -> bytes:
    rows = (word.encode() + b" " + np.array(vector, "<f4").tobytes() for word, vector in entries.items())
    return f"{len(entries)} 3\n".encode() + newline.join(rows) + newline


def write_every_format(folder: Path) -> dict[str, Path]:
    matrix = np.array(list(ENTRIES.values()), np.float32)
    header = f"{len(ENTRIES)} 3\n".encode()
    contents = {
        "glove.txt": TEXT,
        "no-newline.txt": TEXT[:-1],
        "crlf.txt": TEXT.replace(b"\n", b"\r\n"),
        "header.vec": header + TEXT.replace(b"\n", b" \n"),  # fastText and word2vec end lines with a space
        "tabs.txt": TEXT.replace(b" ", b"\t"),
        "double.txt": TEXT.replace(b" ", b"  "),
        "word2vec.bin": binary(),
        "gensim.bin": binary(newline=b""),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for name in ("glove.txt", "word2vec.bin"):
        with gzip.open(folder / f"{name}.gz", "wb") as packed:
            packed.write(contents[name])
    with zipfile.ZipFile(folder / "glove.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.txt", TEXT)
    np.save(folder / "matrix.npy", matrix)
    (folder / "matrix.words").write_text("\n".join(ENTRIES) + "\n")
    np.save(folder / "half.npy", matrix.astype(np.float64))
    (folder / "half.txt").write_text("\r\n".join(ENTRIES))
    stoi = {word: row for row, word in enumerate(ENTRIES)}
    torch.save((list(ENTRIES), stoi, torch.from_numpy(matrix), 3), folder / "cache.pt")
    torch.save(
        (list(ENTRIES), stoi, torch.from_numpy(matrix), 3),
        folder / "old.pt",
        _use_new_zipfile_serialization=False,
    )
    return {
        path.name: path for path in folder.iterdir() if path.suffix != ".words" and path.name != "half.txt"
    }


FORMATS = (
    "glove.txt no-newline.txt crlf.txt header.vec tabs.txt double.txt word2vec.bin gensim.bin glove.txt.gz "
    "word2vec.bin.gz glove.zip matrix.npy half.npy cache.pt old.pt"
)


@pytest.mark.parametrize("name", FORMATS.split())
def test_every_format_gives_the_same_matrix(
    tmp_path: Path, make_vocabulary: MakeVocabulary, name: str
) -> None:
    path = write_every_format(tmp_path)[name]
    vocabulary = make_vocabulary(WANTED, counts=[5, 9, 2, 1, 3, 1, 1])
    vectors = load_vectors(path, vocabulary=vocabulary)
    assert vectors.matrix.dtype == np.float32
    assert vectors.matrix.shape == (11, 3)
    for row, expected in enumerate(EXPECTED, start=4):
        if expected is not None:
            np.testing.assert_array_equal(vectors.matrix[row], np.array(expected, np.float32))
    assert vectors.coverage == {
        "types": 7,
        "types_found": 6,
        "other_case": 2,
        "tokens": 22,
        "tokens_found": 19,
        "missing": [{"word": "absent", "count": 3}],
    }
    assert vectors.source["file"] == name
    assert vectors.source["checksum"].startswith("xxh3:")


def test_missing_rows_depend_on_seed_and_word_alone(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(TEXT)

    def rows(words: list[str], seed: int = 0) -> dict[str, list[float]]:
        vocabulary = make_vocabulary(words)
        matrix = load_vectors(path, vocabulary=vocabulary, seed=seed).matrix
        return dict(zip(vocabulary.words, matrix.tolist(), strict=True))

    one, other = rows(["x", "y", "dog"]), rows(["y", "z"])
    assert one["y"] == other["y"] != one["x"]
    assert rows(["y"], seed=1)["y"] != one["y"]
    assert one["<pad>"] == [0, 0, 0]
    assert one["<unk>"] != [0, 0, 0]


def test_missing_rows_have_a_standard_deviation_of_a_tenth(
    tmp_path: Path, make_vocabulary: MakeVocabulary
) -> None:
    (tmp_path / "v.txt").write_text("dog " + " ".join(["1.0"] * 50) + "\n")
    matrix = load_vectors(
        tmp_path / "v.txt", vocabulary=make_vocabulary([f"w{n}" for n in range(200)])
    ).matrix
    assert abs(matrix[4:].std() - 0.1) < 0.005
    assert abs(matrix[4:].mean()) < 0.005


def test_the_first_of_equal_entries_counts(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    (tmp_path / "v.txt").write_text("DOG 1 1\nDoG 2 2\ncat 3 3\ncat 4 4\nDog 5 5\n")
    matrix = load_vectors(tmp_path / "v.txt", vocabulary=make_vocabulary(["dog", "cat", "Dog"])).matrix
    assert matrix[4:].tolist() == [[1, 1], [3, 3], [5, 5]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1 2\nc 1\nd 1 2\n", "line 3 has 1 numbers, expected 2"),
        ("v.txt", b"a 1 2\nb 1 2 3\n", "line 2 has 3 numbers, expected 2"),
        ("v.txt", b"2 2\na 1 2\nb 1\n", "line 3 has 1 numbers, expected 2"),
        ("v.txt", b"a 1 2\nb 1 2\nc 1", "line 3 has 1 numbers, expected 2"),
        ("v.txt", b"a 1 2\ndog 1 x\n", "line 2 has 'x' where a finite number is expected"),
        ("v.txt", b"a 1 2\ndog 1 nan\n", "line 2 has 'nan' where a finite number"),
        ("v.txt", b"a 1 2\ndog  1\n", "line 2 has 1 numbers, expected 2"),
        ("v.txt", b"", "line 1 is '', expected a word and the numbers"),
        (
            "v.txt",
            b"one caption per line\nand another\n",
            "line 1 is 'one caption per line', expected a word",
        ),
        ("v.txt", b"3 2\na 1 2\nb 1 2\n", "2 vectors found, line 1 announces 3"),
        ("v.bin", binary()[:-6], "ends after 4 of 5 vectors"),
        ("v.bin", b"", "ends after 0 of 0 vectors"),
        ("v.bin", b"word 3\n", "begins with 'word 3"),
        ("v.bin", b"5 3\n" + b"x" * 70_000, "no word found at row 1 of 5"),
        ("v.npy", b"nonsense", "not a NumPy matrix"),
        ("v.pt", b"nonsense", "not a torchtext vector cache"),
        ("v.zip", b"nonsense", "damaged or cut short"),
        ("v.txt.gz", gzip.compress(TEXT, mtime=0)[:-12], "damaged or cut short"),
        ("v.txt.gz", b"nonsense", "damaged or cut short"),
        ("v.npy.gz", b"", "unpack it first"),
    ],
)
def test_wrong_files_say_where(
    tmp_path: Path, make_vocabulary: MakeVocabulary, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "v.words").write_text("dog\n")
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        load_vectors(tmp_path / name, vocabulary=make_vocabulary(["dog"]))


def test_zip_files(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    path = tmp_path / "glove.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.50d.txt", "dog 1 2\n" * 2000)
        archive.writestr("glove.100d.txt", TEXT)
        archive.writestr("__MACOSX/._glove.50d.txt", b"x")
    vocabulary = make_vocabulary(["dog"])
    with pytest.raises(
        InputError, match=r"2 files inside \(glove.50d.txt, glove.100d.txt\).*--vectors-member"
    ):
        load_vectors(path, vocabulary=vocabulary)
    with pytest.raises(InputError, match="no member 'x'; there are glove.50d.txt"):
        load_vectors(path, vocabulary=vocabulary, member="x")
    vectors = load_vectors(path, vocabulary=vocabulary, member="glove.100d.txt")
    assert vectors.matrix[4].tolist() == ENTRIES["dog"]
    assert vectors.source["member"] == "glove.100d.txt"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])  # a broken download: the directory at the end is gone
    with pytest.raises(
        InputError, match=r"glove.zip: damaged or cut short \(File is not a zip file\); fetch"
    ):
        load_vectors(path, vocabulary=vocabulary)
    damaged = bytearray(content)
    damaged[60:70] = bytes(10)  # inside the first member's data
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"glove.zip: damaged or cut short"):
        load_vectors(path, vocabulary=vocabulary, member="glove.50d.txt")


def test_options_that_do_not_fit(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_vocabulary(["dog"])
    with pytest.raises(InputError, match="v.txt: no such file of word vectors"):
        load_vectors(tmp_path / "v.txt", vocabulary=vocabulary)
    (tmp_path / "v.txt").write_bytes(TEXT)
    with pytest.raises(InputError, match="not a zip file, so it has no member 'x'"):
        load_vectors(tmp_path / "v.txt", vocabulary=vocabulary, member="x")


def test_npy_and_its_words(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_vocabulary(["dog"])
    path = tmp_path / "v.npy"
    np.save(path, np.ones((2, 3), np.float16))
    with pytest.raises(
        InputError, match=r"no file of words beside it \(v.words, v.words.txt.*--vectors-words"
    ):
        load_vectors(path, vocabulary=vocabulary)
    (tmp_path / "w").write_text("cat\ndog\n")
    assert load_vectors(path, vocabulary=vocabulary, words_file=tmp_path / "w").matrix[4].tolist() == [
        1,
        1,
        1,
    ]
    (tmp_path / "w").write_text("cat\n")
    with pytest.raises(InputError, match="2 rows, but .*w has 1 words"):
        load_vectors(path, vocabulary=vocabulary, words_file=tmp_path / "w")
    np.save(path, np.ones(3, np.int64))
    with pytest.raises(InputError, match=r"int64 of shape \(3,\), expected floats of \(words, dim\)"):
        load_vectors(path, vocabulary=vocabulary, words_file=tmp_path / "w")


def test_a_torchtext_cache_that_does_not_fit(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    torch.save((["a"], {"a": 0}, torch.ones(2, 3), 3), tmp_path / "v.pt")
    with pytest.raises(InputError, match="1 words of dimension 3, but the vectors are something else"):
        load_vectors(tmp_path / "v.pt", vocabulary=make_vocabulary(["dog"]))


def saved(folder: Path, vocabulary: Vocabulary) -> Path:
    (folder / "glove.6B.txt").write_bytes(TEXT)
    vectors = load_vectors(folder / "glove.6B.txt", vocabulary=vocabulary)
    path = vectors_file(folder / "default.json", vectors_name(folder / "glove.6B.txt"))
    save_vectors(path, vectors, vocabulary=vocabulary)
    return path


def test_saved_and_opened(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_vocabulary(WANTED)
    path = saved(tmp_path, vocabulary)
    assert path.name == "default.glove.6B.npy"
    opened = open_vectors(path, vocabulary=vocabulary)
    fresh = load_vectors(tmp_path / "glove.6B.txt", vocabulary=vocabulary)
    assert isinstance(opened.matrix, np.memmap)
    assert_same(opened, fresh)
    assert "tokens" not in opened.coverage  # these words have no counts
    with pytest.raises(MismatchError, match=r"default.glove.6B.npy: made for vocabulary .* this one is"):
        open_vectors(path, vocabulary=make_vocabulary(["dog"]))


def test_a_matrix_without_its_notes_does_not_count(tmp_path: Path, make_vocabulary: MakeVocabulary) -> None:
    vocabulary = make_vocabulary(WANTED)
    path = saved(tmp_path, vocabulary)
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(VerificationError, match="not a word matrix"):
        open_vectors(path, vocabulary=vocabulary)
    path.with_suffix(".json").unlink()
    with pytest.raises(InputError, match=r"default.glove.6B.json: not found"):
        open_vectors(path, vocabulary=vocabulary)


def assert_same(one: WordVectors, other: WordVectors) -> None:
    np.testing.assert_array_equal(np.asarray(one.matrix), np.asarray(other.matrix))
    assert (one.coverage, one.source, one.seed) == (other.coverage, other.source, other.seed)


def test_names_of_matrices() -> None:
    assert vectors_name(Path("a/glove.6B.300d.txt.gz")) == "glove.6B.300d"
    assert vectors_name(Path("GoogleNews-vectors-negative300.bin.gz")) == "GoogleNews-vectors-negative300"
    assert vectors_name(Path("glove.6B.zip")) == "glove.6B"
