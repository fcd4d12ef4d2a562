"""`camp-data import-features`: somebody else's region features -> shards of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import DATASET, debug_option, json_option, print_json, say

if TYPE_CHECKING:
    from ..pipeline.feature_import import FeatureImportResult

FORMATS = (
    *("anderson-tsv", "lxmert-tsv", "milvlg-npz", "mmf-npy"),
    *("mmf-lmdb", "vqa-hdf5", "vlt5-hdf5", "scan-npy"),
)
JOINS = ("auto", "key", "stem", "cocoid", "imgid", "image-id", "order")
_EXAMPLES = 3


@click.command()
@click.argument("dataset", type=DATASET)
@click.argument("src", type=click.Path(path_type=Path))
@click.option("--format", type=click.Choice(FORMATS), required=True, help="How SRC is written.")
@click.option("--name", help="What the features are called [default: the format's name].")
@click.option(
    "--store", type=click.Choice(["arrow", "hdf5"]), help="File format of the shards [default: arrow]."
)
@click.option(
    "--dtype", type=click.Choice(["float16", "float32"]), help="Of the features [default: float16]."
)
@click.option(
    "--join", type=click.Choice(JOINS), default="auto", show_default=True, help="What the ids in SRC are."
)
@click.option("--regions", type=click.IntRange(min=1), help="Regions an image [default: the most in SRC].")
@click.option("--truncate", is_flag=True, help="Of images with more regions, keep the first.")
@click.option("--splits", help="Only these, separated by commas [default: all].")
@click.option("--shard-size", type=click.IntRange(min=1), help="Images a shard [default: 500].")
@click.option("--max-errors", type=click.IntRange(min=0), help="Stop after so many images without features.")
@json_option
@debug_option
def command(
    dataset: Path,
    src: Path,
    format: str,
    name: str | None,
    splits: str | None,
    shard_size: int | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Read region features from SRC, a file or a folder, into DATASET.

    Rows are joined to images by their ids; what found no partner is reported. Killed, the same command goes
    on where it was. An image that SRC has no row for keeps the features it has.
    """
    from ..errors import EXIT_INCOMPLETE
    from ..manifests.dataset import Dataset
    from ..pipeline.feature_import import FeatureImportOptions, import_features
    from ..progress import terminal_progress

    if shard_size is not None:
        given["shard_size"] = shard_size
    options = FeatureImportOptions(splits=splits.split(",") if splits else None, **given)
    result = import_features(
        Dataset.open(dataset), src, format=format, name=name, options=options, progress=terminal_progress
    )
    if as_json:
        print_json(result.as_json())
    else:
        _report(result)
    return EXIT_INCOMPLETE if result.failed else 0


def _report(result: FeatureImportResult) -> None:
    shown = result.as_json()
    join = shown["join"]
    for kind, finding in shown["findings"].items():
        say(f"note: {finding['count']:,} {kind}: {'; '.join(finding['examples'][:_EXAMPLES])}")
    if unknown := join["rows_without_image"]["count"]:
        say(f"note: {unknown:,} rows without an image: {_some(join['rows_without_image']['ids'])}")
    if twice := join["rows_for_one_image_twice"]:
        say(f"note: {twice:,} rows for an image that has one already, left out")
    if lonely := join["images_without_row"]["count"]:
        say(f"note: {lonely:,} images without a row: {_some(join['images_without_row']['keys'])}")
    if shown["truncated"]:
        say(f"note: {shown['truncated']:,} rows had more than {result.spec.regions} regions and were cut")
    click.echo(_summary(result, shown))
    reasons = sorted(result.reasons.items(), key=lambda item: -item[1])
    for reason, count in reasons[:_EXAMPLES]:
        click.echo(f"  failed {count:>8,}  {reason}")
    if len(reasons) > _EXAMPLES:
        rest = sum(count for _, count in reasons[_EXAMPLES:])
        click.echo(f"  failed {rest:>8,}  for other reasons, listed in {result.folder / 'failures.parquet'}")


def _summary(result: FeatureImportResult, shown: Mapping[str, Any]) -> str:
    spec = result.spec
    shards = shown["shards"]
    kept = f", {shards['kept']:,} were there already" if shards["kept"] else ""
    return (
        f"{result.folder}: {result.rows:,} images, {spec.regions} regions of {spec.dim} {spec.dtype} each, "
        f"joined by {result.join.way}; {shards['written']:,} {spec.store} shards written{kept}; "
        f"{result.failed:,} images without features"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (" …" if len(names) > _EXAMPLES else "")
