"""`camp-data show`: an image's regions -> drawn on the photograph."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FILE, debug_option, json_option, print_json


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--image", "key", required=True, metavar="KEY", help="The image's key, file name or id.")
@click.option("--features", metavar="NAME", help="Which features [default: the only ones].")
@click.option("--out", type=FILE, help="The picture to write [default: KEY.regions.png here].")
@click.option("--top", type=click.IntRange(min=1), help="Draw only the best regions.")
@json_option
@debug_option
def command(
    dataset: Path, key: str, features: str | None, out: Path | None, top: int | None, as_json: bool
) -> None:
    """Draw the chosen boxes of one image, with the names of what they show."""
    from ..errors import InputError
    from ..files import atomic_writer
    from ..manifests.dataset import Dataset
    from ..pipeline.region_picture import picture_regions

    shown = picture_regions(Dataset.open(dataset), key, features=features, top=top)
    out = out or Path(f"{Path(shown.row.key).stem}.regions.png")
    kind = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}.get(out.suffix.lower())
    if kind is None:
        raise InputError(f"{out}: found ending {out.suffix!r}, expected .png, .jpg or .webp")
    with atomic_writer(out) as stream:
        shown.picture.save(stream, format=kind)
    facts = shown.to_json()
    if as_json:
        print_json({**facts, "picture": str(out)})
        return
    click.echo(f"{shown.row.key}: {len(facts['regions'])} regions of {shown.features!r}, drawn in {out}")
    for rank, region in enumerate(facts["regions"][:top], start=1):
        left, upper, right, lower = (round(edge) for edge in region["box"])
        score = f" {region['score']:.2f}" if "score" in region else ""
        label = f"  {region['label']}" if "label" in region else ""
        click.echo(f"{rank:>4} {left:>5} {upper:>5} {right:>5} {lower:>5}{score}{label}")
