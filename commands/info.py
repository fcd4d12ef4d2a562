"""`camp-data info`: a data set -> what it holds, as tables or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import DATASET, debug_option, json_option, print_json

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("dataset", type=DATASET)
@json_option
@debug_option
def command(dataset: Path, as_json: bool) -> None:
    """Show what DATASET holds: splits, findings, features, vocabularies."""
    from ..manifests.dataset import Dataset
    from ..manifests.summary import summarize_manifest
    from ..pipeline.feature_summary import summarize_features
    from ..pipeline.vocab_report import describe_vocabularies

    opened = Dataset.open(dataset)
    facts: dict[str, Any] = {
        **summarize_manifest(opened),
        "features": summarize_features(opened),
        "vocabularies": describe_vocabularies(opened),
    }
    if as_json:
        print_json(facts)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)  # a pipe has no width: do not cut columns
    _print_manifest(facts, console)
    if facts["features"]:
        _print_features(facts["features"], console)
    for vocabulary in facts["vocabularies"]:
        _print_vocabulary(vocabulary, console)


def _print_manifest(facts: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    console.print(f"[bold]{facts['name']}[/bold]  fingerprint {facts['fingerprint']}")
    for generation in facts["generations"]:
        console.print(
            f"  from {generation['source']} ({generation['format']}): "
            f"{generation['images']:,} images, {generation['captions']:,} captions"
        )
    table = Table(title="Splits", title_justify="left")
    table.add_column("split")
    for name in ("images", "captions", "captions per image"):
        table.add_column(name, justify="right")
    for split, counts in facts["splits"].items():
        spread = counts["captions_per_image"]
        per_image = f"{spread['mean']:g}"
        if spread["min"] != spread["max"]:
            per_image += f" ({spread['min']}–{spread['max']})"
        table.add_row(split, f"{counts['images']:,}", f"{counts['captions']:,}", per_image)
    console.print(table)
    if facts["labels"]:
        console.print(f"{len(facts['labels'])} labels: {', '.join(facts['labels'][:8])} …")
    if facts["findings"]:
        table = Table(title="Findings", title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        table.add_column("for instance")
        for kind, finding in facts["findings"].items():
            table.add_row(kind, f"{finding['count']:,}", "\n".join(finding["examples"][:3]))
        console.print(table)


def _print_features(sets: list[dict[str, Any]], console: Console) -> None:
    from rich.table import Table

    table = Table(title="Features", title_justify="left")
    for name in ("name", "shape", "store", "rows", "size", "failures"):
        table.add_column(name)
    for features in sets:
        if not features["finished"]:
            table.add_row(features["name"], f"unfinished, {features['shards']} shards", "", "", "", "")
            continue
        rows = ", ".join(f"{split} {count:,}" for split, count in features["rows"].items())
        reasons = "\n".join(f"{count:,} {reason}" for reason, count in features["failures"].items())
        shape = f"{features['regions']} × {features['dim']} {features['dtype']}"
        store = f"{features['shards']} {features['store']}"
        table.add_row(features["name"], shape, store, rows, f"{features['bytes'] / 1e6:,.1f} MB", reasons)
    console.print(table)


def _print_vocabulary(facts: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    if "error" in facts:
        console.print(f"Vocabulary {facts['name']}: {facts['error']}")
        return
    tokenizer = facts["tokenizer"]["name"]
    console.print(f"Vocabulary [bold]{facts['name']}[/bold]: {facts['size']:,} words, tokenizer {tokenizer}")
    for part, title in (("head", "commonest"), ("tail", "rarest")):
        if part in facts:
            words = ", ".join(f"{entry['word']} {entry['count']:,}" for entry in facts[part])
            console.print(f"  {title}: {words}", soft_wrap=True)
    table = Table()
    table.add_column("split")
    for name in ("captions", "words", "unknown", "longest", "over 50 words", "cut"):
        table.add_column(name, justify="right")
    for split, tokens in facts["splits"].items():
        if "error" in tokens:
            table.add_row(split, tokens["error"])
            continue
        counts = [tokens[name] for name in ("longest", "over_50_words", "truncated")]
        unknown = f"{100 * tokens['unknown_rate']:.2f}%"
        numbers = [f"{tokens['captions']:,}", f"{tokens['words']:,}", unknown, *(f"{n:,}" for n in counts)]
        table.add_row(split, *numbers)
    console.print(table)
    for vectors in facts["vectors"]:
        console.print(
            f"  vectors {vectors['file']}" + (f": {vectors['error']}" if "error" in vectors else "")
        )
