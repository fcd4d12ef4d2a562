"""`camp train`: a data set's shards and tokens -> a trained run."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DATASET, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--config", required=True, metavar="FILE|NAME", help="A TOML file or a shipped recipe.")
@click.option("--out", type=FOLDER, metavar="RUN", help="The run to make.")
@click.option("--features", help="Which feature set [default: the only one].")
@click.option("--vocab", help="Which vocabulary [default: the only one].")
@click.option(
    "--init", type=FOLDER, metavar="RUN", help="Start from another run's weights, as far as they fit."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change the config; repeat.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, if there is one.")
@click.option("--print-config", is_flag=True, help="Print the whole config as TOML and stop.")
@json_option
@debug_option
def command(
    dataset: Path,
    config: str,
    out: Path | None,
    features: str | None,
    vocab: str | None,
    init: Path | None,
    overrides: tuple[str, ...],
    device: str,
    resume: bool,
    print_config: bool,
    as_json: bool,
) -> int:
    """Train on DATASET. Stop it at will: --resume goes on as if it had never stopped.

    Under torchrun every process takes its share of each batch.
    """
    from ..training.config_file import config_to_toml, read_config

    settings = read_config(config, overrides=overrides)
    if print_config:
        click.echo(config_to_toml(settings))
        return 0
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    import torch

    from ..errors import InputError
    from ..manifests.dataset import Dataset
    from ..progress import terminal_progress
    from ..training.run import train_dataset

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda: no CUDA device found; use --device cpu, or install a CUDA build of torch"
        )
    outcome = train_dataset(
        Dataset.open(dataset),
        settings,
        out=out,
        features=features,
        vocab=vocab,
        init=init,
        device=torch.device("cpu") if device == "cpu" else None,
        resume=resume,
        progress=terminal_progress,
        say=say,
    )
    if as_json:
        print_json(
            {
                "run": str(out),
                "reason": outcome.reason,
                "steps": outcome.steps,
                "epochs": outcome.epochs,
                "best": outcome.best,
            }
        )
    else:
        measured = ""
        if best := outcome.best:
            by = settings.validation.best_by
            measured = f"; best by {by} in epoch {best['epoch']}, rsum {best['metrics']['rsum']:.1f}"
        click.echo(
            f"{out}: {outcome.reason} after {outcome.epochs} epochs, {outcome.steps:,} steps{measured}"
        )
    if outcome.exit_code:
        say("saved; run the same command with --resume to go on")
    return outcome.exit_code
