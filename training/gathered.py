"""A batch on each rank -> the step of their union, in which every rank's captions are everybody's negatives.

Each rank scores its own images with all captions. The rows of the score matrix are gathered, the loss and its
gradient come out alike everywhere, and each rank pushes its own rows' gradient through its own pairs. What
that gives the captions of others is summed and handed back. After `Ranks.sum_gradients` the gradients are
those of one process with the whole batch.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..models.encoded import Encoded
from ..models.losses import Loss, Pairs
from ..models.matcher import Matcher
from ..models.tiles import score_matrix
from ..models.two_pass import (
    Autocast,
    Step,
    detached,
    forbid_random_scores,
    push_gradients,
    push_into_encoders,
)
from ..schema import Batch
from .ranks import Ranks


def gathered_step(
    model: Matcher,
    batch: Batch,
    *,
    ranks: Ranks,
    loss: Loss,
    step: int = 0,
    scale: float | Tensor = 1.0,
    aux_scale: float | Tensor = 1.0,
    autocast: Autocast = nullcontext,
) -> Step:
    """This rank's share of the step; `scale` is for the whole loss, `aux_scale` for the further ones."""
    forbid_random_scores(model)
    with autocast():
        images = model.encode_image(batch.regions, batch.region_mask, batch.boxes)
        texts = model.encode_text(batch.tokens, batch.lengths)
        aux = model.aux_losses(batch, images, texts)
    own, all_texts = images.detach(), _gather_texts(texts.detach(), ranks)
    with autocast():
        rows = score_matrix(model, own, all_texts)  # (own images, all captions)
    scores = gather_rows(rows, ranks).requires_grad_()
    with torch.enable_grad():
        value = loss(scores, _all_pairs(batch, ranks), step)
    (gradient,) = torch.autograd.grad(value, scores)
    first = _before(len(rows), ranks, rows.device)
    gradient = gradient[first : first + len(rows)] * scale
    into_images, into_texts, again = push_gradients(model, own, all_texts, gradient, autocast=autocast)
    for total in into_texts.floats():
        dist.all_reduce(total)
    first = _before(len(texts), ranks, rows.device)
    own_texts = into_texts.index(slice(first, first + len(texts))).trim(texts.mask.shape[1])
    push_into_encoders([(images, into_images), (texts, own_texts)], aux, scale=aux_scale)
    return Step(value.detach(), detached(aux), scores.detach(), again, rows.numel())


def _all_pairs(batch: Batch, ranks: Ranks) -> Pairs:
    image_ids = gather_rows(batch.image_ids, ranks)
    first = _before(len(batch.image_ids), ranks, batch.image_ids.device)
    image_of = gather_rows(batch.caption_image + first, ranks)
    return Pairs(image_of, image_ids.unsqueeze(1) == image_ids[image_of])


def _gather_texts(texts: Encoded, ranks: Ranks) -> Encoded:
    """All ranks' captions, padded alike: ranks cut their batches to their own longest caption."""
    longest = torch.tensor(texts.mask.shape[1], device=texts.mask.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return texts.pad(int(longest)).map(lambda tensor: gather_rows(tensor, ranks))


def gather_rows(tensor: Tensor, ranks: Ranks) -> Tensor:
    """(n of each rank, …) -> (all n, …), in the order of the ranks; n may differ."""
    counts = _counts(len(tensor), ranks, tensor.device)
    room = F.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, max(counts) - len(tensor)]).contiguous()
    room = room.to(torch.uint8) if tensor.dtype == torch.bool else room  # no backend gathers booleans
    parts = [torch.empty_like(room) for _ in counts]
    dist.all_gather(parts, room)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(tensor.dtype)


def _before(count: int, ranks: Ranks, device: torch.device) -> int:
    """How many rows the ranks before this one have."""
    return sum(_counts(count, ranks, device)[: ranks.rank])


def _counts(count: int, ranks: Ranks, device: torch.device) -> list[int]:
    found = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(ranks.world_size)]
    dist.all_gather(found, torch.tensor(count, device=device))
    return [int(one) for one in found]
