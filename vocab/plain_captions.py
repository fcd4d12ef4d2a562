"""Plain lower-case captions -> exactly NLTK's tokens, without NLTK's thirty regular expressions per caption.

Nearly all real captions are words, digits, hyphens, commas, a possessive, perhaps a quotation, and one full
stop at the end. `is_plain` accepts those, and for them NLTK's rules (3.9 and 3.10) come down to a few
replacements. Why, rule by rule:

- Sentence splitter: it breaks only at `.`, `?` or `!` followed by punctuation or by white space and another
  word. A plain caption has at most one of them, followed by white space alone: it is one sentence, and the
  tokens with and without the splitter's data are the same.
- `. ? !` at the end become tokens. `; @ # $ % &` always do.
- `,` and `:` become tokens unless a digit follows (`1,000`, `10:14`). That rule swallows the next character,
  so `,,` or `,:` would go wrong: neither may follow, nor a closing mark, nor a quote.
- `"` is an opening quote (two backticks) at the start or after a space, else a closing one (two
  apostrophes). At the very start NLTK adds a space before the next rule looks, so `""` is not plain.
- `'s` splits from its word when a space, a comma, a colon, a semicolon or the end mark follows; after a
  space it already stands alone. Any other apostrophe is not plain.
- `--` and the words NLTK takes apart (cannot, gonna, ...) are not plain; `/` and a single `-` touch no rule.
- Brackets, dashes, foreign quotes, ellipses, and every character outside ASCII are not plain.

Everything that is not plain goes to NLTK itself. tests/vocab/test_plain_captions.py compares the two over all
short strings, generated captions and real ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

# No plain caption contains these two, so among plain tokens they cannot be mistaken.
END = "\x01"  # closes a caption in a flat list of tokens
HOLE = "\x00"  # stands for a caption that is not plain

Element = TypeVar("Element")

_PLAIN = re.compile(
    r"""
    [a-z0-9\ /;@\#$%&]*
    (?:
        (?: -(?!-)                                   # but not a dash of two hyphens
          | [,:](?![0-9,:.!?"])
          | "(?!")
          | (?<![^a-z0-9\ ]) 's (?![^\ ,:;.!?])      # the word's possessive
        )
        [a-z0-9\ /;@\#$%&]*
    )*
    (?:[.!?\t\n\r\f\v]\s*)?   # never begins with a space, so that a run of spaces has one reading alone
    """,
    re.ASCII | re.VERBOSE,
)
_CONTRACTIONS = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")
# In this order: an opening quote is recognised by the space before it.
_REPLACEMENTS = (
    (' "', " `` "),
    ('"', " '' "),
    ("'s", " 's"),
    *((mark, f" {mark} ") for mark in ",.:;!?@#$%&"),
)


def is_plain(caption: str) -> bool:
    """Whether a lower-case caption is one whose tokens `split_plain` gives."""
    return _PLAIN.fullmatch(caption) is not None and not any(word in caption for word in _CONTRACTIONS)


def split_plain(captions: Iterable[str]) -> list[str]:
    """Plain captions -> their tokens in one flat list, an END after each caption."""
    text = f" {f' {END} '.join([*captions, ''])}"
    for found, replacement in _REPLACEMENTS:
        text = text.replace(found, replacement)
    return text.split()


def sift(captions: Sequence[str]) -> tuple[list[str], list[int]]:
    """Lower-case captions -> the same with a HOLE where one is not plain, and the holes' positions.

    `split_plain` gives one token for a hole, which `fill` replaces.
    """
    match = _PLAIN.fullmatch
    sifted = [caption if match(caption) else HOLE for caption in captions]
    text = "\n".join(sifted)
    if any(word in text for word in _CONTRACTIONS):  # rare: look for them one by one only then
        sifted = [caption if is_plain(caption) else HOLE for caption in sifted]
    return sifted, [position for position, caption in enumerate(sifted) if caption == HOLE]


def fill(
    elements: list[Element], *, hole: Element, replacements: Iterable[Sequence[Element]]
) -> list[Element]:
    """A flat list with holes, and what belongs into each, in order -> the whole flat list."""
    whole: list[Element] = []
    start = 0
    for replacement in replacements:
        stop = elements.index(hole, start)
        whole += elements[start:stop]
        whole += replacement
        start = stop + 1
    whole += elements[start:]
    return whole
