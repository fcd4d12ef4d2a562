"""word2vec binaries, NumPy matrices and torchtext caches -> the vectors of wanted words."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .row_sink import RowSink

_LONGEST_WORD = 1 << 16


def read_word2vec_binary(blocks: Iterable[bytes], sink: RowSink, *, where: str) -> None:
    """Blocks of a word2vec .bin: 'rows dim', then for each row the word, a space and dim float32."""
    tail = b""
    rows = dim = -1
    done = 0
    for block in blocks:
        tail += block
        position = 0
        if rows < 0:
            position = tail.find(b"\n") + 1
            if position == 0 and len(tail) < _LONGEST_WORD:
                continue
            rows, dim = _binary_header(tail[: max(position, 1)], where=where)
            sink.set_dim(dim)
        size = 4 * dim
        while done < rows:
            space = tail.find(b" ", position)
            if space < 0 or space + 1 + size > len(tail):
                break
            word = tail[position:space].lstrip(b"\n")
            claimed = sink.claim(word)
            if claimed:
                sink.put(claimed, np.frombuffer(tail, "<f4", dim, space + 1))
            position = space + 1 + size
            done += 1
        tail = tail[position:]
        if done < rows and b" " not in tail and len(tail) > _LONGEST_WORD:
            raise InputError(f"{where}: no word found at row {done + 1} of {rows}; not a word2vec binary")
    if done < rows or rows < 0:
        raise InputError(f"{where}: ends after {done} of {max(rows, 0)} vectors; fetch the file again")


def _binary_header(line: bytes, *, where: str) -> tuple[int, int]:
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) < 1:
        shown = line[:40].decode("utf-8", "replace")
        raise InputError(f"{where}: begins with {shown!r}, expected 'rows dimension' of a word2vec binary")
    return int(fields[0]), int(fields[1])


def read_numpy_vectors(path: Path, sink: RowSink, *, words_file: Path | None = None) -> None:
    """A .npy of (words, dim) and the words, one per line -> the sink's matrix; the .npy is memory-mapped."""
    words_file = words_file or _words_beside(path)
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a NumPy matrix ({error})") from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise InputError(f"{path}: {vectors.dtype} of shape {vectors.shape}, expected floats of (words, dim)")
    words = words_file.read_bytes().split(b"\n")
    if words and not words[-1]:
        words.pop()
    if len(words) != len(vectors):
        raise InputError(f"{path}: {len(vectors)} rows, but {words_file} has {len(words)} words")
    sink.set_dim(vectors.shape[1])
    for row, word in enumerate(words):
        claimed = sink.claim(word.rstrip(b"\r"))
        if claimed:
            sink.put(claimed, vectors[row])


def _words_beside(path: Path) -> Path:
    candidates = [path.with_suffix(suffix) for suffix in (".words", ".words.txt", ".txt", ".vocab")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = ", ".join(candidate.name for candidate in candidates)
    raise InputError(f"{path}: no file of words beside it ({names}); name it with --vectors-words")


def read_torchtext_cache(path: Path, sink: RowSink) -> None:
    """A .pt from torchtext's .vector_cache: (itos, stoi, vectors, dim) -> the sink's matrix."""
    import torch

    try:
        cache: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        itos, _, vectors, dim = cache
        fits = isinstance(vectors, torch.Tensor) and vectors.shape == (len(itos), dim)
    except Exception as error:  # torch.load reports damage and refused classes in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a torchtext vector cache ({reason})") from None
    if not fits:
        raise InputError(f"{path}: {len(itos)} words of dimension {dim}, but the vectors are something else")
    sink.set_dim(int(dim))
    for row, word in enumerate(itos):
        claimed = sink.claim(str(word).encode("utf-8", "surrogatepass"))
        if claimed:
            sink.put(claimed, vectors[row].float().numpy())
