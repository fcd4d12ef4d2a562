"""`camp-data extract`: photographs -> region features in shards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import EXIT_INCOMPLETE
from .executor_options import EXECUTORS, choose_executor, cluster_options, setting
from .options import DATASET, debug_option, json_option, print_json, say

if TYPE_CHECKING:
    from ..manifests.dataset import Dataset
    from ..pipeline.executor_local import LocalExecutor
    from ..pipeline.executor_ray import RayExecutor
    from ..pipeline.executor_slurm import SlurmExecutor
    from ..pipeline.extract_estimate import ExtractEstimate
    from ..pipeline.extract_job import ExtractSummary
    from ..pipeline.extract_options import ExtractOptions
    from ..pipeline.live_view import View

_SHOWN_REASONS = 10


@click.command()
@click.argument("location", metavar="DATASET|IMAGE_DIR")
@click.option("--out", type=DATASET, help="The data set to make of IMAGE_DIR [default: DATASET itself].")
@click.option("--model", default="scenes-tiny", show_default=True, help="The extractor, e.g. vg-r101-c4.")
@click.option("--weights", metavar="FILE|URL", help="The model's weights [default: those of the package].")
@click.option("--sha256", metavar="HEX", help="What the weights' checksum must be; needed for a URL.")
@click.option("--name", help="What the features are called [default: from the model's name].")
@click.option("--regions", type=click.IntRange(min=1), help="Regions per image [default: 36].")
@click.option(
    "--min-regions", type=click.IntRange(min=1), help="Adaptive: at least so many, with --max-regions."
)
@click.option("--max-regions", type=click.IntRange(min=1), help="Adaptive: at most so many.")
@click.option(
    "--short",
    type=click.Choice(["pad-zero", "pad-repeat", "error"]),
    default="pad-zero",
    show_default=True,
    help="What an image with fewer regions gets.",
)
@click.option(
    "--select",
    type=click.Choice(["anderson", "maxnms", "score"]),
    default="anderson",
    show_default=True,
    help="How regions are chosen.",
)
@click.option(
    "--boxes",
    type=click.Choice(["proposal", "regressed"]),
    default="proposal",
    show_default=True,
    help="Which boxes are kept.",
)
@click.option("--both-boxes", is_flag=True, help="Keep the regressed boxes beside the proposals.")
@click.option(
    "--labels/--no-labels", default=True, show_default=True, help="Keep classes, attributes and scores."
)
@click.option("--min-size", type=click.IntRange(min=1), help="Shorter side the image is resized to.")
@click.option("--max-size", type=click.IntRange(min=1), help="Bound of the longer side.")
@click.option("--no-upscale", is_flag=True, help="Never enlarge an image.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the model's own.")
@click.option(
    "--exif/--no-exif", default=True, show_default=True, help="Turn images upright by their EXIF tag."
)
@click.option("--max-pixels", type=click.IntRange(min=1), help="Refuse larger images [default: 100 million].")
@click.option("--image-seconds", type=float, default=60.0, show_default=True, help="Time limit of one image.")
@click.option("--store", type=click.Choice(["arrow", "hdf5"]), default="arrow", show_default=True)
@click.option("--dtype", type=click.Choice(["float16", "float32"]), default="float16", show_default=True)
@click.option(
    "--shard-size", type=click.IntRange(min=1), default=500, show_default=True, help="Images per shard."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--compile", is_flag=True, help="Compile the network with torch.compile.")
@click.option(
    "--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Images per forward pass."
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads per worker."
)
@click.option(
    "--decoders",
    type=click.IntRange(min=1),
    help="Decoding threads per worker [default: 2 beside a GPU, else 1].",
)
@click.option("--splits", metavar="train,val", help="Only these splits [default: all].")
@click.option("--executor", type=EXECUTORS, default="local", show_default=True)
@cluster_options
@click.option("--gpus-per-worker", type=float, help="Ray, Slurm [default: 1 where GPUs are used].")
@click.option("--print-sbatch", is_flag=True, help="Slurm: print an array script instead of submitting.")
@click.option("--workers", type=click.IntRange(min=1), help="How many [default: one per GPU, else per core].")
@click.option("--retry-failed", is_flag=True, help="Do failed images again; their shards are rewritten.")
@click.option("--max-errors", metavar="N|P%", help="Stop when more images failed [default: never].")
@click.option("--dry-run", is_flag=True, help="Show the plan and what it would take; write nothing.")
@click.option("--log-json", is_flag=True, help="Progress as JSON lines on stderr.")
@json_option
@debug_option
def command(
    location: str,
    out: Path | None,
    name: str | None,
    splits: str | None,
    executor: str,
    workers: int | None,
    retry_failed: bool,
    max_errors: str | None,
    dry_run: bool,
    print_sbatch: bool,
    log_json: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Extract region features from the photographs of DATASET (a folder or a URL), or of a folder of images.

    Run it again to go on after any interruption; what is done stays. Images that cannot be used are recorded
    with their reason and counted at the end (exit code 3).
    """
    from ..pipeline.extract_estimate import estimate_extraction
    from ..pipeline.extract_job import extract_features

    gpus = given.pop("gpus_per_worker")
    if gpus is None and given["device"] == "cuda":
        gpus = 1
    chosen = choose_executor(executor, given, gpus=gpus)
    options = _options(given)
    dataset = _dataset(location, out, dry_run=dry_run)
    wanted = None if splits is None else [split.strip() for split in splits.split(",") if split.strip()]
    if dry_run:
        estimate = estimate_extraction(
            dataset, name=name, options=options, splits=wanted, workers=workers, retry_failed=retry_failed
        )
        print_json(estimate.to_json()) if as_json else _print_estimate(estimate)
        return 0
    if print_sbatch:
        return _print_sbatch(chosen, dataset, name, options, wanted, workers, retry_failed)
    summary = extract_features(
        dataset,
        name=name,
        options=options,
        splits=wanted,
        executor=chosen,
        workers=workers,
        retry_failed=retry_failed,
        max_errors=_error_limit(max_errors, dataset, wanted),
        view=_view(log_json=log_json),
    )
    print_json(summary.to_json()) if as_json else _print_summary(summary)
    return 0 if summary.complete else EXIT_INCOMPLETE


