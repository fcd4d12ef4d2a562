"""Encodings as rows; words that never read padding; embeddings and their uses; sizes that do not fit."""

from __future__ import annotations

import pytest
import torch

from camp.errors import InputError, MismatchError
from camp.models.encoded import Encoded, cat, word_mask
from camp.models.encoders import RegionEncoder, WordEmbedding, WordEncoder, last_state


def encoded(n: int, lengths: list[int], *, longest: int) -> Encoded:
    torch.manual_seed(n)
    return Encoded(
        local=torch.randn(n, longest, 3),
        mask=word_mask(torch.tensor(lengths), longest),
        glob=torch.randn(n, 2),
        cached={"weight": torch.randn(n, longest), "query": torch.randn(n, longest, 4)},
        grams={"plain": torch.randn(n, longest, longest)},
        pooled={"scale": torch.randn(n)},
    )


def test_rows_can_be_picked_trimmed_padded_and_joined() -> None:
    a, b = encoded(2, [3, 1], longest=4), encoded(3, [2, 5, 1], longest=5)
    joined = cat([a, b])
    assert len(joined) == 5
    assert joined.lengths.tolist() == [3, 1, 2, 5, 1]
    back = joined.index(torch.tensor([1, 0]))
    for name, tensor in (
        ("local", back.local),
        ("query", back.cached["query"]),
        ("weight", back.cached["weight"]),
    ):
        original = a.local if name == "local" else a.cached[name]
        assert torch.equal(tensor[:, :4], original[[1, 0]])
        assert float(tensor[:, 4:].abs().sum()) == 0
    assert torch.equal(back.grams["plain"][:, :4, :4], a.grams["plain"][[1, 0]])
    trimmed = back.trim()
    assert trimmed.mask.shape == (2, 3)
    assert trimmed.grams["plain"].shape == (2, 3, 3)
    assert trimmed.pooled["scale"].shape == (2,)
    assert joined.index(slice(2, 3)).local.data_ptr() == joined.local[2].data_ptr()
    assert joined.to(dtype=torch.float64).mask.dtype == torch.bool
    assert joined.to(dtype=torch.float64).grams["plain"].dtype == torch.float64


def test_the_backward_direction_never_reads_padding() -> None:
    torch.manual_seed(0)
    encoder = WordEncoder(vocab_size=9, word_dim=4, dim=6).double()
    ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    out = encoder(ids, torch.tensor([3, 5]))
    alone = encoder(ids[:1, :3], torch.tensor([3]))
    torch.testing.assert_close(out[:1, :3], alone)
    states, _ = encoder.rnn(encoder.embed(ids[:1, :3]))
    torch.testing.assert_close(alone, (states[..., :6] + states[..., 6:]) / 2)  # Eq. 17
    assert out.shape == (2, 5, 6)
    assert encoder(ids[:1], torch.tensor([3])).shape == (1, 3, 6)


def test_the_last_state_is_at_each_captions_end() -> None:
    hidden = torch.arange(12.0).view(2, 3, 2)
    assert last_state(hidden, torch.tensor([1, 3])).tolist() == [[0.0, 1.0], [10.0, 11.0]]


def test_embeddings_start_and_learn_as_asked() -> None:
    vectors = torch.randn(7, 4)
    uses = {
        use: WordEmbedding(vocab_size=7, word_dim=4, vectors=None if use == "plain" else vectors, use=name)
        for use, name in {
            "plain": "trained",
            "trained": "trained",
            "given": "given",
            "both": "both",
            "both-trained": "both-trained",
        }.items()
    }
    assert {use: embedding.out_dim for use, embedding in uses.items()} == {
        "plain": 4,
        "trained": 4,
        "given": 4,
        "both": 8,
        "both-trained": 8,
    }
    learned = {use: [p.requires_grad for p in embedding.parameters()] for use, embedding in uses.items()}
    assert learned == {
        "plain": [True],
        "trained": [True],
        "given": [False],
        "both": [True, False],
        "both-trained": [True, True],
    }
    ids = torch.tensor([[3, 1]])
    assert torch.equal(uses["trained"](ids), vectors[ids])
    assert torch.equal(uses["both"](ids)[..., 4:], vectors[ids])
    assert float(uses["plain"](torch.arange(7)).detach().abs().max()) <= 0.1


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(MismatchError, match="regions of 5 dimensions, the model expects 6"):
        RegionEncoder(region_dim=6, dim=2)(torch.zeros(1, 3, 5))
    with pytest.raises(InputError, match=r"captions without words in rows \[1\]"):
        WordEncoder(vocab_size=3, word_dim=2, dim=2)(
            torch.zeros(2, 2, dtype=torch.int64), torch.tensor([1, 0])
        )
    with pytest.raises(MismatchError, match=r"word vectors of shape \(3, 4\).*expect \(7, 4\)"):
        WordEmbedding(vocab_size=7, word_dim=4, vectors=torch.zeros(3, 4))
    with pytest.raises(InputError, match="needs word vectors"):
        WordEmbedding(vocab_size=7, word_dim=4, use="both")
    with pytest.raises(InputError, match="embedding use 'frozen', expected one of trained"):
        WordEmbedding(vocab_size=7, word_dim=4, use="frozen")


def test_initial_region_weights_are_xavier() -> None:
    fc = RegionEncoder(region_dim=60, dim=40).fc
    bound = (6 / 100) ** 0.5
    assert 0.9 * bound < float(fc.weight.detach().abs().max()) <= bound
    assert float(fc.bias.detach().abs().max()) == 0
