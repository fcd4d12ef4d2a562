"""Steps and validations -> metrics.jsonl, TensorBoard events, and the curve at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import write_atomic

METRICS_FILE = "metrics.jsonl"
CURVE_FILE = "curve.png"


class Journal:
    """One run's diary. A resumed run drops the lines behind its checkpoint: those steps happen again."""

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        path = folder / METRICS_FILE
        if resume_step is None:
            write_atomic(path, b"")
        else:
            kept = [entry for entry in read_journal(folder) if entry["step"] <= resume_step]
            write_atomic(path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        self._stream = path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder / "events"), purge_step=resume_step)

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        """One line; its numbers also become TensorBoard scalars."""
        self._stream.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._stream.flush()
        for name, value in _flat(values):
            self._events.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._stream.close()
        self._events.close()


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run so far; a last line that a kill cut off is left out."""
    path = folder / METRICS_FILE
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def draw_curve(folder: Path) -> Path | None:
    """A run's journal -> curve.png: loss, learning rate, and recall of the validations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = read_journal(folder)
    steps = [entry for entry in entries if entry["kind"] == "train"]
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    if not steps:
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot([entry["step"] for entry in steps], [entry["loss"] for entry in steps], linewidth=1)
    top.set_ylabel("loss")
    rate = top.twinx()
    rate.plot([e["step"] for e in steps], [e["lr"] for e in steps], color="0.7", linewidth=1)
    rate.set_ylabel("learning rate")
    for direction, style in (("caption_retrieval", "-"), ("image_retrieval", "--")):
        for cutoff in ("r@1", "r@5", "r@10"):
            bottom.plot(
                [entry["step"] for entry in validations],
                [entry[direction][cutoff] for entry in validations],
                style,
                marker=".",
                label=f"{direction.split('_')[0]} {cutoff.upper()}",
            )
    bottom.set_ylabel("validation recall, %")
    bottom.set_xlabel("step")
    if validations:
        bottom.legend(fontsize="x-small", ncols=2, loc="lower right")
    path = folder / CURVE_FILE
    figure.savefig(path, dpi=120)
    return path
