"""`camp compare`: several configs on one data set -> one table and one plot."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--configs", multiple=True, metavar="A,B,…", help="Recipes or .toml files; repeat or commas.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=A,B | NAME | FILE",
    help="Every config with each of these values; or a file of named rows, shipped or yours. Repeat.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change every config; repeat.")
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Runs, table and plot.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs per config.")
@click.option("--budget", type=float, metavar="MINUTES", help="Training time of each run, at most.")
@click.option("--features", help="Which feature set [default: the only one].")
@click.option("--vocab", help="Which vocabulary [default: the only one].")
@click.option("--split", default="test", show_default=True, help="What the table is measured on.")
@click.option("--folds", type=click.IntRange(min=1), default=1, show_default=True, help="COCO 1K: 5.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--retry-failed", is_flag=True, help="Train failed runs again, from the start.")
@click.option("--redo-changed", is_flag=True, help="Train again what was made with another config or data.")
@click.option("--dry-run", is_flag=True, help="List the runs and how far each is, and stop.")
@json_option
@debug_option
def command(
    dataset: Path,
    configs: tuple[str, ...],
    grids: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path,
    seeds: int,
    budget: float | None,
    features: str | None,
    vocab: str | None,
    split: str,
    folds: int,
    device: str,
    retry_failed: bool,
    redo_changed: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train and measure several configs on DATASET: one table, R@K against time and size.

    Kill it at will: the same command goes on where it was, and finished runs are not repeated.
    """
    import torch

    from ..errors import InputError
    from ..manifests.dataset import Dataset
    from ..progress import terminal_progress
    from ..training.compare import compare_configs, compare_jobs, job_states
    from ..training.grid import expand_grid

    names = [name.strip() for given in configs for name in given.split(",") if name.strip()]
    if not names and not grids:
        raise click.UsageError("Give --configs or a --grid file.")
    if budget is not None and budget <= 0:
        raise click.UsageError("--budget: expected more than 0 minutes.")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device found; use --device cpu")
    opened, rows = Dataset.open(dataset), expand_grid(names, grids=grids, settings=overrides)
    if dry_run:
        jobs = compare_jobs(rows, out=out, seeds=seeds, budget_minutes=budget)
        found = job_states(opened, jobs, features=features, vocab=vocab, split=split, folds=folds)
        if as_json:
            print_json(
                [{"row": job.row, "seed": job.seed, "run": str(job.folder), "state": s} for job, s in found]
            )
        else:
            for job, state in found:
                click.echo(f"{state:<10} {job.row}, seed {job.config.run.seed}: {job.folder}")
        return 0
    outcome = compare_configs(
        opened,
        rows,
        out=out,
        seeds=seeds,
        budget_minutes=budget,
        features=features,
        vocab=vocab,
        split=split,
        folds=folds,
        device=torch.device("cpu") if device == "cpu" else None,
        retry_failed=retry_failed,
        redo_changed=redo_changed,
        progress=terminal_progress,
        say=say,
    )
    if as_json:
        print_json(outcome.table.to_json())
    else:
        click.echo(outcome.table.text())
    say(f"{out}: table.md, table.csv, table.json, compare.png")
    if outcome.exit_code > 128:
        say("stopped; run the same command again to go on")
    return outcome.exit_code
