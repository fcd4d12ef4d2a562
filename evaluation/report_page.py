"""A report's facts -> HTML. Style and script stand beside this file and go into the page whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .published import PublishedTable, comparable_tables, published_tables
from .recall import CUTOFFS, DIRECTIONS
from .report_gallery_page import explained_pairs, failures, image_queries, text_queries
from .report_plots import Series, bar_chart, line_chart

if TYPE_CHECKING:
    from .report import ReportFacts

_BINS = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 200), (201, 1_000_000_000))


def render_page(facts: ReportFacts) -> str:
    """The whole page."""
    sections = [
        ("results", "Results", _results(facts)),
        ("curves", "Training", _curves(facts)),
        ("ranks", "Ranks", _ranks(facts)),
        ("rerank", "Reranking", _rerank(facts)),
        ("why", "What the model looks at", explained_pairs(facts.explained, facts.gallery)),
        ("text-to-image", "Text → image", text_queries(facts.texts, facts.gallery)),
        ("image-to-text", "Image → text", image_queries(facts.pictures, facts.gallery)),
        ("failures", "Failure cases", failures(facts.failed_texts, facts.failed_pictures, facts.gallery)),
        ("cards", "Run and data", _cards(facts)),
    ]
    shown = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in shown)
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>' for name, title, content in shown
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in facts.gallery.notes[:20])
    missing = f'<ul class="notes">{notes}</ul>' if notes else ""
    # "</" would end the script element early, whatever stands inside a caption.
    pairs = json.dumps(facts.gallery.pairs, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    about = f"{facts.images:,} images and {facts.captions:,} captions of split “{escape(facts.split)}”"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(facts.title)} · camp report</title>
<style>{_read("report.css")}</style></head>
<body>
<header><p class="eyebrow">camp report</p><h1>{escape(facts.title)}</h1><p class="lead">{about}</p>
<nav aria-label="Sections">{links}</nav></header>
<main>{body}{missing}</main>
<dialog id="explanation" aria-labelledby="explanation-title"><form method="dialog">
<h3 id="explanation-title">Explanation</h3><button class="close" aria-label="Close">✕</button></form>
<div class="explanation"></div></dialog>
<script id="pairs" type="application/json">{pairs}</script>
<script>{_read("report.js")}</script>
</body></html>
"""


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _results(facts: ReportFacts) -> str:
    metrics = facts.metrics
    tiles = [
        ("Caption R@1", metrics["caption_retrieval"]["r@1"], "%"),
        ("Image R@1", metrics["image_retrieval"]["r@1"], "%"),
        ("rsum", metrics["rsum"], ""),
        ("Median rank", metrics["caption_retrieval"]["medr"], f" / {metrics['image_retrieval']['medr']:.0f}"),
    ]
    tile_html = "".join(
        f'<div class="tile"><span>{name}</span><b>{value:.{0 if name == "Median rank" else 1}f}<small>{unit}'
        "</small></b></div>"
        for name, value, unit in tiles
    )
    if facts.gates:
        gates = " · ".join(f"{value:.3g} on {name} pairs" for name, value in facts.gates.items())
        gate_line = (
            f'<p class="muted">Mean gate: {gates} (the paper: 0.971 on positive, 2.7e-9 on negative).</p>'
        )
    else:
        gate_line = ""
    tables = comparable_tables(facts.dataset, split=facts.split, images=facts.images, folds=metrics["folds"])
    own = _own_row(facts)
    rows = "".join(_published_rows(table) for table in tables)
    folds = f" Mean of {metrics['folds']} folds." if metrics["folds"] > 1 else ""
    caption = f"Recall in percent; ties count against the model.{folds} Small: 95% intervals, by image."
    table = _recall_table(own + rows, caption=caption)
    if tables:
        return f'<div class="tiles">{tile_html}</div>{gate_line}{table}{_orientation([])}'
    return f'<div class="tiles">{tile_html}</div>{gate_line}{table}{_orientation(published_tables())}'


def _own_row(facts: ReportFacts) -> str:
    cells = []
    for direction in DIRECTIONS:
        for cutoff in CUTOFFS:
            value = facts.metrics[direction][f"r@{cutoff}"]
            low, high = facts.metrics["ci"][direction][f"r@{cutoff}"]
            cells.append(f"<td>{value:.1f}<small>{low:.1f}–{high:.1f}</small></td>")
    low, high = facts.metrics["ci"]["rsum"]
    cells.append(f"<td>{facts.metrics['rsum']:.1f}<small>{low:.0f}–{high:.0f}</small></td>")
    return f'<tr class="own"><th scope="row">this run</th>{"".join(cells)}<td></td></tr>'


def _published_rows(table: PublishedTable) -> str:
    source = escape(table.source + (f". {table.note}" if table.note else ""), quote=True)
    short = escape(f"{table.paper.split(',')[0]} {table.table.lower()}")
    return "".join(
        f'<tr><th scope="row">{escape(row.method)}</th>{_cells(row.values)}'
        f'<td class="source" title="{source}">{short}</td></tr>'
        for row in table.rows
    )


def _cells(values: Iterable[float | None], *, digits: int = 1) -> str:
    return "".join("<td>–</td>" if value is None else f"<td>{value:.{digits}f}</td>" for value in values)


