"""Round trips with the real torchtext 0.6.0, of Vocab and of vectors, both ways."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.errors import InputError, MissingPackageError
from camp.vocab.interchange import export_vocabulary, import_vocabulary
from camp.vocab.tokenizer import Tokenizer
from camp.vocab.torchtext_bridge import (
    from_torchtext,
    read_torchtext,
    require_torchtext,
    to_torchtext,
    write_vector_cache,
)
from camp.vocab.vectors import load_vectors
from camp.vocab.vocabulary import Specials, Vocabulary

torchtext_vocab: Any = pytest.importorskip("torchtext.vocab", reason="needs the torchtext extra")
PLAIN = Tokenizer("plain", version="1")
MATRIX = np.arange(18, dtype=np.float32).reshape(6, 3)


@pytest.fixture
def vocabulary(make_vocabulary: Callable[..., Vocabulary]) -> Vocabulary:
    return make_vocabulary(["dog", "cat"], counts=[5, 2])


def test_ids_unknown_words_and_counts(vocabulary: Vocabulary) -> None:
    vocab = to_torchtext(vocabulary, matrix=MATRIX)
    assert type(vocab) is torchtext_vocab.Vocab
    assert vocab.itos == list(vocabulary.words)
    assert [vocab[word] for word in ("dog", "cat", "unseen")] == [4, 5, 3]
    assert vocab.stoi["unseen"] == 3
    assert vocab.freqs == Counter(dog=5, cat=2)
    assert torch.equal(vocab.vectors, torch.from_numpy(MATRIX))
    back = from_torchtext(vocab)
    assert back.words == [*vocabulary.words]
    assert back.counts == [0, 0, 0, 0, 5, 2]
    np.testing.assert_array_equal(back.matrix, MATRIX)


def test_ours_is_what_torchtext_would_have_built(vocabulary: Vocabulary) -> None:
    theirs = torchtext_vocab.Vocab(Counter(cat=2, dog=5), specials=["<pad>", "<start>", "<end>", "<unk>"])
    ours = to_torchtext(vocabulary)
    assert (ours.itos, dict(ours.stoi), ours.unk_index) == (theirs.itos, dict(theirs.stoi), theirs.unk_index)
    assert ours == theirs


@pytest.mark.parametrize("with_vectors", [False, True])
def test_a_file_from_us_and_back(tmp_path: Path, vocabulary: Vocabulary, with_vectors: bool) -> None:
    matrix = MATRIX if with_vectors else None
    export_vocabulary(vocabulary, tmp_path / "v.pt", format="torchtext", matrix=matrix)
    theirs = torch.load(tmp_path / "v.pt", weights_only=False)  # as a torchtext user does
    assert theirs["dog"] == 4
    assert theirs["unseen"] == 3
    imported = import_vocabulary(tmp_path / "v.pt", format="torchtext", tokenizer=PLAIN)
    assert imported.vocabulary.words == vocabulary.words
    assert imported.vocabulary.counts == vocabulary.counts
    assert imported.vocabulary.fingerprint == vocabulary.fingerprint
    if with_vectors:
        assert imported.vectors is not None
        np.testing.assert_array_equal(imported.vectors.matrix, MATRIX)
        assert imported.vectors.coverage["types_found"] == 2
    else:
        assert imported.vectors is None


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_from_torchtext(tmp_path: Path, zipped: bool) -> None:
    vocab = torchtext_vocab.Vocab(Counter(dog=5, cat=2))  # <unk>, <pad> first: no start, no end
    vocab.vectors = torch.ones(4, 3)
    torch.save(vocab, tmp_path / "v.pt", _use_new_zipfile_serialization=zipped)
    imported = import_vocabulary(tmp_path / "v.pt", format="torchtext", tokenizer=PLAIN)
    assert imported.vocabulary.words == ("<unk>", "<pad>", "dog", "cat")
    assert imported.vocabulary.specials == Specials(unk=0, pad=1)
    assert imported.vectors is not None
    assert imported.vectors.matrix.shape == (4, 3)


def test_a_pickled_vocab_without_vectors(tmp_path: Path) -> None:
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(torchtext_vocab.Vocab(Counter(dog=5))))
    assert read_torchtext(tmp_path / "v.pkl").words == ["<unk>", "<pad>", "dog"]


def test_other_classes_are_refused(tmp_path: Path) -> None:
    torch.save(Path("x"), tmp_path / "v.pt")
    with pytest.raises(
        InputError, match=r"v.pt: not a torchtext Vocab that is safe to load \(.*GLOBAL.*Path"
    ):
        read_torchtext(tmp_path / "v.pt")
    (tmp_path / "v.pkl").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match="the pickle contains posix.system"):
        read_torchtext(tmp_path / "v.pkl")
    torch.save({"a": 1}, tmp_path / "v.pt")
    with pytest.raises(InputError, match="no itos and stoi found"):
        read_torchtext(tmp_path / "v.pt")


def test_inconsistent_vocab(vocabulary: Vocabulary) -> None:
    vocab = to_torchtext(vocabulary, matrix=MATRIX[:2])
    with pytest.raises(InputError, match=r"vectors of shape \(2, 3\) for 6 words"):
        from_torchtext(vocab)
    vocab.stoi["dog"] = 1
    with pytest.raises(InputError, match="itos has 'dog' at 4, stoi says 1"):
        from_torchtext(vocab)


def test_vectors_to_torchtext_and_back(
    tmp_path: Path, vocabulary: Vocabulary, make_vocabulary: Callable[..., Vocabulary]
) -> None:
    write_vector_cache(tmp_path / "ours.txt.pt", words=vocabulary.words, matrix=MATRIX)
    theirs = torchtext_vocab.Vectors("ours.txt", cache=str(tmp_path))
    assert theirs["cat"].tolist() == [15, 16, 17]
    assert theirs.dim == 3
    ours = load_vectors(tmp_path / "ours.txt.pt", vocabulary=make_vocabulary(["cat"]))
    assert ours.matrix[4].tolist() == [15, 16, 17]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torchtext's own
def test_a_cache_that_torchtext_wrote(tmp_path: Path, vocabulary: Vocabulary) -> None:
    (tmp_path / "tiny.txt").write_text("dog 1 2 3\nbird 4 5 6\n")
    torchtext_vocab.Vectors(str(tmp_path / "tiny.txt"), cache=str(tmp_path / "cache"))
    vectors = load_vectors(tmp_path / "cache" / "tiny.txt.pt", vocabulary=vocabulary)
    assert vectors.matrix[4].tolist() == [1, 2, 3]
    assert vectors.coverage["types_found"] == 1


def test_without_the_package(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'camp-toolkit\[torchtext\]'"):
        require_torchtext()
    with pytest.raises(MissingPackageError, match="torchtext is not installed"):
        to_torchtext(vocabulary)
