"""camp-data sample: a seed -> drawn scenes with five captions each."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FOLDER, debug_option, json_option, print_json


@click.command(name="sample")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--images", "number", default=1200, show_default=True, help="How many images, 12 or more.")
@click.option("--seed", default=0, show_default=True, help="Other seeds draw other scenes.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes that draw; default: one for every core."
)
@json_option
@debug_option
def command(folder: Path, number: int, seed: int, workers: int | None, as_json: bool) -> None:
    """Draw a sample data set into DIR: images/, karpathy.json, objects.json and a card.

    Several objects a scene, five captions an image; most scenes have a near-duplicate that differs in one
    detail. The same seed gives the same files, however often and with however many processes it is run.
    """
    from ..manifests.scenes.sample import write_sample
    from ..progress import terminal_progress

    card = write_sample(folder, images=number, seed=seed, workers=workers, progress=terminal_progress)
    if as_json:
        print_json(card)
        return
    images, captions, words = card["images"], card["captions"], card["words"]
    splits = ", ".join(f"{count:,} {split}" for split, count in card["splits"].items())
    oracles = card["oracle_r@1"]
    knows, kinds = oracles["everything"]["image_retrieval"], oracles["kinds_only"]["image_retrieval"]
    click.echo(f"{folder}: {images:,} images ({splits}), {captions:,} captions, {words} words")
    click.echo(
        f"an oracle finds the image of {knows}% of the test captions if it knows everything, "
        f"of {kinds}% if it knows only the kinds of objects"
    )
