"""Words <-> ids, and the JSON file that says everything about how they came to be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import CampError, InputError, MismatchError, VerificationError
from ..files import canonical_json, fingerprint, write_atomic
from ..schema import VOCAB_VERSION
from .counting import TokenCounts
from .tokenizer import Tokenizer, recorded_tokenizer, require_runnable

PAD, START, END, UNK = SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")
_ALIASES = {
    "pad": (PAD, "<PAD>", "[PAD]", "<blank>"),
    "start": (START, "<START>", "<s>", "<bos>", "<sos>", "<BOS>", "<SOS>", "[CLS]"),
    "end": (END, "<END>", "</s>", "<eos>", "<EOS>", "[SEP]"),
    "unk": (UNK, "<UNK>", "[UNK]", "<unknown>"),
}


@dataclass(frozen=True)
class Specials:
    """The ids of the four special words; a vocabulary from elsewhere may lack all but unk."""

    unk: int
    pad: int | None = None
    start: int | None = None
    end: int | None = None

    def ids(self) -> set[int]:
        return {value for value in (self.unk, self.pad, self.start, self.end) if value is not None}


def find_specials(words: Sequence[str], *, where: str) -> Specials:
    """Words in any order -> which of them are special, by the names projects use."""
    position = {word: number for number, word in reversed(list(enumerate(words)))}
    found = {
        role: next((position[name] for name in names if name in position), None)
        for role, names in _ALIASES.items()
    }
    unk = found.pop("unk")
    if unk is None:
        raise InputError(
            f"{where}: no word for unknown words found, expected one of {', '.join(_ALIASES['unk'])}"
        )
    return Specials(unk=unk, **found)


@dataclass(frozen=True)
class Vocabulary:
    """Words in the order of their ids, and how they were found."""

    words: tuple[str, ...]
    specials: Specials
    tokenizer: Tokenizer
    counts: tuple[int, ...] | None = None  # per word, 0 for specials; None where the source had none
    source: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """Word -> id."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits; equal ones give every caption the same ids."""
        return fingerprint(
            {"words": self.words, "specials": asdict(self.specials), "tokenizer": self.tokenizer.identity}
        )

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Tokens -> ids, wrapped in start and end where the vocabulary has them."""
        index, unk = self.index, self.specials.unk
        ids = [index.get(token, unk) for token in tokens]
        if self.specials.start is not None:
            ids.insert(0, self.specials.start)
        if self.specials.end is not None:
            ids.append(self.specials.end)
        return ids

    def encode_text(self, text: str) -> list[int]:
        """A caption -> ids, through the vocabulary's own tokenizer."""
        return self.encode(self.runnable_tokenizer.tokenize(text))

    @cached_property
    def runnable_tokenizer(self) -> Tokenizer:
        """The tokenizer, once it is sure that its data is here."""
        require_runnable(self.tokenizer, where="vocabulary")
        return self.tokenizer

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Ids -> words up to the end word; padding and the start word are left out."""
        words = []
        for number in ids:
            if number == self.specials.end:
                break
            if number not in (self.specials.pad, self.specials.start):
                words.append(self.words[number])
        return words

    def to_json(self) -> dict[str, Any]:
        """The vocabulary as its file holds it."""
        return {
            "schema_version": VOCAB_VERSION,
            "fingerprint": self.fingerprint,
            "words": list(self.words),
            "counts": None if self.counts is None else list(self.counts),
            "specials": asdict(self.specials),
            "tokenizer": self.tokenizer.record(),
            "source": dict(self.source),
            "parameters": dict(self.parameters),
            "statistics": dict(self.statistics),
        }

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomic(path, canonical_json(self.to_json()))

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """A vocabulary file -> the vocabulary, checked."""
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{path}: not found; make it with 'camp-data build-vocab'") from None
        except ValueError as error:
            raise VerificationError(f"{path}: not JSON ({error}); build the vocabulary again") from None
        return cls.from_json(document, where=str(path))

    @classmethod
    def from_json(cls, document: Any, *, where: str) -> Vocabulary:
        """What `to_json` gave, also from inside a checkpoint -> the vocabulary, checked."""
        if not isinstance(document, dict) or "schema_version" not in document:
            hint = "make one with 'camp-data build-vocab'"
            if isinstance(document, dict) and "word2idx" in document:
                hint = "SCAN's JSON goes through 'camp-data import-vocab'"
            raise InputError(f"{where}: no schema_version found, expected a camp vocabulary; {hint}")
        if document["schema_version"] != VOCAB_VERSION:
            raise MismatchError(
                f"{where}: schema version {document['schema_version']}, expected {VOCAB_VERSION}; "
                "build the vocabulary again or use the release that wrote it"
            )
        try:
            counts = document["counts"]
            vocabulary = cls(
                words=tuple(document["words"]),
                specials=Specials(**document["specials"]),
                tokenizer=recorded_tokenizer(document["tokenizer"], where=where),
                counts=None if counts is None else tuple(counts),
                source=document["source"],
                parameters=document["parameters"],
                statistics=document["statistics"],
            )
            recorded = document["fingerprint"]
        except (KeyError, TypeError, AttributeError) as error:
            raise VerificationError(f"{where}: incomplete ({error!r}); build the vocabulary again") from None
        check_words(vocabulary.words, where=where)
        if vocabulary.fingerprint != recorded:
            raise VerificationError(
                f"{where}: fingerprint {vocabulary.fingerprint}, the file says {recorded}; "
                "it was changed by hand, build the vocabulary again"
            )
        return vocabulary


def save_over(path: Path, vocabulary: Vocabulary) -> str:
    """Write a vocabulary file unless the same one is there -> what changed, in a word or two."""
    if not path.exists():
        vocabulary.save(path)
        return "new"
    try:
        previous = Vocabulary.load(path)
    except CampError as error:
        raise InputError(
            f"{path}: exists and is not a vocabulary of this release; it is left alone, choose another name "
            f"or delete it ({error})"
        ) from None
    if previous.to_json() == vocabulary.to_json():
        return "unchanged"
    vocabulary.save(path)
    if previous.fingerprint == vocabulary.fingerprint:
        return "same words, counted anew"
    return f"replaced one of {len(previous):,} words"


def check_words(words: Sequence[Any], *, where: str) -> None:
    """Refuse words that are not distinct strings."""
    seen: dict[Any, int] = {}
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise InputError(f"{where}: word {number} is {word!r}, expected a string")
        if not _is_unicode(word):
            raise InputError(f"{where}: word {number} is {word!r}, which cannot be written as UTF-8")
        if word in seen:
            raise InputError(f"{where}: {word!r} is both word {seen[word]} and word {number}")
        seen[word] = number


def _is_unicode(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def vocabulary_from_counts(
    counts: TokenCounts,
    *,
    tokenizer: Tokenizer,
    min_count: int = 4,
    max_size: int | None = None,
    source: Mapping[str, Any],
) -> Vocabulary:
    """Counts -> specials at 0 to 3, then the words by count, then by alphabet.

    max_size limits the words; the specials come on top.
    """
    counter = {word: count for word, count in counts.counter.items() if word not in SPECIAL_WORDS}
    ordered = sorted(counter.items(), key=lambda entry: (-entry[1], entry[0]))
    kept = [entry for entry in ordered if entry[1] >= min_count][:max_size]
    tokens = sum(counter.values())
    kept_tokens = sum(count for _, count in kept)
    return Vocabulary(
        words=(*SPECIAL_WORDS, *(word for word, _ in kept)),
        counts=(0, 0, 0, 0, *(count for _, count in kept)),
        specials=Specials(pad=0, start=1, end=2, unk=3),
        tokenizer=tokenizer,
        source=source,
        parameters={"min_count": min_count, "max_size": max_size},
        statistics={
            "captions": counts.captions,
            "tokens": tokens,
            "types": len(counter),
            "types_once": sum(1 for count in counter.values() if count == 1),
            "dropped_types": len(counter) - len(kept),
            "dropped_tokens": tokens - kept_tokens,
        },
    )
