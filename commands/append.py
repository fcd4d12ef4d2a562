"""`camp-data append`: more images and captions -> the next generation of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .import_ import parse_source, report, source_options
from .options import DATASET, debug_option, json_option


@click.command()
@click.argument("dataset", type=DATASET)
@click.argument("src", type=click.Path(path_type=Path))
@source_options
@json_option
@debug_option
def command(dataset: Path, src: Path, format: str, sizes: bool, as_json: bool, **given: Any) -> None:
    """Add the images and captions of SRC that DATASET does not have yet.

    Existing ids, shards and token files stay as they are; run extract and tokenize again for the new ones.
    """
    from ..manifests.dataset import Dataset
    from ..manifests.importing import append_dataset
    from ..progress import terminal_progress

    result = append_dataset(
        Dataset.open(dataset),
        src,
        format=format,
        sizes=sizes,
        options=parse_source(**given),
        progress=terminal_progress,
    )
    report(result, as_json=as_json)
