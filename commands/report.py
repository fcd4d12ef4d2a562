"""`camp report`: a run -> one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Where index.html goes.")
@click.option("--split", default="test", show_default=True)
@click.option("--folds", type=click.IntRange(min=1), default=1, show_default=True, help="COCO 1K: 5.")
@click.option("--candidates", type=FOLDER, metavar="RUN2", help="A cheap run, for the reranking trade-off.")
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@json_option
@debug_option
def command(
    run: Path,
    out: Path,
    split: str,
    folds: int,
    candidates: Path | None,
    dataset: Path | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Write a page that shows how good RUN is, and why. It needs no network and no other file."""
    import torch

    from ..evaluation.report import write_report
    from ..evaluation.run_folder import open_run
    from ..progress import terminal_progress
    from ..training.journal import read_journal

    page, notes = write_report(
        open_run(run),
        out=out,
        journal=read_journal(run),
        split=split,
        folds=folds,
        dataset=dataset,
        checkpoint=checkpoint,
        candidates=open_run(candidates) if candidates else None,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        progress=terminal_progress,
    )
    for note in notes[:5]:
        say(f"note: {note}")
    if len(notes) > 5:
        say(f"note: and {len(notes) - 5} more photographs not shown")
    if as_json:
        print_json({"page": str(page), "bytes": page.stat().st_size, "notes": notes})
    else:
        click.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB")
