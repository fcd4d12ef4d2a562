"""Scores of every image with every caption of a batch -> one loss.

Negatives are told by image id, never by the diagonal: two captions of one image are not negatives of each
other. Every caption stands for one positive pair; an image's hardest negative caption counts once for each of
its captions, as it would if the image stood in the batch that many times.

Sums over the batch are the papers' convention, and their learning rates assume them; reduction="mean" divides
by the number of captions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..schema import Batch

ANNEALING_RATE = 0.991  # η of ADAPT, Eq. 11
REDUCTIONS = ("sum", "mean")


@dataclass(frozen=True, slots=True)
class OfflinePairs:
    """Pairs that were mined for each of C captions T and their images I, of AOQ, one kind a row.

    With T₃ and I₃ mined for I and T, I₄ the image of T₃ and T₄ a caption of I₃, the kinds are (I, T₃),
    (I₃, T) and, for quintuplets, (I₃, T₃), (I₄, T₄).
    """

    images: Tensor  # (2 or 4, C) rows of the score matrix
    captions: Tensor  # (2 or 4, C) its columns
    real: Tensor  # (2 or 4, C) false where nothing was mined, or where the two belong together after all

    @staticmethod
    def of(batch: Batch, anchors: int) -> OfflinePairs:
        assert batch.negative_image is not None
        assert batch.negative_caption is not None
        own = torch.arange(anchors, device=batch.caption_image.device)
        image, caption = batch.negative_image[:anchors], batch.negative_caption[:anchors]
        images, captions = [batch.caption_image[:anchors], image], [caption, own]
        if batch.partner_caption is not None:
            of_caption = batch.caption_image[caption.clamp_min(0)]
            of_caption = of_caption.masked_fill(caption < 0, -1)
            images += [image, of_caption]
            captions += [caption, batch.partner_caption[:anchors]]
        rows, columns = torch.stack(images), torch.stack(captions)
        real = (rows >= 0) & (columns >= 0)
        rows, columns = rows.clamp_min(0), columns.clamp_min(0)
        real &= batch.image_ids[rows] != batch.image_ids[batch.caption_image[columns]]
        return OfflinePairs(rows, columns, real)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which scores are of matching pairs, for I images and C captions.

    Images and captions that joined the batch as mined negatives stand behind these, in a larger matrix; of
    that only the offline pairs are scored.
    """

    image_of: Tensor  # (C,) the row of each caption's image
    positive: Tensor  # (I, C) true where image and caption belong together
    offline: OfflinePairs | None = None

    @staticmethod
    def of(batch: Batch) -> Pairs:
        """By image id, so that an image that came twice (two ranks drew it) is nowhere its own negative."""
        image_of, image_ids, offline = batch.caption_image, batch.image_ids, None
        if batch.joined is not None:
            anchors = batch.anchors
            offline = OfflinePairs.of(batch, anchors)
            image_of = image_of[:anchors]
            image_ids = image_ids[: int(image_of.max()) + 1]
        return Pairs(image_of, image_ids.unsqueeze(1) == image_ids[image_of], offline)

    def online(self, scores: Tensor) -> Tensor:
        """The part of the score matrix in which every pair is scored."""
        images, captions = self.positive.shape
        return scores[:images, :captions]


Loss = Callable[[Tensor, Pairs, int], Tensor]
"""(scores (I, C), pairs, the number of steps done) -> a scalar."""


def matching_scores(scores: Tensor, pairs: Pairs) -> Tensor:
    return scores.gather(0, pairs.image_of.unsqueeze(0)).squeeze(0)  # (C,)


