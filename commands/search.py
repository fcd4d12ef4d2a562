"""`camp search`: a text -> the images of a split that fit it best; an image -> its best captions."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("text", required=False)
@click.option("--image", metavar="FILE|KEY", help="Instead of TEXT: find captions for this image.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many answers.")
@click.option("--split", default="test", show_default=True)
@click.option("--rerank", type=FOLDER, metavar="RUN2", help="Score the first 100 again with this run.")
@click.option("--candidates", type=FOLDER, metavar="RUN2", help="The other way: RUN2 finds them, RUN scores.")
@click.option(
    "--faiss/--exact", default=None, help="Search through FAISS [default: for half a million and more]."
)
@click.option("--weights", metavar="FILE", help="The extractor's weights, for an image file.")
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@json_option
@debug_option
def command(
    run: Path,
    text: str | None,
    image: str | None,
    top: int,
    split: str,
    rerank: Path | None,
    candidates: Path | None,
    faiss: bool | None,
    weights: str | None,
    dataset: Path | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Search a split. The first search encodes it; later ones answer from the index in RUN."""
    if (text is None) == (image is None):
        raise click.UsageError("Give either TEXT or --image FILE|KEY.")
    if rerank and candidates:
        raise click.UsageError("Give either --rerank or --candidates.")
    import torch

    from ..evaluation.query import QueryEncoder
    from ..evaluation.run_folder import open_run
    from ..evaluation.search import Search
    from ..progress import terminal_progress

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def opened(folder: Path) -> QueryEncoder:
        return QueryEncoder.open(
            open_run(folder), dataset=dataset, checkpoint=checkpoint, device=device, weights=weights
        )

    second = run if candidates else rerank
    search = Search(
        opened(candidates or run),
        split=split,
        checkpoint=checkpoint,
        rerank=opened(second) if second else None,
        faiss=faiss,
        progress=terminal_progress,
    )
    if not search.indexed:
        say(
            f"note: {search.encoder.run.folder} has no vector per image, so every pair is scored; "
            "--candidates CHEAP_RUN is faster"
        )
    if text is not None:
        answer = search.images(text, top=top)
    else:
        assert image is not None
        _, regions = search.encoder.find(image)
        answer = search.captions(regions, top=top)
    if as_json:
        print_json(answer.to_json())
        return
    for hit in answer.hits:
        found = hit.key if hit.text is None else f"{hit.text}  ({hit.key})"
        click.echo(f"{hit.rank:>3}  {hit.score:7.4f}  {found}")
    again = f", {answer.rescored} scored again" if answer.rescored else ""
    what = "images" if text is not None else "captions"
    say(f"{answer.searched:,} {what} of split {split!r} in {1000 * answer.seconds:.0f} ms{again}")
