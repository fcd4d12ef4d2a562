"""`camp-data build-vocab`: captions -> a vocabulary, tokens, and perhaps a matrix of word vectors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .executor_options import EXECUTORS, choose_executor, cluster_options
from .options import FILE, debug_option, json_option, print_json, say
from .vocab_output import (
    VOCAB_FORMATS,
    add_vectors,
    check_vector_file,
    print_report,
    save_and_report,
    say_tokenizer,
    vector_options,
    write_tokens,
)

if TYPE_CHECKING:
    from ..pipeline.extract_events import Executor
    from ..vocab.vocabulary import Vocabulary

_EXPORT = click.Tuple([click.Choice(VOCAB_FORMATS), FILE])


@click.command()
@click.argument("sources", nargs=-1, metavar="DATASET | CAPTION_FILE...", type=click.Path(path_type=Path))
@click.option(
    "--splits", help="Splits to count words in, with commas [default: train,val; 'all' of a folder]."
)
@click.option(
    "--min-count", type=click.IntRange(min=1), default=4, show_default=True, help="Rarer words are unknown."
)
@click.option(
    "--max-size", type=click.IntRange(min=1), help="At most this many words, the special ones apart."
)
@click.option("--tokenizer", type=click.Choice(("nltk", "plain")), default="nltk", show_default=True)
@click.option("--name", help="The vocabulary's name [default: default].")
@click.option("--out", type=FILE, help="Caption files: where the vocabulary goes [default: vocab.json].")
@vector_options
@click.option("--max-words", type=click.IntRange(min=1), help="Cut the stored captions [default: never].")
@click.option(
    "--export",
    "exports",
    type=_EXPORT,
    multiple=True,
    metavar="FORMAT FILE",
    help="scan-json, pickle or torchtext; may be repeated.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes [default: all cores when it takes long]."
)
@click.option(
    "--executor", type=EXECUTORS, help="Resumable, on this machine or a cluster [default: neither]."
)
@cluster_options
@click.option("--download", is_flag=True, help="First fetch NLTK's punkt_tab data.")
@json_option
@debug_option
def command(
    sources: tuple[Path, ...],
    splits: str | None,
    min_count: int,
    max_size: int | None,
    tokenizer: str,
    name: str | None,
    out: Path | None,
    vectors: Path | None,
    vectors_member: str | None,
    vectors_words: Path | None,
    seed: int,
    max_words: int | None,
    exports: tuple[tuple[str, Path], ...],
    workers: int | None,
    executor: str | None,
    download: bool,
    as_json: bool,
    **cluster: Any,
) -> None:
    """Count the words of captions and keep the frequent ones.

    On a DATASET the vocabulary, the token ids of every split and the word matrix become parts of it. On
    CAPTION_FILEs (one caption per line) the vocabulary goes to --out.
    """
    from ..vocab.tokenizer import download_punkt, open_tokenizer

    if download:
        download_punkt()
        say("NLTK's punkt_tab data is present")
        if not sources:
            return
    if not sources:
        raise click.UsageError("give a data set or caption files")
    on_dataset = sources[0].is_dir()
    if on_dataset and len(sources) > 1:
        raise click.UsageError(f"{sources[0]} is a folder: give one data set, or caption files alone")
    for option, given, wanted in (
        ("--out", out, False),
        ("--splits", splits, True),
        ("--max-words", max_words, True),
        ("--executor", executor, True),
    ):
        if given is not None and on_dataset != wanted:
            raise click.UsageError(f"{option} is for {'a data set' if wanted else 'caption files'}")
    _check_before_counting(vectors, vectors_member, exports)
    opened = open_tokenizer(tokenizer)
    say_tokenizer(opened)
    counting = {"tokenizer": opened, "min_count": min_count, "max_size": max_size, "workers": workers}
    if on_dataset:
        chosen = None if executor is None else choose_executor(executor, cluster)
        path, vocabulary, report = _from_dataset(sources[0], name, splits, max_words, chosen, counting)
    else:
        path, vocabulary, report = _from_files(sources, out or Path(f"{name or 'vocab'}.json"), counting)
    matrix = None
    if vectors is not None:
        where = {"member": vectors_member, "words_file": vectors_words}
        report["vectors"], matrix = add_vectors(path, vocabulary, vectors, seed=seed, where=where)
    if exports:
        from ..vocab.interchange import export_vocabulary

        for export_format, file in exports:
            export_vocabulary(vocabulary, file, format=export_format, matrix=matrix)
        report["exports"] = [{"format": kind, "file": str(file)} for kind, file in exports]
    print_json(report) if as_json else print_report(report)


def _check_before_counting(
    vectors: Path | None, member: str | None, exports: tuple[tuple[str, Path], ...]
) -> None:
    check_vector_file(vectors, member)
    if any(kind == "torchtext" for kind, _ in exports):
        from ..vocab.torchtext_bridge import require_torchtext

        require_torchtext()


def _from_dataset(
    root: Path,
    name: str | None,
    splits: str | None,
    max_words: int | None,
    executor: Executor | None,
    counting: dict[str, Any],
) -> tuple[Path, Vocabulary, dict[str, Any]]:
    from ..manifests.dataset import Dataset
    from ..pipeline.caption_job import count_on
    from ..progress import terminal_progress
    from ..vocab.building import build_vocabulary, default_splits
    from ..vocab.shelf import DEFAULT_NAME, check_name

    dataset = Dataset.open(root)
    name = check_name(name or DEFAULT_NAME)
    chosen = default_splits(dataset) if splits is None else [part.strip() for part in splits.split(",")]
    dataset.check_splits(chosen)
    if "test" in chosen:
        say("warning: words of the test captions are counted in, so results on test will flatter the model")
    workers, count = counting["workers"], None
    if executor is not None:
        count = partial(
            count_on,
            executor,
            dataset,
            tokenizer=counting["tokenizer"],
            workers=workers,
            progress=terminal_progress,
            say=say,
        )
    vocabulary = build_vocabulary(dataset, splits=chosen, progress=terminal_progress, count=count, **counting)
    path = dataset.vocab_file(name)
    report = save_and_report(path, vocabulary)
    report["tokens"] = write_tokens(dataset, name, max_words=max_words, workers=workers, executor=executor)
    return path, vocabulary, report


def _from_files(
    files: tuple[Path, ...], out: Path, counting: dict[str, Any]
) -> tuple[Path, Vocabulary, dict[str, Any]]:
    from ..progress import terminal_progress
    from ..vocab.building import build_vocabulary_from_files

    vocabulary = build_vocabulary_from_files(files, progress=terminal_progress, **counting)
    return out, vocabulary, save_and_report(out, vocabulary)
