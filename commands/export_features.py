"""`camp-data export-features`: region features -> a layout that other projects read."""

from __future__ import annotations

from pathlib import Path

import click

from .import_features import FORMATS
from .options import DATASET, debug_option, json_option, print_json, say

IDS = ("auto", "key", "stem", "cocoid", "imgid", "image-id")


@click.command()
@click.argument("dataset", type=DATASET)
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--format", type=click.Choice(FORMATS), required=True, help="How DEST is written.")
@click.option("--features", "--name", "name", help="Which features [default: the only ones].")
@click.option("--splits", help="Only these, separated by commas [default: all].")
@click.option(
    "--ids",
    type=click.Choice(IDS),
    default="auto",
    show_default=True,
    help="Which ids DEST gives the images.",
)
@json_option
@debug_option
def command(
    dataset: Path, dest: Path, format: str, name: str | None, splits: str | None, ids: str, as_json: bool
) -> None:
    """Write region features of DATASET to DEST, a file or a folder as the format has it.

    The order is the manifest's. Features go out as float32. DEST appears when it is whole and is never
    overwritten.
    """
    from ..manifests.dataset import Dataset
    from ..pipeline.feature_export import export_features
    from ..progress import terminal_progress

    result = export_features(
        Dataset.open(dataset),
        dest,
        format=format,
        name=name,
        splits=splits.split(",") if splits else None,
        ids=ids,
        progress=terminal_progress,
    )
    if as_json:
        print_json(result.as_json())
        return
    if result.left_out:
        say(f"note: {format} has no place for {', '.join(result.left_out)}")
    if result.without_features:
        say(f"note: {result.without_features:,} images without features, left out")
    click.echo(f"{dest}: {result.images:,} images of features {result.features!r}, ids: {result.ids}")
