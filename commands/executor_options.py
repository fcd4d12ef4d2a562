"""Where work is done: the options of commands that run on this machine, on Ray or on Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .options import Decorated

if TYPE_CHECKING:
    from ..pipeline.executor_local import LocalExecutor
    from ..pipeline.executor_ray import RayExecutor
    from ..pipeline.executor_slurm import SlurmExecutor

EXECUTORS = click.Choice(["local", "ray", "slurm"])


def cluster_options(function: Decorated) -> Decorated:
    """What --executor ray and slurm need; choose_executor reads it."""
    for option in (
        click.option("--sbatch", multiple=True, metavar="KEY=VALUE", help="Slurm: more, e.g. account=me."),
        click.option(
            "--time",
            "minutes",
            type=int,
            default=1440,
            show_default=True,
            help="Slurm: minutes per task.",
        ),
        click.option("--partition", help="Slurm: where to run."),
        click.option(
            "--memory-per-worker", metavar="GB", type=float, help="Ray, Slurm: what a worker asks for."
        ),
        click.option(
            "--ray-address",
            default="auto",
            show_default=True,
            help="A Ray cluster's address, or 'local'.",
        ),
    ):
        function = option(function)
    return function


def choose_executor(
    name: str, given: dict[str, Any], *, gpus: float | None = None
) -> LocalExecutor | RayExecutor | SlurmExecutor:
    """An executor's name and the options above, which are taken out of `given` -> the executor."""
    from ..pipeline.executor_local import LocalExecutor
    from ..pipeline.executor_ray import RayExecutor
    from ..pipeline.executor_slurm import SlurmExecutor

    gigabytes = given.pop("memory_per_worker")
    memory = None if gigabytes is None else int(gigabytes * 1e9)
    address, partition, minutes = given.pop("ray_address"), given.pop("partition"), given.pop("minutes")
    parameters = dict(setting(text, option="--sbatch") for text in given.pop("sbatch"))
    if name == "ray":
        return RayExecutor(address=address, gpus_per_worker=gpus or 1.0, memory_per_worker=memory)
    if name == "slurm":
        return SlurmExecutor(
            partition=partition,
            minutes=minutes,
            memory_per_worker=memory,
            gpus_per_worker=int(gpus or 0),
            parameters=parameters,
        )
    return LocalExecutor()


def setting(text: str, *, option: str) -> tuple[str, Any]:
    """KEY=VALUE -> (key, value); the value as JSON where it is, else as text."""
    from ..errors import InputError

    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"{option} {text!r}: expected KEY=VALUE")
    try:
        return key.replace("-", "_"), json.loads(value)
    except ValueError:
        return key.replace("-", "_"), value