def _options(given: dict[str, Any]) -> ExtractOptions:
    from ..errors import InputError
    from ..extractors.extractor import RegionPolicy
    from ..pipeline.extract_options import ExtractOptions

    regions, low, high = given.pop("regions"), given.pop("min_regions"), given.pop("max_regions")
    if regions is not None and (low is not None or high is not None):
        raise InputError(
            "--regions and --min-regions/--max-regions exclude each other; give one or the other"
        )
    if (low is None) != (high is None):
        raise InputError("--min-regions and --max-regions belong together; give both, e.g. 10 and 100")
    policy = RegionPolicy(
        min_regions=low or regions or 36,
        max_regions=high or regions or 36,
        select=given.pop("select"),
        boxes=given.pop("boxes"),
        with_labels=given.pop("labels"),
        with_both_boxes=given.pop("both_boxes"),
    )
    settings = dict(setting(text, option="--set") for text in given.pop("settings"))
    for key in ("min_size", "max_size"):
        value = given.pop(key)
        if value is not None:
            settings[key] = value
    if given.pop("no_upscale"):
        settings["upscale"] = False
    weights = given.pop("weights")
    if weights is not None and Path(weights).exists():
        weights = str(Path(weights).resolve())
    return ExtractOptions(policy=policy, settings=settings, weights=weights, **given)


def _print_sbatch(
    executor: LocalExecutor | RayExecutor | SlurmExecutor,
    dataset: Dataset,
    name: str | None,
    options: ExtractOptions,
    splits: list[str] | None,
    workers: int | None,
    retry_failed: bool,
) -> int:
    from ..errors import InputError
    from ..pipeline.executor_slurm import SlurmExecutor
    from ..pipeline.extract_job import write_script

    if not isinstance(executor, SlurmExecutor):
        raise InputError("--print-sbatch is for --executor slurm; add it, or leave out --print-sbatch")
    script = write_script(
        dataset,
        executor=executor,
        name=name,
        options=options,
        splits=splits,
        workers=workers,
        retry_failed=retry_failed,
    )
    click.echo(script, nl=False)
    return 0


