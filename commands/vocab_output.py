"""What the vocabulary commands share: writing, and reporting on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import FILE, Decorated, say

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..manifests.dataset import Dataset
    from ..pipeline.extract_events import Executor
    from ..vocab.tokenizer import Tokenizer
    from ..vocab.vectors import WordVectors
    from ..vocab.vocabulary import Vocabulary

VOCAB_FORMATS = ("scan-json", "pickle", "torchtext")


def vector_options(function: Decorated) -> Decorated:
    """--vectors and what belongs to it."""
    for option in (
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Of the rows that have no vector.",
        ),
        click.option(
            "--vectors-words", type=FILE, help="The words of an npy, one per line [default: beside it]."
        ),
        click.option("--vectors-member", metavar="NAME", help="Which file of a zip."),
        click.option(
            "--vectors", type=FILE, help="GloVe txt/gz/zip, word2vec txt/bin, npy or torchtext cache."
        ),
    ):
        function = option(function)
    return function


def check_vector_file(vectors: Path | None, member: str | None) -> None:
    """Find a mistake in --vectors before anything takes long."""
    if vectors is not None:
        from ..vocab.vector_streams import find_vector_file

        find_vector_file(vectors, member=member)


def add_vectors(
    path: Path, vocabulary: Vocabulary, source: Path, *, seed: int, where: dict[str, Any]
) -> tuple[dict[str, Any], npt.NDArray[np.float32]]:
    """A file of vectors -> a matrix beside the vocabulary's file; its facts and itself."""
    from ..progress import terminal_progress
    from ..vocab.vectors import load_vectors, vectors_name

    vectors = load_vectors(source, vocabulary=vocabulary, seed=seed, progress=terminal_progress, **where)
    name = vectors_name(Path(where["member"] or source))
    return save_and_describe_vectors(path, vocabulary, vectors, name=name), vectors.matrix


def save_and_describe_vectors(
    path: Path, vocabulary: Vocabulary, vectors: WordVectors, *, name: str
) -> dict[str, Any]:
    """A matrix -> a file beside the vocabulary's, and its facts."""
    from ..vocab.vectors import save_vectors, vectors_file

    file = vectors_file(path, name)
    save_vectors(file, vectors, vocabulary=vocabulary)
    return {"file": str(file), "dim": vectors.dim, "coverage": vectors.coverage}


def say_tokenizer(tokenizer: Tokenizer) -> None:
    """Say, once, when NLTK works without its sentence splitter."""
    if tokenizer.name == "nltk" and not tokenizer.punkt:
        from ..vocab.tokenizer import PUNKT_ADVICE

        say(
            "NLTK's punkt_tab data is not found: a full stop inside a caption stays on its word. "
            f"The vocabulary records it; {PUNKT_ADVICE}"
        )


def save_and_report(path: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """Write a vocabulary unless the same one is there -> its facts."""
    from ..vocab.summary import summarize_vocabulary
    from ..vocab.vocabulary import save_over

    change = save_over(path, vocabulary)
    return {"vocabulary": str(path), "change": change, **summarize_vocabulary(vocabulary)}


def write_tokens(
    dataset: Dataset,
    name: str,
    *,
    max_words: int | None,
    workers: int | None,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Token ids of every split -> facts per split."""
    from ..pipeline.caption_job import encode_on
    from ..pipeline.tokens import tokenize_dataset
    from ..pipeline.vocab_report import token_facts
    from ..progress import terminal_progress

    written = tokenize_dataset(
        dataset,
        vocab=name,
        max_words=max_words,
        workers=workers,
        progress=terminal_progress,
        encode=None
        if executor is None
        else encode_on(executor, dataset, workers=workers, progress=terminal_progress, say=say),
    )
    return {split: {**token_facts(facts), "written": new} for split, (facts, new) in written.items()}


def print_report(report: dict[str, Any]) -> None:
    """The facts of a build or an import -> stdout, for people."""
    facts = report["statistics"]
    kept = f"{report['size']:,} words"
    if facts:
        kept += (
            f" of {facts['types']:,}, from {facts['tokens']:,} tokens in {facts['captions']:,} captions"
            f" ({facts['dropped_tokens'] / max(facts['tokens'], 1):.2%} too rare)"
        )
    click.echo(f"{report['vocabulary']}: {kept}; {report['change']}")
    if report.get("head"):
        click.echo(
            "  most frequent: " + ", ".join(f"{entry['word']} {entry['count']:,}" for entry in report["head"])
        )
    print_tokens(report.get("tokens", {}))
    if vectors := report.get("vectors"):
        _print_coverage(vectors)
    for export in report.get("exports", ()):
        click.echo(f"{export['file']}: {export['format']}")


def print_tokens(tokens: dict[str, Any]) -> None:
    """The facts of token files -> stdout, for people."""
    for split, facts in tokens.items():
        line = (
            f"tokens {split}: {facts['captions']:,} captions, {facts['unknown_rate']:.2%} of words unknown, "
            f"longest {facts['longest']}, {facts['over_50_words']:,} over 50 words"
        )
        if facts["empty"]:
            line += f", {facts['empty']:,} empty"
        if facts["max_words"] is not None:
            line += f", {facts['truncated']:,} cut to {facts['max_words']} words"
        click.echo(line + ("" if facts["written"] else "; up to date"))


def _print_coverage(vectors: dict[str, Any]) -> None:
    coverage = vectors["coverage"]
    line = f"{vectors['file']}: dimension {vectors['dim']}, "
    line += f"{coverage['types_found']:,} of {coverage['types']:,} words"
    if coverage.get("tokens"):
        line += f" ({coverage['tokens_found'] / coverage['tokens']:.2%} of tokens)"
    if coverage["other_case"]:
        line += f", {coverage['other_case']:,} in another case"
    click.echo(line)
    if coverage["missing"]:
        click.echo("  without a vector: " + ", ".join(entry["word"] for entry in coverage["missing"]))
