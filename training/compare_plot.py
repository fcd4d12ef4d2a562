"""A comparison -> compare.png: R@K of every row against what it costs to train, to score and to store."""

from __future__ import annotations

from pathlib import Path

from ..evaluation.recall import CUTOFFS, DIRECTIONS
from .compare_table import Comparison

PLOT_FILE = "compare.png"
_COSTS = {
    "training_seconds": "training, seconds",
    "microseconds_per_pair": "scoring, µs per pair",
    "parameters": "parameters",
}
_WIDE = 10  # costs further apart than this need a logarithmic axis
_MARKERS = "osD^vP*Xph<>"


def draw_comparison(table: Comparison, out: Path) -> Path | None:
    """Two rows of panels, caption and image retrieval; nothing while no run has numbers.

    R@1 is drawn full, R@5 and R@10 paler above it; bars are one standard deviation over seeds.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    rows = [row for row in table.rows if row.recall]
    if not rows:
        return None
    figure = Figure(figsize=(13, 7 + 0.12 * max(0, len(rows) - 12)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(DIRECTIONS), len(_COSTS), sharey="row", squeeze=False)
    colours = colormaps["tab20" if len(rows) > 10 else "tab10"]
    for direction, line in zip(DIRECTIONS, panels, strict=True):
        for (cost, label), panel in zip(_COSTS.items(), line, strict=True):
            for number, row in enumerate(rows):
                recall, spent = row.recall, row.cost(cost)
                assert recall is not None
                assert spent is not None
                for cutoff, strength in zip(CUTOFFS, (1.0, 0.45, 0.25), strict=True):
                    value = recall[direction][f"r@{cutoff}"]
                    panel.errorbar(
                        spent["mean"],
                        value["mean"],
                        xerr=spent["std"] or None,
                        yerr=value["std"] or None,
                        fmt=_MARKERS[number % len(_MARKERS)],
                        color=colours(number % colours.N),
                        alpha=strength,
                        capsize=2,
                        label=row.name if cutoff == CUTOFFS[0] else None,
                    )
            spent_by_row = [spent["mean"] for row in rows if (spent := row.cost(cost))]
            if max(spent_by_row) > _WIDE * min(spent_by_row):
                panel.set_xscale("log")
            else:
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_xlabel(label)
            panel.grid(alpha=0.3)
        for cutoff in CUTOFFS:
            line[0].axhline(table.chance[direction][f"r@{cutoff}"], color="0.8", linestyle=":", linewidth=1)
        line[0].set_ylabel(f"{direction.replace('_', ' ')}: R@1, paler R@5, R@10, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    figure.suptitle(table.title, fontsize="medium")
    path = out / PLOT_FILE
    figure.savefig(path, dpi=110)
    return path
