"""Losses of steps -> the alarm when training has collapsed, and the stop when a loss is not finite."""

from __future__ import annotations

import math

from ..errors import CampError
from ..models.losses import chance_loss
from ..schema import Batch
from .config import LossConfig

_CLOSE = 1e-3  # relative distance to the chance loss that counts as being there


class DivergedError(CampError):
    """The loss is no longer a number."""


class CollapseWatch:
    """Counts steps whose loss is what equal scores give: 4·B·ln 2 for BCE, 2·B·margin for the hinge."""

    def __init__(self, loss: LossConfig, *, steps: int) -> None:
        self._loss, self._needed = loss, steps
        self.count = 0

    def see(self, loss: float, *, captions: int) -> str | None:
        """One more step; the message when the count is reached, once for each time it collapses."""
        chance = chance_loss(
            self._loss.name, captions, margin=self._loss.margin, reduction=self._loss.reduction
        )
        if chance is None or not math.isclose(loss, chance, rel_tol=_CLOSE):
            self.count = 0
            return None
        self.count += 1
        if self.count != self._needed:
            return None
        return (
            f"training has collapsed: for {self.count} steps the loss was {loss:.4g}, which is what equal "
            f"scores for all pairs give ({chance:.4g}); lower optimizer.lr, raise schedule.warmup_steps, or "
            "start with the annealed loss"
        )


def check_finite(loss: float, batch: Batch, *, step: int) -> None:
    """Stop before a bad step reaches the weights; the ids lead to the bad rows."""
    if math.isfinite(loss):
        return
    images = batch.image_ids.tolist()
    captions = batch.caption_ids.tolist()
    raise DivergedError(
        f"step {step}: the loss is {loss}; the last checkpoint is from before. Image ids {_some(images)}, "
        f"caption ids {_some(captions)}; run 'camp-data verify' on the data set, or lower optimizer.lr"
    )


def _some(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
