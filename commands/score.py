"""`camp score`: an image and some texts -> one number per text."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FOLDER, debug_option, json_option, print_json


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("image")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--weights", metavar="FILE", help="The extractor's weights, for an image file.")
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@json_option
@debug_option
def command(
    run: Path,
    image: str,
    texts: tuple[str, ...],
    weights: str | None,
    dataset: Path | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Score IMAGE with each TEXT. IMAGE is a file, or a key of the data set.

    CAMP's scores are probabilities, those of models that compare vectors are cosines.
    """
    import torch

    from ..evaluation.query import QueryEncoder
    from ..evaluation.run_folder import open_run
    from ..evaluation.search import score_texts

    encoder = QueryEncoder.open(
        open_run(run),
        dataset=dataset,
        checkpoint=checkpoint,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        weights=weights,
    )
    key, regions = encoder.find(image)
    scores = score_texts(encoder, regions, list(texts))
    if as_json:
        pairs = [{"text": text, "score": score} for text, score in zip(texts, scores, strict=True)]
        print_json({"image": key, "scores": pairs})
        return
    for text, score in zip(texts, scores, strict=True):
        click.echo(f"{score:7.4f}  {text}")