def hardest_negatives(scores: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Each caption's highest-scoring foreign caption (for its image) and foreign image, (C,) each.

    max over an axis, not amax: amax would share a tie's gradient among all its pairs, and a batch of equal
    scores would send every pair through the second pass. No negative at all gives minus infinity, hence no
    loss.
    """
    negatives = scores.masked_fill(pairs.positive, float("-inf"))
    return negatives.max(dim=1).values[pairs.image_of], negatives.max(dim=0).values


def _negative_counts(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """For each caption: how many captions are foreign to its image, how many images to itself, (C,) each."""
    foreign = ~pairs.positive
    return foreign.sum(dim=1)[pairs.image_of], foreign.sum(dim=0)


def bce_hardest(scores: Tensor, pairs: Pairs, step: int = 0) -> Tensor:
    """Hardest-negative binary cross-entropy on logits, Eq. 14 of CAMP: -> per-caption terms summed.

    Eq. 14 lacks its minus sign and takes the maximum of log(1 - m), the easiest negative; both are slips.
    With -log σ(x) = softplus(-x) and -log(1 - σ(x)) = softplus(x) nothing saturates, where clamped scores
    lose the gradient.
    """
    captions, images = hardest_negatives(scores, pairs)
    return (2 * F.softplus(-matching_scores(scores, pairs)) + F.softplus(captions) + F.softplus(images)).sum()


def bce_all(scores: Tensor, pairs: Pairs, step: int = 0) -> Tensor:
    """Binary cross-entropy with every negative, divided by their number per query (BCE w/o hardest)."""
    costs = F.softplus(scores).masked_fill(pairs.positive, 0)
    captions, images = _negative_counts(pairs)
    by_image = costs.sum(dim=1)[pairs.image_of] / captions.clamp_min(1)
    by_caption = costs.sum(dim=0) / images.clamp_min(1)
    return (2 * F.softplus(-matching_scores(scores, pairs)) + by_image + by_caption).sum()


def bce_annealed(scores: Tensor, pairs: Pairs, step: int = 0, *, rate: float = ANNEALING_RATE) -> Tensor:
    """bce_hardest whose negatives are the hardest with probability τ = 1 - rate^step, else drawn evenly.

    A fresh model ranks by noise; pushing down only its hardest negatives undoes what the positives lift, and
    the loss can sit at chance for hundreds of steps. Negatives drawn evenly teach it first. In expectation
    this mixes bce_all and bce_hardest, yet it never touches more than three pairs per caption. Draws are a
    pure function of the step.
    """
    tau = 1 - rate**step
    generator = torch.Generator().manual_seed(step)
    negatives = scores.masked_fill(pairs.positive, float("-inf"))
    by_query = []
    for axis in (1, 0):
        lots = torch.rand(scores.shape, generator=generator).to(scores.device)
        drawn = lots.masked_fill(pairs.positive, -1).argmax(dim=axis)
        take_hardest = torch.rand(drawn.shape, generator=generator).to(scores.device) < tau
        chosen = torch.where(take_hardest, negatives.argmax(dim=axis), drawn)
        by_query.append(negatives.gather(axis, chosen.unsqueeze(axis)).squeeze(axis))
    captions, images = by_query[0][pairs.image_of], by_query[1]
    return (2 * F.softplus(-matching_scores(scores, pairs)) + F.softplus(captions) + F.softplus(images)).sum()


def ranking_hardest(scores: Tensor, pairs: Pairs, step: int = 0, *, margin: float = 0.2) -> Tensor:
    """Hinge to the hardest negative of both directions, Eq. 12 of CAMP."""
    positives = matching_scores(scores, pairs)
    captions, images = hardest_negatives(scores, pairs)
    return ((margin + captions - positives).relu() + (margin + images - positives).relu()).sum()


def ranking_all(scores: Tensor, pairs: Pairs, step: int = 0, *, margin: float = 0.2) -> Tensor:
    """Hinge to every negative of both directions, Eq. 12–13 of ADAPT."""
    positives = matching_scores(scores, pairs)
    # One row per caption: its image's scores with the foreign captions.
    by_image = (margin + scores[pairs.image_of] - positives.unsqueeze(1)).relu()  # (C, C)
    by_caption = (margin + scores - positives).relu()  # (I, C)
    own = pairs.positive[pairs.image_of]
    return by_image.masked_fill(own, 0).sum() + by_caption.masked_fill(pairs.positive, 0).sum()


def annealed(
    scores: Tensor, pairs: Pairs, step: int = 0, *, margin: float = 0.2, rate: float = ANNEALING_RATE
) -> Tensor:
    """τ·hardest + (1 - τ)·all with τ = 1 - rate^step, Eq. 10–11 of ADAPT: gentle first, hardest later."""
    tau = 1 - rate**step
    hardest = ranking_hardest(scores, pairs, margin=margin)
    return tau * hardest + (1 - tau) * ranking_all(scores, pairs, margin=margin)


def no_pairs(scores: Tensor, pairs: Pairs, step: int = 0) -> Tensor:
    """Nothing is asked of the pairs: the model's own losses, on labels, teach it alone."""
    return scores.sum() * 0


LOSSES: dict[str, Callable[..., Tensor]] = {
    "bce_hardest": bce_hardest,
    "bce_all": bce_all,
    "bce_annealed": bce_annealed,
    "ranking_hardest": ranking_hardest,
    "ranking_all": ranking_all,
    "annealed": annealed,
    "none": no_pairs,
}
_HAS_MARGIN = ("ranking_hardest", "ranking_all", "annealed")
_IS_ANNEALED = ("annealed", "bce_annealed")


def build_loss(
    name: str,
    *,
    margin: float = 0.2,
    reduction: str = "sum",
    of_probabilities: bool = False,
    rate: float = ANNEALING_RATE,
) -> Loss:
    """A loss by name. `of_probabilities` puts a margin between σ(logits), as in the row MLP+Ranking loss.
    `rate` is for the annealed ones: the closer to 1, the longer they take to reach the hardest negatives.
    """
    if name not in LOSSES:
        raise InputError(f"loss {name!r}, expected one of {', '.join(LOSSES)}")
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction {reduction!r}, expected one of {', '.join(REDUCTIONS)}")
    if of_probabilities and name not in _HAS_MARGIN:
        raise InputError(f"loss {name!r} works on logits already; of_probabilities is for the ranking losses")
    options = {"margin": margin} if name in _HAS_MARGIN else {}
    if name in _IS_ANNEALED:
        options["rate"] = rate
    function = partial(LOSSES[name], **options)

    def loss(scores: Tensor, pairs: Pairs, step: int) -> Tensor:
        scores = pairs.online(scores)
        total = function(scores.sigmoid() if of_probabilities else scores, pairs, step)
        return total / len(pairs.image_of) if reduction == "mean" else total

    return loss


def chance_loss(name: str, captions: int, *, margin: float = 0.2, reduction: str = "sum") -> float | None:
    """The loss when all scores are equal (and 0 where they are logits): the mark of a collapsed model."""
    per_caption = {name: 4 * log(2) for name in LOSSES if name.startswith("bce")}.get(name)
    if name == "ranking_hardest":
        per_caption = 2 * margin
    if per_caption is None:
        return None
    return per_caption if reduction == "mean" else per_caption * captions
