"""`camp mine`: a run -> the hardest negatives of every image and caption, for a second round of training."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FILE, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--out", type=FILE, required=True, help="The Parquet file to write.")
@click.option("--split", default="train", show_default=True)
@click.option(
    "--top", type=click.IntRange(min=1), default=300, show_default=True, help="Captions kept for each image."
)
@click.option(
    "--top-images",
    type=click.IntRange(min=1),
    help="Images kept for each caption [default: a fifth of --top].",
)
@click.option(
    "--skip-identical",
    is_flag=True,
    help="A caption with the very words of one of the image's own is no negative of it.",
)
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@json_option
@debug_option
def command(
    run: Path,
    out: Path,
    split: str,
    top: int,
    top_images: int | None,
    skip_identical: bool,
    dataset: Path | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Find the captions that RUN confuses most with each image, and the images with each caption.

    The score matrix is never held: memory depends on the lists alone. Kill it at will; the same command goes
    on. Train with the file by --set negatives.file=FILE.
    """
    import torch

    from ..evaluation.mine_run import mine_run
    from ..evaluation.run_folder import open_run
    from ..progress import terminal_progress

    mined = mine_run(
        open_run(run),
        out=out,
        split=split,
        top_captions=top,
        top_images=top_images or max(1, top // 5),
        skip_identical=skip_identical,
        dataset=dataset,
        checkpoint=checkpoint,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        progress=terminal_progress,
        say=say,
    )
    facts = {
        "file": str(mined.path),
        "images": mined.images,
        "captions": mined.captions,
        "top_captions": mined.top_captions,
        "top_images": mined.top_images,
        "bytes": mined.path.stat().st_size,
        "already": mined.already,
    }
    if as_json:
        print_json(facts)
        return
    there = "is there already" if mined.already else f"{mined.path.stat().st_size / 1e6:.1f} MB"
    click.echo(f"{mined.path}: {there}")
    click.echo(f"the {mined.top_captions:,} hardest captions of each of {mined.images:,} images")
    click.echo(f"the {mined.top_images:,} hardest images of each of {mined.captions:,} captions")
