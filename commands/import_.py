"""`camp-data import`: captions and splits -> a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import DATASET, FILE, Decorated, debug_option, json_option, print_json, say

if TYPE_CHECKING:
    from ..manifests.importing import ImportResult
    from ..manifests.source import SourceOptions

FORMATS = ("karpathy", "flickr-token", "coco-captions", "scan-precomp", "table", "folder")


class SplitFile(click.ParamType):  # type: ignore[type-arg]  # generic only since Click 8.5
    """train=FILE"""

    name = "SPLIT=FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Path]:
        if isinstance(value, tuple):
            return value
        split, equals, path = value.partition("=")
        if not (split and equals and path):
            self.fail(f"found {value!r}, expected SPLIT=FILE, for instance train=train_names.txt", param, ctx)
        return split, Path(path)


def source_options(function: Decorated) -> Decorated:
    """What `import` and `append` ask about a source."""
    decorators: list[Callable[[Any], Any]] = [
        click.option("--format", type=click.Choice(FORMATS), required=True, help="How SRC is written."),
        click.option(
            "--images", metavar="DIR|URL", help="Where the photographs are [default: 'images' beside SRC]."
        ),
        click.option(
            "--split-file",
            "split_files",
            type=SplitFile(),
            multiple=True,
            help="Names or ids of one split, one a line; repeat per split.",
        ),
        click.option(
            "--instances",
            type=FILE,
            multiple=True,
            help="COCO instances JSON, or a sample's objects.json: its classes become labels.",
        ),
        click.option("--image-column", help="table: the column of file names."),
        click.option("--caption-column", help="table: the column of captions."),
        click.option("--split-column", help="table: the column of splits."),
        click.option("--labels-column", help="table: the column of labels."),
        click.option(
            "--max-captions",
            type=click.IntRange(min=0),
            help="Captions kept per image, 0 for all [default: 5 for Karpathy's COCO, else all].",
        ),
        click.option(
            "--sizes/--no-sizes",
            default=True,
            show_default=True,
            help="Read each photograph's size from its header.",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def parse_source(**given: Any) -> SourceOptions:
    """The options above -> what the importers take."""
    from ..errors import InputError
    from ..manifests.source import SourceOptions

    splits = [split for split, _ in given["split_files"]]
    if repeated := [split for split in splits if splits.count(split) > 1]:
        raise InputError(f"--split-file {repeated[0]}=… is given twice, expected each split once")
    roles = ("image", "caption", "split", "labels")
    return SourceOptions(
        images=given["images"],
        split_files=dict(given["split_files"]),
        instances=given["instances"],
        columns={role: given[f"{role}_column"] for role in roles if given[f"{role}_column"]},
        max_captions=given["max_captions"],
    )


@click.command()
@click.argument("src", type=click.Path(path_type=Path))
@source_options
@click.option("--out", type=DATASET, required=True, help="The data set to make.")
@click.option("--name", help="What the data set is called [default: as the source says].")
@json_option
@debug_option
def command(
    src: Path, format: str, out: Path, name: str | None, sizes: bool, as_json: bool, **given: Any
) -> None:
    """Read captions and splits from SRC and write a data set.

    The order of images and captions is kept; ids are assigned once. Oddities are counted and shown.
    """
    from ..manifests.importing import import_dataset
    from ..progress import terminal_progress

    result = import_dataset(
        src,
        format=format,
        out=out,
        name=name,
        sizes=sizes,
        options=parse_source(**given),
        progress=terminal_progress,
    )
    report(result, as_json=as_json)


def report(result: ImportResult, *, as_json: bool) -> None:
    """What came in, as JSON or as a few lines."""
    dataset = result.dataset
    if as_json:
        print_json(
            {
                "dataset": str(dataset.root),
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "added": {"images": result.added_images, "captions": result.added_captions},
                "splits": dataset.counts,
                "findings": result.findings,
            }
        )
        return
    for kind, finding in result.findings.items():
        say(
            f"note: {finding['count']:,} {kind}: {'; '.join(finding['examples'][:2])}"
            f"{' …' if finding['count'] > 2 else ''}"
        )
    click.echo(f"{dataset.root}: {result.added_images:,} images and {result.added_captions:,} captions added")
    for split, counts in dataset.counts.items():
        click.echo(f"  {split:<6} {counts['images']:>8,} images {counts['captions']:>9,} captions")
