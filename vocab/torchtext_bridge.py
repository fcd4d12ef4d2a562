"""torchtext's Vocab and Vectors, 0.6.0 and its legacy kin <-> ours."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, MissingPackageError
from ..files import write_atomic
from .pickle_guard import Stranger, load_guarded
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from torchtext.vocab import Vocab

_VOCAB_CLASSES = ("torchtext.vocab.Vocab", "torchtext.legacy.vocab.Vocab")


@dataclass(frozen=True)
class ForeignVocab:
    """What a torchtext Vocab holds, as plain values."""

    words: list[str]
    counts: list[int] | None
    matrix: npt.NDArray[np.float32] | None  # (words, dim)


def require_torchtext() -> None:
    """Refuse to go on without torchtext; reading its files does not need it."""
    if importlib.util.find_spec("torchtext") is None:
        raise MissingPackageError("torchtext is not installed; pip install 'camp-toolkit[torchtext]'")


def to_torchtext(vocabulary: Vocabulary, *, matrix: npt.NDArray[np.float32] | None = None) -> Vocab:
    """A vocabulary, perhaps with its vectors -> a torchtext Vocab with the same ids."""
    require_torchtext()
    from torchtext.vocab import Vocab

    words = list(vocabulary.words)
    counts = vocabulary.counts or [0] * len(words)
    vocab = Vocab(
        Counter({word: count for word, count in zip(words, counts, strict=True) if count}), specials=()
    )
    # Set afterwards: the constructor would sort the words, and foreign orders are to be kept.
    vocab.itos = words
    vocab.unk_index = vocabulary.specials.unk
    vocab.stoi = defaultdict(vocab._default_unk_index, vocabulary.index)
    if matrix is not None:
        import torch

        vocab.vectors = torch.from_numpy(np.array(matrix, np.float32))
    return vocab


def from_torchtext(vocab: Any, *, where: str = "torchtext Vocab") -> ForeignVocab:
    """A Vocab, or the attributes of one -> words by id, counts where there are any, vectors."""
    attributes = vars(vocab)
    words, stoi = attributes.get("itos"), attributes.get("stoi")
    if not isinstance(words, list) or not isinstance(stoi, dict):
        raise InputError(f"{where}: no itos and stoi found, expected a torchtext Vocab")
    for number, word in enumerate(words):
        if stoi.get(word) != number:
            raise InputError(f"{where}: itos has {word!r} at {number}, stoi says {stoi.get(word)}")
    frequencies = attributes.get("freqs") or {}
    vectors = attributes.get("vectors")
    matrix = None if vectors is None else np.asarray(vectors.detach().cpu().float().numpy())
    if matrix is not None and matrix.shape[:1] != (len(words),):
        raise InputError(f"{where}: vectors of shape {matrix.shape} for {len(words)} words")
    return ForeignVocab(
        words=list(words),
        counts=[int(frequencies.get(word, 0)) for word in words] if frequencies else None,
        matrix=matrix,
    )


def write_torchtext(
    path: Path, vocabulary: Vocabulary, *, matrix: npt.NDArray[np.float32] | None = None
) -> None:
    """A vocabulary -> a file as torch.save writes a Vocab."""
    import torch

    buffer = io.BytesIO()
    torch.save(to_torchtext(vocabulary, matrix=matrix), buffer)
    write_atomic(path, buffer.getvalue())


def read_torchtext(path: Path) -> ForeignVocab:
    """A Vocab written by torch.save or pickle.dump -> its words; torchtext itself is not needed, nor run."""
    if not zipfile.is_zipfile(path):
        vocab, _ = load_guarded(path.read_bytes(), known=_VOCAB_CLASSES, where=str(path))
        if not isinstance(vocab, int):
            return from_torchtext(vocab if isinstance(vocab, Stranger) else Stranger(), where=str(path))
        # An int is the magic number at the head of what torch.save wrote before 1.6.
    return from_torchtext(_load_saved(path), where=str(path))


def _load_saved(path: Path) -> Any:
    import torch

    stand_ins = []
    for qualified in _VOCAB_CLASSES:
        module, _, name = qualified.rpartition(".")
        stand_ins.append(type(name, (Stranger,), {"__module__": module}))
    try:
        with torch.serialization.safe_globals([*stand_ins, Counter, defaultdict]):
            vocab = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load reports damage and refused classes in many ways
        reason = next(
            (line for line in str(error).splitlines() if "GLOBAL" in line), str(error).split("\n")[0]
        )
        raise InputError(f"{path}: not a torchtext Vocab that is safe to load ({reason.strip()})") from None
    return vocab if isinstance(vocab, Stranger) else Stranger()


def write_vector_cache(path: Path, *, words: Sequence[str], matrix: npt.NDArray[np.float32]) -> None:
    """Words and vectors -> a file for torchtext's .vector_cache, which its Vectors class loads by name."""
    import torch

    table = torch.from_numpy(np.array(matrix, np.float32))
    buffer = io.BytesIO()
    torch.save((list(words), {word: row for row, word in enumerate(words)}, table, table.shape[1]), buffer)
    write_atomic(path, buffer.getvalue())
