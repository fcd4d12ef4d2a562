"""`camp eval`: a score matrix -> recall in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import DATASET, FILE, debug_option, json_option, print_json


@click.command()
@click.option("--scores", type=FILE, required=True, help="A .npy matrix, images × captions: anybody's.")
@click.option("--captions-per-image", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--dataset", type=DATASET, help="Take each caption's image from this data set instead.")
@click.option("--split", default="test", show_default=True, help="Which split of --dataset.")
@click.option("--folds", type=click.IntRange(min=1), default=1, show_default=True, help="COCO 1K: 5.")
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Samples for the 95% intervals, 0 for none.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
@debug_option
def command(
    scores: Path,
    captions_per_image: int,
    dataset: Path | None,
    split: str,
    folds: int,
    bootstrap: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a score matrix: R@1/5/10, median and mean rank, rsum, both directions.

    Ties count against the model. Folds are consecutive images, as Karpathy's.
    """
    from ..evaluation.recall import evaluate
    from ..evaluation.score_file import caption_owners, read_scores

    matrix = read_scores(scores)
    owners = caption_owners(matrix.shape, captions_per_image=captions_per_image, dataset=dataset, split=split)
    metrics = evaluate(matrix, owners, folds=folds, bootstrap=bootstrap, seed=seed)
    if as_json:
        print_json(metrics)
    else:
        print_recall(metrics)


def print_recall(metrics: dict[str, Any]) -> None:
    """The table people know from the papers, with intervals."""
    click.echo(f"{'':<18}{'R@1':>7}{'R@5':>7}{'R@10':>7}{'med r':>8}{'mean r':>9}")
    for direction, title in (
        ("caption_retrieval", "caption retrieval"),
        ("image_retrieval", "image retrieval"),
    ):
        row = metrics[direction]
        click.echo(
            f"{title:<18}{row['r@1']:7.1f}{row['r@5']:7.1f}{row['r@10']:7.1f}{row['medr']:8.0f}{row['meanr']:9.1f}"
        )
        if "ci" in metrics:
            halves = [(high - low) / 2 for low, high in metrics["ci"][direction].values()]
            click.echo(f"{'':<18}" + "".join(f"{'±' + format(half, '.1f'):>7}" for half in halves))
    click.echo(
        f"rsum {metrics['rsum']:.1f}"
        + (f", mean of {metrics['folds']} folds" if metrics["folds"] > 1 else "")
    )
