"""`camp-data convert`: a feature set -> the other file format, or another float type."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, debug_option, json_option, print_json, say


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--features", required=True, help="The feature set to convert.")
@click.option("--store", type=click.Choice(["arrow", "hdf5"]), help="File format; default: as it is.")
@click.option("--dtype", type=click.Choice(["float16", "float32"]), help="Float type; default: as it is.")
@click.option("--name", help="Name of the new set; default: the old name and what changed.")
@json_option
@debug_option
def command(
    dataset: Path, features: str, store: str | None, dtype: str | None, name: str | None, as_json: bool
) -> None:
    """Convert a feature set of DATASET between Arrow and HDF5, float16 and float32.

    The old set stays. Killed and run again, it goes on with the next shard.
    """
    from ..manifests.dataset import Dataset
    from ..pipeline.convert import convert_features
    from ..pipeline.feature_index import FeatureIndex
    from ..progress import terminal_progress

    opened = Dataset.open(dataset)
    folder = convert_features(
        opened, features=features, store=store, dtype=dtype, name=name, progress=terminal_progress
    )
    index = FeatureIndex.open(folder)
    rows = sum(entry["rows"] for entry in index.shards)
    size = sum(entry["bytes"] for entry in index.shards)
    if as_json:
        print_json({"features": folder.name, "rows": rows, "bytes": size, "spec": index.spec.to_json()})
    else:
        say(f"{rows:,} rows, {size / 1e6:,.1f} MB, {index.spec.store} {index.spec.dtype}")
        click.echo(folder)
