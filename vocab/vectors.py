"""A vocabulary and a file of word vectors -> a float32 matrix whose row i is word i, and its coverage."""

from __future__ import annotations

import json
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, MismatchError, VerificationError
from ..files import atomic_writer, canonical_json, checksum_file, write_atomic
from ..progress import ProgressFactory, no_progress
from ..schema import VOCAB_VERSION
from .row_sink import EXACT, MISSING, RowSink
from .vector_binary import read_numpy_vectors, read_torchtext_cache, read_word2vec_binary
from .vector_streams import find_vector_file
from .vector_text import read_text_vectors
from .vocabulary import Vocabulary

MISSING_STD = 0.1  # rows without a vector are drawn from N(0, 0.1), as the published models do
_SHOWN_MISSING = 20


@dataclass(frozen=True)
class WordVectors:
    """The embedding matrix of one vocabulary."""

    matrix: npt.NDArray[np.float32]  # (words, dim)
    coverage: dict[str, Any]
    source: dict[str, Any]
    seed: int

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])


def load_vectors(
    path: Path,
    *,
    vocabulary: Vocabulary,
    seed: int = 0,
    member: str | None = None,
    words_file: Path | None = None,
    progress: ProgressFactory = no_progress,
) -> WordVectors:
    """GloVe or word2vec text (plain, .gz, .zip), word2vec .bin, .npy + words, torchtext .pt -> a matrix.

    The file streams by; only the vocabulary's rows are kept. A row that is not in the file depends on the
    seed and the word alone, so it is the same in every vocabulary; the padding row is zero.
    """
    sink = RowSink(vocabulary.words)
    file = find_vector_file(path, member=member)
    where = str(path) if file.packing != "zip" else f"{path}: {file.name}"
    kind = Path(file.name).suffix
    if kind in (".npy", ".pt", ".pth") and file.packing != "plain":
        raise InputError(f"{path}: unpack it first; a {kind} file is read in place")
    if kind == ".npy":
        read_numpy_vectors(path, sink, words_file=words_file)
    elif kind in (".pt", ".pth"):
        read_torchtext_cache(path, sink)
    else:
        read = read_word2vec_binary if kind == ".bin" else read_text_vectors
        # Closed at once, so that the bar ends before an error is told.
        with closing(file.blocks(progress=progress)) as blocks:
            read(blocks, sink, where=where)
    assert sink.matrix is not None
    _fill_missing(sink, vocabulary, seed=seed)
    source = {"file": path.name, "checksum": file.checksum()}
    if file.packing == "zip":
        source["member"] = file.name
    return WordVectors(
        matrix=sink.matrix, coverage=measure_coverage(vocabulary, sink.rank), source=source, seed=seed
    )


def _fill_missing(sink: RowSink, vocabulary: Vocabulary, *, seed: int) -> None:
    assert sink.matrix is not None
    for row in np.flatnonzero(sink.rank == MISSING).tolist():
        word_seed = zlib.crc32(vocabulary.words[row].encode("utf-8", "surrogatepass"))
        generator = np.random.default_rng([seed, word_seed])
        sink.matrix[row] = generator.normal(0.0, MISSING_STD, sink.matrix.shape[1])
    if vocabulary.specials.pad is not None:
        sink.matrix[vocabulary.specials.pad] = 0.0


def measure_coverage(vocabulary: Vocabulary, rank: npt.NDArray[np.int8]) -> dict[str, Any]:
    """Which spelling each word was found in -> shares of types and of tokens, and the missing words."""
    is_word = np.ones(len(vocabulary), bool)
    is_word[list(vocabulary.specials.ids())] = False
    found = (rank != MISSING) & is_word
    missing = np.flatnonzero(~found & is_word).tolist()
    coverage: dict[str, Any] = {
        "types": int(is_word.sum()),
        "types_found": int(found.sum()),
        "other_case": int(np.count_nonzero((rank != EXACT) & found)),
    }
    if vocabulary.counts is not None:
        counts = np.array(vocabulary.counts, np.int64)
        coverage["tokens"] = int(counts[is_word].sum())
        coverage["tokens_found"] = int(counts[found].sum())
        missing.sort(key=lambda row: (-vocabulary.counts[row], row))  # type: ignore[index]
    coverage["missing"] = [
        {"word": vocabulary.words[row], "count": vocabulary.counts[row] if vocabulary.counts else None}
        for row in missing[:_SHOWN_MISSING]
    ]
    return coverage


def given_vectors(
    matrix: npt.NDArray[np.float32], *, vocabulary: Vocabulary, source: dict[str, Any]
) -> WordVectors:
    """A matrix that came with its vocabulary, row i for word i."""
    found = np.full(len(vocabulary), EXACT, np.int8)
    return WordVectors(matrix=matrix, coverage=measure_coverage(vocabulary, found), source=source, seed=0)


def vectors_file(vocab_file: Path, name: str) -> Path:
    """vocab/default.json and glove.6B.300d -> vocab/default.glove.6B.300d.npy."""
    return vocab_file.with_name(f"{vocab_file.stem}.{name}.npy")


def vectors_name(path: Path) -> str:
    """A file of vectors -> the name of its matrix: glove.6B.300d.txt.gz -> glove.6B.300d."""
    name = path.name
    for suffix in (".gz", ".zip", ".txt", ".vec", ".bin", ".npy", ".pt", ".pth"):
        name = name.removesuffix(suffix)
    return name or "vectors"


def save_vectors(path: Path, vectors: WordVectors, *, vocabulary: Vocabulary) -> None:
    """A matrix -> PATH.npy, then the .json beside it that says what it is; without that it does not count."""
    with atomic_writer(path) as stream:
        np.lib.format.write_array(stream, vectors.matrix, allow_pickle=False)
    document = {
        "schema_version": VOCAB_VERSION,
        "vocab_fingerprint": vocabulary.fingerprint,
        "shape": list(vectors.matrix.shape),
        "seed": vectors.seed,
        "source": vectors.source,
        "coverage": vectors.coverage,
        "checksum": checksum_file(path),
    }
    write_atomic(path.with_suffix(".json"), canonical_json(document))


def open_vectors(path: Path, *, vocabulary: Vocabulary) -> WordVectors:
    """A saved matrix -> the same, memory-mapped, refused where it belongs to another vocabulary."""
    notes = path.with_suffix(".json")
    try:
        document = json.loads(notes.read_bytes())
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
        shape, made_for = document["shape"], document["vocab_fingerprint"]
        vectors = WordVectors(
            matrix=matrix, coverage=document["coverage"], source=document["source"], seed=document["seed"]
        )
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename}: not found; make it with 'camp-data build-vocab --vectors'"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"{path}: not a word matrix ({error!r}); build it again") from None
    if made_for != vocabulary.fingerprint or shape != [len(vocabulary), matrix.shape[-1]]:
        raise MismatchError(
            f"{path}: made for vocabulary {made_for}, this one is {vocabulary.fingerprint}; "
            "run 'camp-data build-vocab' with --vectors again"
        )
    return vectors