def _recall_table(rows: str, *, caption: str) -> str:
    cutoffs = '<th scope="col">R@1</th><th scope="col">R@5</th><th scope="col">R@10</th>'
    return (
        f'<div class="scroll"><table class="recall"><caption>{escape(caption)}</caption><thead>'
        '<tr><td></td><th colspan="3" scope="colgroup">Caption retrieval</th>'
        '<th colspan="3" scope="colgroup">Image retrieval</th><td></td><td></td></tr>'
        f'<tr><th scope="col">Method</th>{cutoffs}{cutoffs}<th scope="col">rsum</th>'
        f'<th scope="col" class="source">Source</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _orientation(tables: Sequence[PublishedTable]) -> str:
    """Published numbers that this run must not be compared with, folded away and labelled so."""
    if not tables:
        return ""
    parts = []
    for table in tables:
        where = f"{table.dataset} {table.protocol}, {table.split} split"
        note = f'<p class="muted">{escape(table.note)}</p>' if table.note else ""
        heading = f"<h4>{escape(table.source)} <small>{escape(where)}</small></h4>"
        if table.kind == "recall":
            content = _recall_table(_published_rows(table), caption=table.kind)
        else:
            head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
            rows = "".join(
                f'<tr><th scope="row">{escape(row.method)}</th>{_cells(row.values, digits=3)}</tr>'
                for row in table.rows
            )
            content = (
                f'<div class="scroll"><table class="recall"><caption>{escape(table.kind)}</caption><thead>'
                f'<tr><th scope="col">Method</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
            )
        parts.append(heading + note + content)
    return (
        '<details class="orientation">'
        "<summary>For orientation: published results on other data sets</summary>"
        '<p class="muted">None of these was measured on this test set; the numbers are not comparable with '
        f"this run’s.</p>{''.join(parts)}</details>"
    )


def _curves(facts: ReportFacts) -> str:
    steps = [line for line in facts.journal if line["kind"] == "train"]
    checks = [line for line in facts.journal if line["kind"] == "validation"]
    loss = line_chart(
        "Training loss",
        [Series("loss", [(line["step"], line["loss"]) for line in steps], 1)],
        x_label="step",
        y_label="loss",
    )
    recall = line_chart(
        "Validation recall",
        [
            Series(
                f"{direction.split('_')[0]} R@{cutoff}",
                [(line["step"], line[direction][f"r@{cutoff}"]) for line in checks],
                style,
                dashed=direction == "image_retrieval",
            )
            for direction in DIRECTIONS
            for style, cutoff in enumerate(CUTOFFS, start=1)
        ],
        x_label="step",
        y_label="recall, %",
    )
    return f'<div class="charts">{loss}{recall}</div>' if loss or recall else ""


def _histogram(ranks: npt.NDArray[np.int64]) -> list[float]:
    total = max(1, len(ranks))
    return [100 * float(((ranks >= low) & (ranks <= high)).sum()) / total for low, high in _BINS]


def _ranks(facts: ReportFacts) -> str:
    labels = [f"{low}" if low == high else f"{low}–{high}" for low, high in _BINS[:-1]] + [">200"]
    both = bar_chart(
        "Rank of the right answer",
        labels,
        {
            "caption retrieval": _histogram(facts.ranks.captions[facts.ranks.captions > 0]),
            "image retrieval": _histogram(facts.ranks.images),
        },
        x_label="rank",
        y_label="queries, %",
    )
    cross = bar_chart(
        "Cross-retrieval rank: the worse of both directions",
        labels,
        {"pairs": _histogram(np.asarray(facts.cross_ranks))},
        x_label="rank",
        y_label="matching pairs, %",
    )
    return f'<div class="charts">{both}{cross}</div>'


def _rerank(facts: ReportFacts) -> str:
    if not facts.rerank:
        return ""
    chart = line_chart(
        "Recall against time, for several shares re-scored",
        [
            Series(
                "rsum",
                [(row["seconds"], row["rsum"]) for row in facts.rerank],
                1,
                labels=[row["top"] for row in facts.rerank],
            )
        ],
        x_label="seconds for the whole test",
        y_label="rsum",
        log_x=True,
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(row["top"])}</th>'
        + _cells([row[direction][f"r@{cutoff}"] for direction in DIRECTIONS for cutoff in CUTOFFS])
        + f"<td>{row['rsum']:.1f}</td><td>{100 * row['pairs_share']:.1f}%</td><td>{row['seconds']:.2f} s</td>"
        + ("<td>–</td>" if row["query_seconds"] is None else f"<td>{1000 * row['query_seconds']:.1f} ms</td>")
        + "</tr>"
        for row in facts.rerank
    )
    cutoffs = '<th scope="col">R@1</th><th scope="col">R@5</th><th scope="col">R@10</th>'
    head = "".join(f'<th scope="col">{name}</th>' for name in ("rsum", "pairs", "whole test", "one query"))
    table = (
        '<div class="scroll"><table class="recall">'
        f"<caption>{escape(facts.candidates)} finds the candidates, this run scores the top again; "
        "“all” is this run alone, encoding included</caption><thead>"
        '<tr><td></td><th colspan="3" scope="colgroup">Caption retrieval</th>'
        '<th colspan="3" scope="colgroup">Image retrieval</th><td colspan="4"></td></tr>'
        f'<tr><th scope="col">Top</th>{cutoffs}{cutoffs}{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    note = (
        '<p class="muted">CAMP’s supplementary, Flickr30K on 8 GTX 1080: base model 3.4 s, CAMP 263 s, '
        "top 10% re-scored 13.2 s.</p>"
    )
    return f'<div class="charts">{chart}</div>{table}{note}'


def _cards(facts: ReportFacts) -> str:
    return (
        f'<div class="two"><article class="card"><h3>Run</h3>{_facts(facts.run)}</article>'
        f'<article class="card"><h3>Data</h3>{_facts(facts.data)}</article></div>'
    )


def _facts(card: Mapping[str, str]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in card.items())
    return f"<dl>{lines}</dl>"