def _dataset(location: str, out: Path | None, *, dry_run: bool) -> Dataset:
    """A data set as it is, or a folder of photographs made into one."""
    from ..errors import InputError
    from ..manifests.dataset import DATASET_FILE, Dataset
    from ..manifests.importing import append_dataset, import_dataset
    from ..pipeline.remote_dataset import open_dataset
    from ..progress import terminal_progress

    if "://" in location:
        if out is not None:
            raise InputError(
                f"{location}: a data set behind a URL takes its own features; leave out --out {out}"
            )
        return open_dataset(location)
    source = Path(location)
    if (source / DATASET_FILE).exists():
        if out is not None and out.resolve() != source.resolve():
            raise InputError(f"{source} is a data set: its features go into it; leave out --out {out}")
        return Dataset.open(source)
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; expected a data set or a folder of photographs")
    if out is None:
        raise InputError(
            f"{source}: no data set, but a folder; say with --out DATASET where one is to be made"
        )
    if not (out / DATASET_FILE).exists():
        if dry_run:
            raise InputError(
                f"{out}: no data set yet; make it with 'camp-data import {source} --format folder'"
            )
        return import_dataset(source, format="folder", out=out, progress=terminal_progress).dataset
    dataset = Dataset.open(out)
    root = dataset.header["image_roots"][0]
    if root is None or (out / root).resolve() != source.resolve():
        raise InputError(f"{out}: holds a data set of other images than {source}; choose another --out")
    if dry_run:
        return dataset
    added = append_dataset(dataset, source, format="folder", progress=terminal_progress)
    if added.added_images:
        say(f"{out}: {added.added_images:,} new images found in {source}")
    return added.dataset


def _error_limit(text: str | None, dataset: Dataset, splits: list[str] | None) -> int | None:
    """N, or P% of the images asked for."""
    from ..errors import InputError

    if text is None:
        return None
    try:
        if not text.endswith("%"):
            limit = int(text)
        else:
            images = sum(
                counts["images"] for split, counts in dataset.counts.items() if not splits or split in splits
            )
            limit = int(float(text[:-1]) * images / 100)
    except ValueError:
        limit = -1
    if limit < 0:
        raise InputError(f"--max-errors {text!r}: expected a number such as 100, or a share such as 1%")
    return limit


def _view(*, log_json: bool) -> View:
    from ..pipeline.live_view import JsonView, PlainView, TerminalView

    if log_json:
        return JsonView(sys.stderr)
    return TerminalView() if sys.stderr.isatty() else PlainView(sys.stderr)


def _print_estimate(estimate: ExtractEstimate) -> None:
    from ..pipeline.live_view import clock_text

    per_image = estimate.seconds_per_image
    click.echo(f"{estimate.features}: {len(estimate.units):,} units to do, {estimate.units_done:,} done")
    for unit in estimate.units[:20]:
        click.echo(f"  {unit.shard:<14} {unit.images:>7,} images")
    if len(estimate.units) > 20:
        click.echo(f"  … and {len(estimate.units) - 20:,} more")
    click.echo(f"images   {estimate.images:,}")
    if per_image is None or estimate.seconds is None:
        click.echo("time     unknown: none of the images tried could be used")
    else:
        click.echo(
            f"time     {clock_text(estimate.seconds)} on {estimate.workers} worker(s), {estimate.device}: "
            f"{per_image:.3g} s an image, measured on {estimate.measured_images}"
        )
    click.echo(f"disk     {estimate.bytes / 1e6:,.1f} MB, {estimate.free_bytes / 1e9:,.1f} GB free")
    click.echo(
        f"memory   {estimate.memory_per_worker / 1e9:.2f} GB a worker, "
        f"{estimate.workers * estimate.memory_per_worker / 1e9:.2f} GB in all"
    )
    for warning in estimate.warnings():
        say(f"warning: {warning}")


def _print_summary(summary: ExtractSummary) -> None:
    from ..pipeline.live_view import clock_text

    click.echo(
        f"{summary.folder}: {summary.done:,} of {summary.images:,} images in {summary.units:,} shards, "
        f"{summary.bytes / 1e6:,.1f} MB"
    )
    if summary.units_now:
        click.echo(
            f"  {summary.units_now:,} shards in {clock_text(summary.seconds)}, "
            f"{summary.images_per_second:,.3g} images/s on {', '.join(summary.devices)}; "
            f"{summary.units_before:,} were there before"
        )
    else:
        click.echo("  everything was there already")
    if summary.failed:
        click.echo(
            f"  {summary.failed:,} images failed, as failures.parquet says; --retry-failed tries again"
        )
        for reason, count in list(summary.reasons.items())[:_SHOWN_REASONS]:
            click.echo(f"  {count:>8,}  {reason}")
        if len(summary.reasons) > _SHOWN_REASONS:
            click.echo(f"            … and {len(summary.reasons) - _SHOWN_REASONS} other reasons")
