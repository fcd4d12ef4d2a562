"""A vocabulary -> the facts people ask about it: size, origin, the head and the tail of its counts."""

from __future__ import annotations

import itertools
from typing import Any

from .vocabulary import Vocabulary

_SHOWN = 10


def summarize_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """A vocabulary -> plain values for printing or JSON."""
    facts: dict[str, Any] = {
        "fingerprint": vocabulary.fingerprint,
        "size": len(vocabulary),
        "specials": {vocabulary.words[number]: number for number in sorted(vocabulary.specials.ids())},
        "tokenizer": vocabulary.tokenizer.record(),
        "source": dict(vocabulary.source),
        "parameters": dict(vocabulary.parameters),
        "statistics": dict(vocabulary.statistics),
    }
    if vocabulary.counts is not None:
        facts.update(_head_and_tail(vocabulary))
    return facts


def _head_and_tail(vocabulary: Vocabulary) -> dict[str, Any]:
    """Zipf's law at a glance: the commonest words, the rarest kept ones, what the first n words cover."""
    assert vocabulary.counts is not None
    special = vocabulary.specials.ids()
    entries = [
        (word, count)
        for number, (word, count) in enumerate(zip(vocabulary.words, vocabulary.counts, strict=True))
        if number not in special
    ]
    entries.sort(key=lambda entry: (-entry[1], entry[0]))
    # What was too rare to be kept still was a token.
    tokens = vocabulary.statistics.get("tokens") or sum(count for _, count in entries)
    running = list(itertools.accumulate(count for _, count in entries))
    ranks = sorted({rank for rank in (10, 100, 1000, 10_000, len(running)) if 0 < rank <= len(running)})
    return {
        "head": [{"word": word, "count": count} for word, count in entries[:_SHOWN]],
        "tail": [{"word": word, "count": count} for word, count in entries[-_SHOWN:]],
        "covered_by_first": {str(rank): running[rank - 1] / tokens for rank in ranks if tokens},
    }
