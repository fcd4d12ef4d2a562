"""A data set and a vocabulary -> token ids of every caption, one memory-mapped Arrow file per split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from ..errors import InputError, MismatchError, VerificationError
from ..files import atomic_writer, canonical_json, checksum_bytes
from ..manifests.dataset import Dataset
from ..progress import ProgressFactory, no_progress
from ..schema import TOKENS_VERSION
from ..vocab.counting import table_chunks
from ..vocab.encoding import EncodedCaptions, encode_captions, join_encoded
from ..vocab.shelf import open_vocabulary
from ..vocab.tokenizer import recorded_tokenizer
from ..vocab.vocabulary import Vocabulary

TOKENS_SCHEMA = pa.schema(
    [
        pa.field("caption_id", pa.int64(), nullable=False),
        pa.field("image_id", pa.int64(), nullable=False),
        # 64-bit offsets: a split is one batch, so that offsets and ids are two arrays however large it is.
        pa.field("ids", pa.large_list(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
_METADATA_KEY = b"camp.tokens"


@dataclass(frozen=True)
class TokenMetadata:
    """What a token file says of itself. Counts are of words, without start and end."""

    schema_version: int
    split: str
    dataset_fingerprint: str
    vocab: str
    vocab_fingerprint: str
    tokenizer: dict[str, Any]
    max_words: int | None
    captions: int
    words: int
    unknown: int
    longest: int
    long_captions: int  # of more than 50 words
    empty: int
    truncated: int  # cut to max_words
    checksum: str

    @property
    def unknown_rate(self) -> float:
        """Share of out-of-vocabulary words."""
        return self.unknown / self.words if self.words else 0.0


@dataclass(frozen=True)
class SplitTokens:
    """The captions of a split in their order, encoded."""

    caption_ids: npt.NDArray[np.int64]  # (captions,)
    image_ids: npt.NDArray[np.int64]  # (captions,)
    encoded: EncodedCaptions


def join_tokens(parts: Sequence[SplitTokens]) -> SplitTokens:
    """Captions of several parts, one after another."""
    nothing = np.empty(0, np.int64)
    return SplitTokens(
        np.concatenate([nothing, *(part.caption_ids for part in parts)]),
        np.concatenate([nothing, *(part.image_ids for part in parts)]),
        join_encoded(part.encoded for part in parts),
    )


Encode = Callable[[Sequence[str], str, int | None], Iterator[tuple[str, SplitTokens]]]
"""(splits, vocabulary's name, max_words) -> each split with its tokens."""


def tokenize_dataset(
    dataset: Dataset,
    *,
    vocab: str | None = None,
    max_words: int | None = None,
    workers: int | None = 1,
    progress: ProgressFactory = no_progress,
    encode: Encode | None = None,
) -> dict[str, tuple[TokenMetadata, bool]]:
    """Write the tokens of every split -> what each file holds, and whether it was written now.

    A file whose vocabulary, data set and limit are the same is left as it is. max_words cuts captions to
    their first words (start and end stay); how many were cut is counted. `encode` is who does the work, by
    default this machine's cores; caption_job.encode_on gives it to an executor.
    """
    name, vocabulary = open_vocabulary(dataset, vocab)
    result: dict[str, tuple[TokenMetadata, bool]] = {}
    wanted = {
        split: {
            "schema_version": TOKENS_VERSION,
            "split": split,
            "dataset_fingerprint": dataset.fingerprint,
            "vocab": name,
            "vocab_fingerprint": vocabulary.fingerprint,
            "max_words": max_words,
        }
        for split in dataset.splits
    }
    for split in dataset.splits:
        present = _read_if_current(tokens_file(dataset, name, split), wanted[split])
        if present is not None:
            result[split] = (present, False)
    stale = [split for split in dataset.splits if split not in result]
    encode = encode or _encode_here(dataset, workers=workers, progress=progress)
    for split, tokens in encode(stale, name, max_words) if stale else ():
        path = tokens_file(dataset, name, split)
        result[split] = (_write_split(path, tokens, vocabulary, wanted=wanted[split]), True)
    return {split: result[split] for split in dataset.splits}


def tokens_file(dataset: Dataset, vocab: str, split: str) -> Path:
    return dataset.tokens_folder(vocab) / f"{split}.arrow"


def _read_if_current(path: Path, wanted: dict[str, Any]) -> TokenMetadata | None:
    try:
        metadata = asdict(TokenReader(path).metadata)
    except (InputError, VerificationError, MismatchError):
        return None
    return TokenMetadata(**metadata) if wanted.items() <= metadata.items() else None


def _encode_here(dataset: Dataset, *, workers: int | None, progress: ProgressFactory) -> Encode:
    def encode(splits: Sequence[str], vocab: str, max_words: int | None) -> Iterator[tuple[str, SplitTokens]]:
        _, vocabulary = open_vocabulary(dataset, vocab)
        for split in splits:
            captions = dataset.select_captions([split])
            chunks = []
            with progress(f"tokenizing {split}", captions.num_rows, "captions") as bar:
                for chunk in encode_captions(
                    table_chunks(captions), vocabulary=vocabulary, max_words=max_words, workers=workers
                ):
                    chunks.append(chunk)
                    bar.advance(len(chunk.lengths))
            ids = captions["caption_id"].to_numpy(), captions["image_id"].to_numpy()
            yield split, SplitTokens(*ids, join_encoded(chunks))

    return encode


def _write_split(
    path: Path, tokens: SplitTokens, vocabulary: Vocabulary, *, wanted: dict[str, Any]
) -> TokenMetadata:
    encoded, caption_ids, image_ids = tokens.encoded, tokens.caption_ids, tokens.image_ids
    offsets = np.concatenate([[0], np.cumsum(encoded.lengths, dtype=np.int64)])  # (captions + 1,)
    metadata = TokenMetadata(
        **wanted,
        tokenizer=vocabulary.tokenizer.as_run_here().record(),
        captions=len(caption_ids),
        words=encoded.words,
        unknown=encoded.unknown,
        longest=encoded.longest,
        long_captions=encoded.long_captions,
        empty=encoded.empty,
        truncated=encoded.truncated,
        checksum=_checksum(caption_ids, image_ids, offsets, encoded.values),
    )
    schema = TOKENS_SCHEMA.with_metadata({_METADATA_KEY: canonical_json(asdict(metadata))})
    ids = pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(encoded.values), type=TOKENS_SCHEMA.field("ids").type
    )
    batch = pa.record_batch([pa.array(caption_ids), pa.array(image_ids), ids], schema=schema)
    with atomic_writer(path) as stream, pa.ipc.new_file(stream, schema) as writer:
        writer.write_batch(batch)
    return metadata


