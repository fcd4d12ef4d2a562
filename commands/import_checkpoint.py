"""`camp import-checkpoint`: weights that a paper's authors released -> a run."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FILE, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--kind", type=click.Choice(["camp", "scan"]), required=True, help="Whose it is; scan: SCAN's or BFAN's."
)
@click.option("--vocab", type=FILE, required=True, help="The vocabulary released with it (.pkl or .json).")
@click.option("--out", type=FOLDER, required=True, metavar="RUN", help="The run to make.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the model that the file does not say, for instance direction=i2t; repeat.",
)
@click.option("--tokenizer", type=click.Choice(["nltk", "plain"]), default="nltk", show_default=True)
@json_option
@debug_option
def command(
    file: Path, kind: str, vocab: Path, out: Path, settings: tuple[str, ...], tokenizer: str, as_json: bool
) -> None:
    """Turn FILE into a run that 'camp eval --dataset D' measures. Nothing pickled in it is run."""
    from ..training.config_file import parse_settings
    from ..training.released import import_checkpoint

    imported = import_checkpoint(
        file, kind=kind, vocab=vocab, out=out, tokenizer=tokenizer, options=parse_settings(settings)
    )
    for warning in imported.warnings:
        say(f"warning: {warning}")
    if as_json:
        print_json(
            {
                "run": str(out),
                "model": imported.model,
                "options": dict(imported.options),
                "loaded": list(imported.report.loaded),
                "missing": list(imported.report.missing),
                "unexpected": list(imported.report.unexpected),
                **imported.facts,
            }
        )
        return
    for line in imported.report.lines():
        say(line)
    listed = ", ".join(f"{key} {value}" for key, value in imported.options.items())
    say(f"{imported.model}: {listed}")
    click.echo(f"{out}: imported from {file.name}; measure it with 'camp eval {out} --dataset DATASET'")
