"""`camp-data tokenize`: a data set and one of its vocabularies -> token ids per split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .executor_options import EXECUTORS, choose_executor, cluster_options
from .options import DATASET, debug_option, json_option, print_json
from .vocab_output import print_tokens, write_tokens


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--vocab", help="The vocabulary's name [default: the only one, or 'default'].")
@click.option("--max-words", type=click.IntRange(min=1), help="Cut the stored captions [default: never].")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes [default: all cores when it takes long]."
)
@click.option(
    "--executor", type=EXECUTORS, help="Resumable, on this machine or a cluster [default: neither]."
)
@cluster_options
@json_option
@debug_option
def command(
    dataset: Path,
    vocab: str | None,
    max_words: int | None,
    workers: int | None,
    executor: str | None,
    as_json: bool,
    **cluster: Any,
) -> None:
    """Write the token ids of every caption of DATASET, split by split; what is up to date stays."""
    from ..manifests.dataset import Dataset
    from ..vocab.shelf import choose_name

    opened = Dataset.open(dataset)
    name = choose_name(opened, vocab)
    chosen = None if executor is None else choose_executor(executor, cluster)
    tokens = write_tokens(opened, name, max_words=max_words, workers=workers, executor=chosen)
    print_json({"vocab": name, "tokens": tokens}) if as_json else print_tokens(tokens)
