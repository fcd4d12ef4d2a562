"""`camp-data verify`: a data set -> what is wrong with it; --repair rebuilds what can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import DATASET, debug_option, json_option, print_json, say

if TYPE_CHECKING:
    from ..pipeline.verify import Verification

EXIT_DAMAGED = 4


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--features", "features", multiple=True, help="Only this feature set; may be repeated.")
@click.option("--repair", is_flag=True, help="Rebuild markers and indexes from intact shards.")
@json_option
@debug_option
def command(dataset: Path, features: tuple[str, ...], repair: bool, as_json: bool) -> int:
    """Check every file of DATASET: checksums, schemas, ids, numbers, boxes, gaps.

    Ends with 0 when all is well and with 4 when not. --repair lists what must be extracted again.
    """
    from ..pipeline.verify import verify_dataset
    from ..progress import terminal_progress

    result = verify_dataset(
        dataset, features=list(features) or None, repair=repair, progress=terminal_progress
    )
    if as_json:
        print_json(result.to_json())
    else:
        _report(result)
    return 0 if result.intact else EXIT_DAMAGED


def _report(result: Verification) -> None:
    for repaired in result.repairs:
        if repaired.markers:
            click.echo(f"features/{repaired.name}: markers rebuilt: {', '.join(repaired.markers)}")
        if repaired.index:
            click.echo(f"features/{repaired.name}: index rebuilt")
        for shard, why in repaired.extract_again.items():
            click.echo(f"features/{repaired.name}: {shard} must be extracted again: {why}")
    for finding in result.all_findings():
        click.echo(str(finding))
    for check in result.features:
        size = f"{check.bytes / 1e6:,.1f} MB"
        say(f"features/{check.name}: {check.shards:,} shards, {check.rows:,} rows, {size}")
    count = len(result.all_findings())
    say("all is well" if result.intact else f"{count:,} problem{'s' if count != 1 else ''} found")
