"""A loss on the batch, and mined negatives beside it: offline triplets, quintuplets, adaptive weights.

Chen et al., "Adaptive Offline Quintuplet Loss for Image-Text Matching", ECCV 2020. Batches hold few hard
negatives; lists mined from the whole training split hold the hardest. For a positive pair (I, T) T₃ and I₃
are drawn from these lists, I₄ is the image of T₃ and T₄ a caption of I₃.

    triplet     online + [γ₂ + S(I, T₃) - S(I, T)]₊ + [γ₂ + S(I₃, T) - S(I, T)]₊
    quintuplet  the same + [γ₂ + S(I₃, T₃) - S(I, T)]₊ + [γ₂ + S(I₄, T₄) - S(I, T)]₊
    adaptive    quintuplet, and each hinge of the online loss weighs β - (S_off - S_on) / α: less, where the
                mined negative scores higher than the batch's hardest
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .losses import Loss, OfflinePairs, Pairs, build_loss, hardest_negatives, matching_scores

TERMS = ("triplet", "quintuplet", "adaptive")
_KINDS = {"triplet": 2, "quintuplet": 4, "adaptive": 4}


@dataclass(frozen=True, slots=True)
class OfflineTerms:
    """How mined negatives count. compat: weights with gradient and below 0, as in the released code."""

    terms: str = "adaptive"
    margin: float = 0.0  # γ₂
    alpha: float = 0.3
    beta: float = 1.5
    compat: bool = False


def build_offline_loss(
    name: str,
    offline: OfflineTerms,
    *,
    margin: float = 0.2,
    reduction: str = "sum",
    of_probabilities: bool = False,
    rate: float = 0.991,
) -> Loss:
    """The online loss called `name` plus the offline terms; adaptive weights belong to ranking_hardest."""
    if offline.terms not in TERMS:
        raise InputError(f"negatives.terms {offline.terms!r}, expected one of {', '.join(TERMS)}")
    adaptive = offline.terms == "adaptive"
    if adaptive and name != "ranking_hardest":
        raise InputError(
            f"negatives.terms 'adaptive' weighs the hinges of ranking_hardest, but loss.name is {name!r}; "
            "choose that, or terms 'quintuplet'"
        )
    online = build_loss(name, margin=margin, of_probabilities=of_probabilities, rate=rate)

    def loss(scores: Tensor, pairs: Pairs, step: int) -> Tensor:
        assert pairs.offline is not None, "offline losses need a batch with mined negatives"
        of_margin = scores.sigmoid() if of_probabilities else scores
        total = offline_terms(of_margin, pairs, pairs.offline, offline)
        if adaptive:
            total = total + adaptive_online(of_margin, pairs, pairs.offline, offline, margin=margin)
        else:
            total = total + online(scores, pairs, step)
        return total / len(pairs.image_of) if reduction == "mean" else total

    return loss


def offline_terms(scores: Tensor, pairs: Pairs, mined: OfflinePairs, offline: OfflineTerms) -> Tensor:
    """The hinges to the mined pairs, summed over the captions."""
    kinds = _KINDS[offline.terms]
    assert len(mined.images) >= kinds, f"{len(mined.images)} kinds of mined pairs, expected {kinds}"
    negatives = scores[mined.images[:kinds], mined.captions[:kinds]]  # (kinds, C)
    costs = (offline.margin + negatives - matching_scores(scores, pairs)).relu()
    return costs.masked_fill(~mined.real[:kinds], 0).sum()


def adaptive_online(
    scores: Tensor, pairs: Pairs, mined: OfflinePairs, offline: OfflineTerms, *, margin: float
) -> Tensor:
    """ranking_hardest whose hinges weigh β - (S_off - S_on) / α, Eq. 5; 1 where nothing was mined."""
    online = pairs.online(scores)
    own = matching_scores(online, pairs)
    total = online.new_zeros(())
    for kind, hardest in enumerate(hardest_negatives(online, pairs)):  # (I, T₃) and captions; (I₃, T), images
        mined_scores = scores[mined.images[kind], mined.captions[kind]]
        known = mined.real[kind] & torch.isfinite(hardest)
        weight = offline.beta - (mined_scores - hardest.masked_fill(~known, 0)) / offline.alpha
        weight = weight.masked_fill(~known, 1)
        if not offline.compat:
            weight = weight.detach().clamp_min(0)
        total = total + (weight * (margin + hardest - own).relu()).sum()
    return total
