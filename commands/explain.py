"""`camp explain`: an image and a caption -> attention and gates, drawn on the photograph."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FILE, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--image", required=True, metavar="KEY", help="The image's key, file name or id.")
@click.option("--caption-id", type=int, help="A caption of the data set.")
@click.option("--text", help="Instead: any text.")
@click.option("--out", type=FILE, required=True, help="The picture to write, .png.")
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@json_option
@debug_option
def command(
    run: Path,
    image: str,
    caption_id: int | None,
    text: str | None,
    out: Path,
    dataset: Path | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Show which regions each word looked at, and how far the gates opened; a wrong caption beside it."""
    if (caption_id is None) == (text is None):
        raise click.UsageError("Give either --caption-id or --text.")
    import torch

    from ..evaluation.explain_run import explain_run
    from ..evaluation.run_folder import open_run

    shown = explain_run(
        open_run(run),
        image=image,
        caption_id=caption_id,
        text=text,
        out=out,
        dataset=dataset,
        checkpoint=checkpoint,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    for note in shown.notes:
        say(f"note: {note}")
    if as_json:
        print_json(shown.to_json())
    else:
        other = f"with another image's caption {shown.negative.score:.3g}"
        click.echo(f"{out}: score {shown.positive.score:.3g}, {other}")
