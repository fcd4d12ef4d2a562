"""Vocabularies of other projects <-> ours: SCAN's JSON, the pickles of VSE++ and CAMP, torchtext's Vocab."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..files import checksum_file, write_atomic
from .pickle_guard import Stranger, load_guarded
from .tokenizer import Tokenizer
from .torchtext_bridge import read_torchtext, write_torchtext
from .vectors import WordVectors, given_vectors
from .vocabulary import Vocabulary, check_words, find_specials

FORMATS = ("scan-json", "pickle", "torchtext")
_PICKLED_CLASSES = ("__main__.Vocabulary", "vocab.Vocabulary")
_BYTES_WORD = re.compile(r"""b(['"]).*\1""", re.DOTALL)


@dataclass(frozen=True)
class ImportedVocabulary:
    """A foreign vocabulary with its own ids, its vectors where it had some, and what is odd about it."""

    vocabulary: Vocabulary
    vectors: WordVectors | None
    warnings: tuple[str, ...]


def import_vocabulary(path: Path, *, format: str, tokenizer: Tokenizer) -> ImportedVocabulary:
    """A foreign file -> a vocabulary. The tokenizer is the one its project used: files do not say."""
    if format not in FORMATS:
        raise InputError(f"vocabulary format {format!r} is unknown; there are {', '.join(FORMATS)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    warnings: list[str] = []
    counts: Sequence[int] | None = None
    matrix = None
    if format == "torchtext":
        foreign = read_torchtext(path)
        words, counts, matrix = foreign.words, foreign.counts, foreign.matrix
    elif format == "pickle":
        words, warnings = _read_pickle(path)
    else:
        words = _read_scan_json(path)
    check_words(words, where=str(path))
    warnings += _odd_words(words, where=str(path))
    vocabulary = Vocabulary(
        words=tuple(words),
        counts=None if counts is None else tuple(counts),
        specials=find_specials(words, where=str(path)),
        tokenizer=tokenizer,
        source={"kind": "import", "format": format, "file": path.name, "checksum": checksum_file(path)},
    )
    vectors = None
    if matrix is not None:
        vectors = given_vectors(matrix, vocabulary=vocabulary, source=dict(vocabulary.source))
    return ImportedVocabulary(vocabulary=vocabulary, vectors=vectors, warnings=tuple(warnings))


def export_vocabulary(
    vocabulary: Vocabulary, path: Path, *, format: str, matrix: npt.NDArray[np.float32] | None = None
) -> None:
    """A vocabulary -> a file of another project; torchtext's takes the vectors along."""
    if format == "torchtext":
        write_torchtext(path, vocabulary, matrix=matrix)
    elif format == "pickle":
        write_atomic(path, _pickled(vocabulary))
    elif format == "scan-json":
        document = {
            "word2idx": vocabulary.index,
            "idx2word": {str(number): word for number, word in enumerate(vocabulary.words)},
            "idx": len(vocabulary),
        }
        write_atomic(path, json.dumps(document).encode())
    else:
        raise InputError(f"vocabulary format {format!r} is unknown; there are {', '.join(FORMATS)}")


def _pickled(vocabulary: Vocabulary) -> bytes:
    """Protocol 2 and the class `vocab.Vocabulary`, which the readers have and this package has not."""
    state = {
        "word2idx": vocabulary.index,
        "idx2word": dict(enumerate(vocabulary.words)),
        "idx": len(vocabulary),
    }
    begin = b"\x80\x02cvocab\nVocabulary\n)\x81"  # protocol, class, an instance without arguments
    body = pickle.dumps(state, protocol=2)[2:-1]  # without its own protocol and stop marks
    return begin + body + b"b."


def _read_scan_json(path: Path) -> list[str]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); expected word2idx, idx2word and idx") from None
    return _words_by_id(document if isinstance(document, dict) else {}, where=str(path))


def _read_pickle(path: Path) -> tuple[list[str], list[str]]:
    content, latin = load_guarded(path.read_bytes(), known=_PICKLED_CLASSES, where=str(path))
    warnings = []
    if latin:
        warnings.append(
            f"{path}: Python 2 strings that are not UTF-8 were read as Latin-1; check words with accents"
        )
    attributes = vars(content) if isinstance(content, Stranger) else content
    return _words_by_id(attributes if isinstance(attributes, dict) else {}, where=str(path)), warnings


def _words_by_id(attributes: Mapping[str, Any], *, where: str) -> list[str]:
    """word2idx and idx2word of either kind -> words in the file's own order, both maps checked."""
    word2idx, idx2word = attributes.get("word2idx"), attributes.get("idx2word")
    if not isinstance(word2idx, dict) or not isinstance(idx2word, dict):
        raise InputError(f"{where}: no word2idx and idx2word found; is it another format?")
    by_id = {int(number): word for number, word in idx2word.items() if str(number).isdecimal()}
    if sorted(by_id) != list(range(len(idx2word))):
        raise InputError(f"{where}: the ids of idx2word are not 0 to {len(idx2word) - 1}")
    for number, word in by_id.items():
        back = word2idx.get(word)
        if back != number:
            raise InputError(f"{where}: idx2word has {word!r} at {number}, word2idx says {back}")
    if len(word2idx) != len(by_id):
        raise InputError(f"{where}: {len(word2idx)} words in word2idx, {len(by_id)} in idx2word")
    return [by_id[number] for number in range(len(by_id))]


def _odd_words(words: Sequence[str], *, where: str) -> list[str]:
    wrapped = [word for word in words if _BYTES_WORD.fullmatch(word)]
    if not wrapped:
        return []
    return [
        f"{where}: {len(wrapped)} words look like {wrapped[0]}: bytes became text when it was made, "
        "so no caption will match them"
    ]
