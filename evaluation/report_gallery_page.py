"""Queries and their answers -> HTML: right ones green and ticked, wrong ones red and crossed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .report_gallery import Answered, Gallery


def explained_pairs(pairs: Sequence[tuple[int, int, int]], gallery: Gallery) -> str:
    """(image, its caption, another image's caption) -> two panels each, which the page's script fills."""
    blocks = []
    for image, own, other in pairs:
        panels = "".join(
            f'<div class="panel {_side(right)}" data-explain="{gallery.pair(image, caption)}"></div>'
            for caption, right in ((own, True), (other, False))
        )
        # The panels take the photograph from here, so that it stands in the page once.
        blocks.append(
            f'<article class="pair-card"><img hidden {_photo(gallery, image)}>'
            f'<h3>{escape(gallery.key(image))}</h3><div class="panels">{panels}</div></article>'
        )
    if not blocks:
        return ""
    about = "Each photograph with its own caption and with another image’s. Choose a region to see what it is"
    if any(pair["regionAttention"] is not None for pair in gallery.pairs.values()):
        about += " and which words it reads, or a word to light the regions that it reads"
    about += "."
    return f'<p class="muted">{about}</p>{"".join(blocks)}'


def text_queries(queries: Sequence[Answered], gallery: Gallery) -> str:
    """Captions and the images they found."""
    cards = []
    for query in queries:
        hits = "".join(
            _hit(gallery, image, query.query, f"{rank} {_verdict(right)}", right=right)
            for rank, (image, right) in enumerate(zip(query.answers, query.right, strict=True), start=1)
        )
        cards.append(
            f'<article class="query"><h3>“{escape(gallery.text(query.query))}” {_rank(query)}</h3>'
            f'<div class="hits">{hits}</div></article>'
        )
    return "".join(cards)


def image_queries(queries: Sequence[Answered], gallery: Gallery) -> str:
    """Images and the captions they found."""
    cards = []
    for query in queries:
        hits = "".join(
            _caption(gallery, query.query, caption, _verdict(right), right=right)
            for caption, right in zip(query.answers, query.right, strict=True)
        )
        cards.append(_beside(gallery, query, f"<ol>{hits}</ol>"))
    return f'<div class="two">{"".join(cards)}</div>'


def failures(texts: Sequence[Answered], pictures: Sequence[Answered], gallery: Gallery) -> str:
    """The worst queries of both directions: what came first, and what should have."""
    cards = []
    for query in texts:
        hits = _hit(gallery, query.answers[0], query.query, "✗ found first", right=False) + _hit(
            gallery, query.best_right, query.query, f"✓ the right one, {query.rank}", right=True
        )
        cards.append(
            f'<article class="query"><h3>“{escape(gallery.text(query.query))}” {_rank(query)}</h3>'
            f'<div class="hits two-hits">{hits}</div></article>'
        )
    for query in pictures:
        answers = _caption(gallery, query.query, query.answers[0], "✗ found first", right=False) + _caption(
            gallery, query.query, query.best_right, f"✓ its best caption, {query.rank}", right=True
        )
        cards.append(_beside(gallery, query, f"<ul>{answers}</ul>"))
    if not cards:
        return ""
    about = '<p class="muted">The queries whose right answer came last.</p>'
    return f'{about}<div class="two">{"".join(cards)}</div>'


def _hit(gallery: Gallery, image: int, caption: int, label: str, *, right: bool) -> str:
    return (
        f'<button class="hit {_side(right)}" data-pair="{gallery.pair(image, caption)}">'
        f'<img {_photo(gallery, image)}><span class="mark {_side(right)}">{escape(label)}</span></button>'
    )


def _caption(gallery: Gallery, image: int, caption: int, label: str, *, right: bool) -> str:
    return (
        f'<li><button class="caption {_side(right)}" data-pair="{gallery.pair(image, caption)}">'
        f'<span class="mark {_side(right)}">{escape(label)}</span>'
        f"<span>{escape(gallery.text(caption))}</span></button></li>"
    )


def _beside(gallery: Gallery, query: Answered, answers: str) -> str:
    return (
        f'<article class="query side"><figure><img {_photo(gallery, query.query)}>'
        f"<figcaption>{escape(gallery.key(query.query))} {_rank(query)}</figcaption></figure>"
        f"{answers}</article>"
    )


def _photo(gallery: Gallery, image: int) -> str:
    alt = escape(gallery.key(image), quote=True)
    return f'src="{gallery.thumbnail(image)}" alt="{alt}" data-image="{image}" loading="lazy"'


def _side(right: bool) -> str:
    return "right" if right else "wrong"


def _verdict(right: bool) -> str:
    return "✓ right" if right else "✗ wrong"


def _rank(query: Answered) -> str:
    style = "right" if query.rank == 1 else "near" if query.rank <= 10 else "wrong"
    return f'<span class="rank {style}">right answer: {query.rank}</span>'
