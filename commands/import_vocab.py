"""`camp-data import-vocab`: another project's vocabulary -> one of a data set, with its own ids."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FILE, debug_option, json_option, print_json, say
from .vocab_output import (
    VOCAB_FORMATS,
    add_vectors,
    check_vector_file,
    print_report,
    save_and_describe_vectors,
    save_and_report,
    say_tokenizer,
    vector_options,
    write_tokens,
)


@click.command()
@click.argument("dataset", type=DATASET)
@click.argument("file", type=FILE)
@click.option("--format", type=click.Choice(VOCAB_FORMATS), required=True, help="How FILE is written.")
@click.option("--name", help="The vocabulary's name [default: from the file's].")
@click.option(
    "--tokenizer",
    type=click.Choice(("nltk", "plain")),
    default="nltk",
    show_default=True,
    help="What its captions were split with.",
)
@vector_options
@click.option("--max-words", type=click.IntRange(min=1), help="Cut the stored captions [default: never].")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes [default: all cores when it takes long]."
)
@json_option
@debug_option
def command(
    dataset: Path,
    file: Path,
    format: str,
    name: str | None,
    tokenizer: str,
    vectors: Path | None,
    vectors_member: str | None,
    vectors_words: Path | None,
    seed: int,
    max_words: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Take FILE's words with FILE's ids into DATASET, and tokenize every split with them."""
    from ..manifests.dataset import Dataset
    from ..vocab.interchange import import_vocabulary
    from ..vocab.shelf import check_name, name_from_file
    from ..vocab.tokenizer import open_tokenizer

    check_vector_file(vectors, vectors_member)
    opened = Dataset.open(dataset)
    name = check_name(name or name_from_file(file))
    how = open_tokenizer(tokenizer)
    say_tokenizer(how)
    imported = import_vocabulary(file, format=format, tokenizer=how)
    for warning in imported.warnings:
        say(f"warning: {warning}")
    path = opened.vocab_file(name)
    report = save_and_report(path, imported.vocabulary)
    if imported.vectors is not None:
        report["vectors"] = save_and_describe_vectors(
            path, imported.vocabulary, imported.vectors, name=format
        )
    if vectors is not None:
        where = {"member": vectors_member, "words_file": vectors_words}
        report["vectors"], _ = add_vectors(path, imported.vocabulary, vectors, seed=seed, where=where)
    report["tokens"] = write_tokens(opened, name, max_words=max_words, workers=workers)
    print_json(report) if as_json else print_report(report)
