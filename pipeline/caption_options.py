"""What is to be done with a data set's captions <-> JSON: what every worker gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

COUNT, ENCODE = "count", "encode"
DEFAULT_UNIT_SIZE = 200_000  # captions; about a second of work


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    """Count the words of some splits, or encode all captions with a vocabulary."""

    kind: ClassVar[str] = "captions"
    task: str  # COUNT or ENCODE
    splits: tuple[str, ...] = ()
    tokenizer: str = "nltk"  # to count with
    vocab: str = ""  # to encode with
    max_words: int | None = None
    threads: int = 1
    device: str = "cpu"

    @property
    def maker(self) -> str:
        """What must be the same on every machine, for messages."""
        return f"the {self.tokenizer} tokenizer" if self.task == COUNT else f"vocabulary {self.vocab!r}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaptionOptions:
        return cls(**{**value, "splits": tuple(value["splits"])})

    def identity(self) -> dict[str, Any]:
        """What decides the output, apart from the captions and the vocabulary's words."""
        return {
            "task": self.task,
            "splits": list(self.splits),
            "tokenizer": self.tokenizer,
            "vocab": self.vocab,
            "max_words": self.max_words,
        }