def _checksum(*arrays: npt.NDArray[Any]) -> str:
    return checksum_bytes(
        b"".join(checksum_bytes(np.ascontiguousarray(array).data).encode() for array in arrays)
    )


class TokenReader:
    """A token file -> NumPy views of it: nothing is copied, and processes share its pages.

    values[offsets[row]:offsets[row + 1]] are the ids of one caption, start and end included.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                schema = reader.schema
                batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        except FileNotFoundError:
            raise InputError(f"{path}: no tokens yet; run 'camp-data tokenize'") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise VerificationError(
                f"{path}: damaged ({error}); delete it and run 'camp-data tokenize'"
            ) from None
        self.metadata = _parse_metadata(schema, path)
        if len(batches) != 1 or not schema.equals(TOKENS_SCHEMA):
            raise VerificationError(f"{path}: not a token file; delete it and run 'camp-data tokenize'")
        caption_ids, image_ids, ids = batches[0].columns
        self.caption_ids: npt.NDArray[np.int64] = caption_ids.to_numpy()  # (captions,)
        self.image_ids: npt.NDArray[np.int64] = image_ids.to_numpy()  # (captions,)
        self.offsets: npt.NDArray[np.int64] = ids.offsets.to_numpy()  # (captions + 1,)
        self.values: npt.NDArray[np.int32] = ids.values.to_numpy()  # (ids,)

    def __len__(self) -> int:
        return len(self.caption_ids)

    def __getitem__(self, row: int) -> npt.NDArray[np.int32]:
        """The ids of one caption."""
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Ids per caption, start and end included. (captions,)"""
        return np.diff(self.offsets)

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        return np.argsort(self.caption_ids, kind="stable")

    def rows(self, caption_ids: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Caption ids -> their rows in this file."""
        wanted = np.asarray(caption_ids, np.int64)
        position = np.searchsorted(self.caption_ids, wanted, sorter=self._order)
        rows = self._order[np.minimum(position, len(self) - 1)] if len(self) else np.empty(0, np.int64)
        absent = wanted[self.caption_ids[rows] != wanted] if len(self) else wanted
        if len(absent):
            raise InputError(f"{self.path}: no caption {absent[0]} in split {self.metadata.split}")
        return rows

    def verify(self) -> None:
        """Read everything and compare with the checksum."""
        found = _checksum(self.caption_ids, self.image_ids, self.offsets, self.values)
        if found != self.metadata.checksum:
            raise VerificationError(
                f"{self.path}: checksum {found}, expected {self.metadata.checksum}; "
                "delete it and run 'camp-data tokenize'"
            )


def _parse_metadata(schema: pa.Schema, path: Path) -> TokenMetadata:
    try:
        document = json.loads((schema.metadata or {})[_METADATA_KEY])
        version = document["schema_version"]
    except (KeyError, TypeError, ValueError):
        raise VerificationError(f"{path}: not a token file; delete it and run 'camp-data tokenize'") from None
    if version != TOKENS_VERSION:
        raise MismatchError(
            f"{path}: schema version {version}, expected {TOKENS_VERSION}; run 'camp-data tokenize'"
        )
    if document.keys() != {entry.name for entry in fields(TokenMetadata)}:
        raise VerificationError(f"{path}: incomplete metadata; delete it and run 'camp-data tokenize'")
    return TokenMetadata(**document)


def open_tokens(
    dataset: Dataset, split: str, *, vocab: str | None = None, vocabulary: Vocabulary | None = None
) -> TokenReader:
    """The tokens of one split, refused where they do not belong to the data set or the vocabulary.

    `vocabulary` is the one a model was made with; by default it is the data set's own.
    """
    dataset.check_splits([split])
    name, own = open_vocabulary(dataset, vocab)
    reader = TokenReader(tokens_file(dataset, name, split))
    check_compatible(own if vocabulary is None else vocabulary, reader.metadata, where=str(reader.path))
    if reader.metadata.dataset_fingerprint != dataset.fingerprint:
        raise MismatchError(
            f"{reader.path}: made for data set {reader.metadata.dataset_fingerprint}, this one is "
            f"{dataset.fingerprint}; run 'camp-data tokenize {dataset.root} --vocab {name}'"
        )
    return reader


def check_compatible(vocabulary: Vocabulary, tokens: TokenMetadata, *, where: str = "tokens") -> None:
    """Refuse tokens that another tokenizer or other words made: their ids would mean something else."""
    made_by = recorded_tokenizer(tokens.tokenizer, where=where).identity
    expected = vocabulary.tokenizer.identity
    if made_by != expected:
        found, wanted = (_name_tokenizer(identity) for identity in (made_by, expected))
        raise MismatchError(
            f"{where}: captions were tokenized by {found}, the vocabulary needs {wanted}; "
            f"build a vocabulary with that tokenizer and run 'camp-data tokenize --vocab {tokens.vocab}'"
        )
    if tokens.vocab_fingerprint != vocabulary.fingerprint:
        raise MismatchError(
            f"{where}: made with vocabulary {tokens.vocab_fingerprint}, expected {vocabulary.fingerprint}; "
            f"run 'camp-data tokenize --vocab {tokens.vocab}'"
        )


def _name_tokenizer(identity: dict[str, Any]) -> str:
    if identity["name"] == "nltk":
        return f"nltk (punkt_tab {identity['punkt']})"
    return str(identity["name"])
