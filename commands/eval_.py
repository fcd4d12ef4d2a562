"""`camp eval`: runs, or anybody's score matrix -> recall in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import DATASET, FILE, FOLDER, debug_option, json_option, print_json, say


@click.command()
@click.argument("runs", type=FOLDER, nargs=-1, metavar="[RUN]...")
@click.option("--scores", type=FILE, help="Instead of RUN: a .npy matrix, images × captions, anybody's.")
@click.option("--captions-per-image", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--dataset", type=DATASET, help="The data set [default: the run's].")
@click.option("--split", default="test", show_default=True)
@click.option("--folds", type=click.IntRange(min=1), default=1, show_default=True, help="COCO 1K: 5.")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True)
@click.option("--ensemble", type=FOLDER, multiple=True, metavar="RUN", help="Mean score with these runs.")
@click.option("--candidates", type=FOLDER, metavar="RUN", help="A cheap run ranks, RUN re-scores its top.")
@click.option("--top", "tops", multiple=True, default=["10%"], show_default=True, help="10% or 50; repeat.")
@click.option("--eccv", is_flag=True, help="COCO's test split: also CxC and ECCV Caption.")
@click.option("--pmrp", type=FOLDER, metavar="DIR", help="With --eccv: the folder of PMRP's pm_*.json.")
@click.option("--save-scores", type=FILE, help="Write the matrix as .npy.")
@click.option(
    "--keep-scores/--no-keep-scores",
    default=None,
    help="Keep the matrix in RUN/scores as it grows: a killed evaluation goes on [default: the long ones].",
)
@click.option("--half", is_flag=True, help="Keep scores in 16 bits; what becomes equal counts as a tie.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the scorer: minutes first, then faster.")
@click.option(
    "--bootstrap",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Samples for the 95% intervals, 0 for none.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
@debug_option
def command(runs: tuple[Path, ...], scores: Path | None, as_json: bool, **given: Any) -> None:
    """Measure: R@1/5/10, median and mean rank, rsum, both directions.

    Ties count against the model. Folds are consecutive images, as Karpathy's. Several RUNs, of several seeds:
    each, and their mean and standard deviation. Under torchrun every process scores a part of the rows.
    """
    if bool(runs) == (scores is not None):
        raise click.UsageError("Give either RUN or --scores FILE.npy.")
    single = [name for name in ("candidates", "ensemble", "eccv", "save_scores") if given[name]]
    if len(runs) > 1 and single:
        raise click.UsageError(f"--{single[0].replace('_', '-')} goes with one RUN, found {len(runs)}.")
    from ..evaluation.eval_ranks import eval_ranks

    with eval_ranks() as ranks:
        given["ranks"] = ranks
        if given["candidates"] or scores:
            if ranks.first:
                _measure_alone(runs, scores, as_json=as_json, given=given)
            return
        measured = [_measure(run, given) for run in runs]
        if not ranks.first:
            return
    if len(runs) > 1:
        _print_seeds(runs, measured, as_json=as_json)
    else:
        _print(measured[0], as_json=as_json)


def _measure_alone(
    runs: tuple[Path, ...], scores: Path | None, *, as_json: bool, given: dict[str, Any]
) -> None:
    """What one process does: reranking, and a matrix that exists."""
    if given["candidates"]:
        _rerank(runs[0] if runs else None, as_json=as_json, given=given)
        return
    assert scores is not None
    matrix, owners = _matrix_of_file(scores, given)
    _print(_metrics(matrix, owners, None, given), as_json=as_json)


def _measure(run: Path, given: dict[str, Any]) -> dict[str, Any]:
    matrix, owners = _matrix_of_runs(run, given)
    return _metrics(matrix, owners, run, given) if given["ranks"].first else {}


def _metrics(matrix: Any, owners: Any, run: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    from ..evaluation.cross_rank import cross_rank_histogram
    from ..evaluation.recall import evaluate

    metrics = evaluate(matrix, owners, folds=given["folds"], bootstrap=given["bootstrap"], seed=given["seed"])
    metrics["cross_ranks"] = cross_rank_histogram(matrix, owners)
    if run is not None and (labels := _labels(matrix, run, given)):
        metrics["labels"] = labels
    if given["eccv"]:
        metrics["eccv"] = _eccv(matrix, run, given)
    return metrics


def _print(metrics: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(metrics)
    else:
        print_recall(metrics)


def _matrix_of_file(path: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    from ..evaluation.score_file import caption_owners, read_scores

    matrix = read_scores(path)
    owners = caption_owners(
        matrix.shape,
        captions_per_image=given["captions_per_image"],
        dataset=given["dataset"],
        split=given["split"],
    )
    return matrix, owners


def _matrix_of_runs(run: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    from ..evaluation.run_scores import ensemble_scores
    from ..progress import no_progress, terminal_progress

    members = [_open(folder, given) for folder in (run, *given["ensemble"])]
    rows = members[0].rows
    first = given["ranks"].first
    if rows.missing and first:
        say(f"note: {rows.missing:,} images of the split have no features and are left out")
    if rows.cut_captions and first:
        say(f"note: {rows.cut_captions:,} captions are longer than the model reads and are cut")
    matrix = ensemble_scores(
        members,
        keep=given["keep_scores"],
        dtype="float16" if given["half"] else "float32",
        ranks=given["ranks"],
        progress=terminal_progress if first else no_progress,
    )
    if given["save_scores"] and first:
        import numpy as np

        from ..files import atomic_writer

        with atomic_writer(given["save_scores"]) as stream:
            np.save(stream, matrix)
    return matrix, rows.caption_image


def _open(folder: Path, given: dict[str, Any]) -> Any:
    from ..evaluation.run_folder import open_run
    from ..evaluation.run_scores import open_run_scores

    opened = open_run_scores(
        open_run(folder),
        split=given["split"],
        dataset=given["dataset"],
        checkpoint=given["checkpoint"],
        device=given["ranks"].device,
    )
    if given["compiled"]:
        opened.model.compile_scores()
    return opened


def _labels(matrix: Any, run: Path, given: dict[str, Any]) -> dict[str, Any] | None:
    """MAP, NDCG and Micro-F1, where the data set has labels."""
    from ..evaluation.run_folder import open_run
    from ..evaluation.split_labels import measure_labels

    dataset = open_run(run).dataset(given["dataset"])
    if not dataset.label_names:
        return None
    opened = _open(run, given)
    other = "val" if given["split"] != "val" and "val" in dataset.splits else None
    chosen_on = _open(run, {**given, "split": other}) if other else None
    return measure_labels(matrix, opened.rows, dataset, run=opened, chosen_on=chosen_on)


def _rerank(run: Path | None, *, as_json: bool, given: dict[str, Any]) -> None:
    from ..evaluation.run_scores import rerank_runs

    if run is None:
        raise click.UsageError("--candidates goes with RUN, the one that re-scores.")
    rows = rerank_runs(_open(given["candidates"], given), _open(run, given), tops=given["tops"])
    if as_json:
        print_json(rows)
        return
    titles = f"{'top':>6} {'pairs':>7} {'seconds':>8} {'a query':>9}"
    click.echo(f"{titles}   {'caption R@1/5/10':<18} {'image R@1/5/10':<18} {'rsum':>6}")
    for row in rows:
        recalls = [
            "/".join(f"{row[direction][cutoff]:.1f}" for cutoff in ("r@1", "r@5", "r@10"))
            for direction in ("caption_retrieval", "image_retrieval")
        ]
        cost = f"{100 * row['pairs_share']:6.1f}% {row['seconds']:8.2f} {1000 * row['query_seconds']:6.1f} ms"
        click.echo(f"{row['top']:>6} {cost}   {recalls[0]:<18} {recalls[1]:<18} {row['rsum']:6.1f}")


def _eccv(matrix: Any, run: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Other annotators' judgements; rows and columns are those the matrix was made of."""
    from ..evaluation.eccv import coco_ids, eccv_metrics, load_judgements
    from ..manifests.dataset import Dataset

    judgements = load_judgements(given["pmrp"])
    if run is not None:
        from ..evaluation.run_folder import open_run

        dataset, rows = open_run(run).dataset(given["dataset"]), _open(run, given).rows
        images, captions = rows.image_ids, rows.caption_ids
    elif given["dataset"]:
        dataset = Dataset.open(given["dataset"])
        images = dataset.select_images([given["split"]])["image_id"].to_numpy()
        captions = dataset.select_captions([given["split"]])["caption_id"].to_numpy()
    else:
        raise click.UsageError("--eccv needs COCO's ids: give --dataset with --scores.")
    return eccv_metrics(matrix, *coco_ids(dataset, images, captions), judgements)


