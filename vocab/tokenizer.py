"""A caption -> its tokens: NLTK's word_tokenize, as published vocabularies use it, or a plain pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CampError, InputError, MismatchError
from .plain_captions import END, HOLE, is_plain, sift, split_plain

TOKENIZERS = ("nltk", "plain")
PUNKT_ADVICE = "'camp-data build-vocab --download' fetches it, or point NLTK_DATA at a folder that has it"

# Letters and digits, joined inside by one apostrophe or hyphen (don't, t-shirt), digits also by . or , (3.5).
_PLAIN_WORD = re.compile(r"[^\W_]+(?:(?:['’\-]|(?<=\d)[.,](?=\d))[^\W_]+)*")
_PLAIN_VERSION = "1"


@dataclass(frozen=True)
class FlatTokens:
    """The tokens of many captions in one list: an END closes each, a HOLE stands for one kept in `odd`.

    Apart, because the odd captions may contain any character, even those that END and HOLE are.
    """

    tokens: list[str]
    odd: list[list[str]]


@dataclass(frozen=True)
class Tokenizer:
    """How captions become tokens; two with the same identity give the same tokens.

    nltk   word_tokenize(text.lower()). `punkt` says whether NLTK's sentence splitter data is used; without
           it a full stop inside a caption stays on its word ('street. the' -> 'street.', 'the').
    plain  lower-case runs of letters and digits; punctuation is dropped.
    """

    name: str
    punkt: bool = False
    version: str = ""  # of NLTK, or of the plain pattern

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for tokens to be comparable. NLTK's version is recorded, not demanded."""
        if self.name == "nltk":
            return {"name": "nltk", "lowercase": True, "punkt": "present" if self.punkt else "absent"}
        return {"name": "plain", "lowercase": True, "pattern": self.version}

    def as_run_here(self) -> Tokenizer:
        """The same with the version of NLTK that runs now, for what is made now."""
        if self.name != "nltk":
            return self
        import nltk

        return replace(self, version=nltk.__version__)

    def record(self) -> dict[str, Any]:
        """The tokenizer as artifacts keep it."""
        return {**self.identity, "version": self.version}

    def tokenize(self, text: str) -> list[str]:
        """One caption -> its tokens."""
        lowered = text.lower()
        if self.name == "plain":
            return _PLAIN_WORD.findall(lowered)
        if is_plain(lowered):
            return split_plain([lowered])[:-1]
        return self._slow()(lowered)

    def flat(self, captions: Sequence[str]) -> FlatTokens:
        """Captions -> all their tokens; many times faster than one caption after another."""
        if self.name == "plain":
            words = _PLAIN_WORD.findall
            return FlatTokens([token for text in captions for token in (*words(text.lower()), END)], [])
        lowered = [text.lower() for text in captions]
        sifted, holes = sift(lowered)
        slow = self._slow() if holes else None
        return FlatTokens(
            split_plain(sifted), [slow(lowered[position]) for position in holes] if slow else []
        )

    def tokenize_many(self, captions: Sequence[str]) -> Iterator[list[str]]:
        """Captions -> the tokens of each, as fast as `flat`."""
        flat = self.flat(captions)
        odd = iter(flat.odd)
        start = 0
        for _ in captions:
            stop = flat.tokens.index(END, start)
            tokens = flat.tokens[start:stop]
            yield next(odd) if tokens == [HOLE] else tokens
            start = stop + 1

    def _slow(self) -> Callable[[str], list[str]]:
        from nltk.tokenize import word_tokenize

        if self.punkt:
            return word_tokenize
        return lambda text: word_tokenize(text, preserve_line=True)


def open_tokenizer(name: str) -> Tokenizer:
    """A name -> the tokenizer, with the sentence splitter's data where NLTK finds it."""
    if name == "plain":
        return Tokenizer(name="plain", version=_PLAIN_VERSION)
    if name != "nltk":
        raise InputError(f"tokenizer {name!r} is unknown; there are {', '.join(TOKENIZERS)}")
    import nltk

    return Tokenizer(name="nltk", punkt=punkt_present(), version=nltk.__version__)


def recorded_tokenizer(record: Mapping[str, Any], *, where: str) -> Tokenizer:
    """What an artifact recorded -> the same tokenizer, whether or not it can run here."""
    name, punkt = record.get("name"), record.get("punkt") == "present"
    tokenizer = Tokenizer(name=str(name), punkt=punkt, version=str(record.get("version", "")))
    if name not in TOKENIZERS or any(record.get(key) != value for key, value in tokenizer.identity.items()):
        raise MismatchError(
            f"{where}: tokenizer {dict(record)} is not one of this release's ({', '.join(TOKENIZERS)}); "
            "build the vocabulary again"
        )
    if name == "plain" and tokenizer.version != _PLAIN_VERSION:
        raise MismatchError(
            f"{where}: version {tokenizer.version} of the plain tokenizer, expected {_PLAIN_VERSION}; "
            "build the vocabulary again"
        )
    return tokenizer


def require_runnable(tokenizer: Tokenizer, *, where: str) -> None:
    """Refuse to imitate a tokenizer whose data is not here: other tokens would be silently wrong."""
    if tokenizer.name == "nltk" and tokenizer.punkt and not punkt_present():
        raise MismatchError(
            f"{where}: made with NLTK's punkt_tab data, which is not found here; {PUNKT_ADVICE}"
        )


def punkt_present() -> bool:
    """Whether NLTK finds the data of its English sentence splitter."""
    from nltk.tokenize import word_tokenize

    try:
        word_tokenize("a")
    except LookupError:
        return False
    return True


def download_punkt() -> None:
    """Fetch punkt_tab through NLTK into its usual folder."""
    import nltk

    if punkt_present():
        return
    if not nltk.download("punkt_tab", quiet=True) or not punkt_present():
        raise CampError(
            "punkt_tab could not be downloaded; check the network, or copy the folder tokenizers/punkt_tab "
            "from another machine and point NLTK_DATA at it"
        )