def _print_seeds(runs: tuple[Path, ...], measured: list[dict[str, Any]], *, as_json: bool) -> None:
    """Every run, then mean ± standard deviation."""
    from ..evaluation.recall import over_seeds

    summary = over_seeds(measured)
    if as_json:
        listed = [{"run": str(run), **metrics} for run, metrics in zip(runs, measured, strict=True)]
        print_json({"runs": listed, "over_runs": summary})
        return
    for run, metrics in zip(runs, measured, strict=True):
        click.echo(f"{run}")
        print_recall(metrics)
    click.echo(f"mean ± standard deviation of {len(runs)} runs")
    click.echo(f"{'':<18}{'R@1':>12}{'R@5':>12}{'R@10':>12}{'med r':>12}{'mean r':>14}")
    for direction in ("caption_retrieval", "image_retrieval"):
        cells = [f"{value['mean']:.1f} ± {value['std']:.1f}" for value in summary[direction].values()]
        widths = (12, 12, 12, 12, 14)
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        click.echo(f"{direction.replace('_', ' '):<18}{row}")
    click.echo(f"rsum {summary['rsum']['mean']:.1f} ± {summary['rsum']['std']:.1f}")


def print_recall(metrics: dict[str, Any]) -> None:
    """The table people know from the papers, with intervals."""
    click.echo(f"{'':<18}{'R@1':>7}{'R@5':>7}{'R@10':>7}{'med r':>8}{'mean r':>9}")
    for direction in ("caption_retrieval", "image_retrieval"):
        row = metrics[direction]
        recalls = "".join(f"{row[cutoff]:7.1f}" for cutoff in ("r@1", "r@5", "r@10"))
        click.echo(f"{direction.replace('_', ' '):<18}{recalls}{row['medr']:8.0f}{row['meanr']:9.1f}")
        if "ci" in metrics:
            halves = [(high - low) / 2 for low, high in metrics["ci"][direction].values()]
            click.echo(f"{'':<18}" + "".join(f"{'±' + format(half, '.1f'):>7}" for half in halves))
    folds = f", mean of {metrics['folds']} folds" if metrics["folds"] > 1 else ""
    click.echo(f"rsum {metrics['rsum']:.1f}{folds}")
    shares = "  ".join(f"{name} {share:.1f}%" for name, share in metrics.get("cross_ranks", {}).items())
    if shares:
        click.echo(f"cross-retrieval rank: {shares}")
    if labels := metrics.get("labels"):
        click.echo(f"{'':<18}{'MAP':>7}{'chance':>8}{'NDCG@500':>10}")
        for direction in ("caption_retrieval", "image_retrieval"):
            row = labels[direction]
            values = f"{row['map']:7.3f}{row['chance_map']:8.3f}{row['ndcg@500']:10.3f}"
            click.echo(f"{direction.replace('_', ' '):<18}{values}")
        if found := labels.get("micro_f1"):
            click.echo(f"Micro-F1 image {found['image']:.3f}, text {found['text']:.3f}")
    for direction, values in metrics.get("eccv", {}).items():
        listed = "  ".join(f"{name} {value:.1f}" for name, value in values.items())
        click.echo(f"{direction.replace('_', ' '):<18}{listed}")
