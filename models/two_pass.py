"""A batch and a loss on its score matrix -> exact gradients in the memory of one tile.

Pass 1 scores all I×C pairs in tiles from detached encodings, without gradient; the loss on that matrix, as a
leaf, gives dL/dS. Pass 2 scores with gradient, chunk by chunk, only the pairs whose dL/dS is not zero, and
pushes dL/dS through them into the encodings, then once through the encoders. By the chain rule loss and
gradient are those of one pass over the whole matrix, for any loss. A loss on hardest negatives leaves at most
3 pairs per caption: about a third of the arithmetic (one pass 3·B², two passes B² + 9·B).

A pair is scored twice, so its score must come out the same: dropout and batch statistics belong into the
encoders, which run once. A scorer that has either is refused.

Gradients are added to `.grad` in several backward calls. Under DistributedDataParallel, average them after
the step instead of letting its hooks do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..schema import Batch
from .encoded import Encoded
from .losses import Loss, Pairs
from .matcher import ONCE_PER_BATCH, Matcher
from .tiles import score_matrix, tile_pairs, tiles

CPU_CHUNK_BYTES = 64 << 20
GPU_CHUNK_BYTES = 1 << 30

Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Step:
    """What one training step saw. Its gradients are in the parameters."""

    loss: Tensor  # scalar, of the scores
    aux: Mapping[str, Tensor]  # the model's further losses
    scores: Tensor  # (I, C)
    scored_again: int  # how many pairs needed a gradient
    scored: int  # how many pairs were scored at all


@dataclass(frozen=True, slots=True)
class ScoreGradients:
    """The loss on a score matrix, and its gradients with respect to the encodings."""

    loss: Tensor
    scores: Tensor  # (I, C)
    images: Encoded
    texts: Encoded
    scored_again: int


def training_step(
    model: Matcher,
    batch: Batch,
    *,
    loss: Loss,
    step: int = 0,
    scale: float | Tensor = 1.0,
    autocast: Autocast = nullcontext,
    chunk_bytes: int | None = None,
) -> Step:
    """The cheaper of the two ways: one pass where the whole matrix fits the memory of a chunk, else two."""
    regions, words = batch.regions.shape[1], int(batch.lengths.max())
    anchors = batch.anchors
    pairs = anchors * (min(anchors, len(batch.image_ids)) + (0 if batch.joined is None else 4))
    needed = 4 * pairs * model.pair_floats(regions, words, gradient=True)
    way = one_pass_step if needed <= _chunk_bytes(chunk_bytes, batch.regions) else two_pass_step
    return way(model, batch, loss=loss, step=step, scale=scale, autocast=autocast, chunk_bytes=chunk_bytes)


def one_pass_step(
    model: Matcher,
    batch: Batch,
    *,
    loss: Loss,
    step: int = 0,
    scale: float | Tensor = 1.0,
    autocast: Autocast = nullcontext,
    chunk_bytes: int | None = None,
) -> Step:
    """Autograd over the whole matrix: for models whose pairs cost little, and the oracle of two_pass_step."""
    with autocast():
        images = model.encode_image(batch.regions, batch.region_mask, batch.boxes)
        texts = model.encode_text(batch.tokens, batch.lengths)
        aux = model.aux_losses(batch, images, texts)
        pairs = Pairs.of(batch)
        scores = _whole_matrix(model, images, texts, pairs)
    value = loss(scores, pairs, step)
    torch.autograd.backward((value + sum(aux.values())) * scale)
    scored = _count(scores, pairs)
    return Step(value.detach(), detached(aux), scores.detach(), scored, scored)


def two_pass_step(
    model: Matcher,
    batch: Batch,
    *,
    loss: Loss,
    step: int = 0,
    scale: float | Tensor = 1.0,
    autocast: Autocast = nullcontext,
    tile_bytes: int | None = None,
    chunk_bytes: int | None = None,
) -> Step:
    """One batch -> its loss; the gradients of scale·(loss + auxiliary losses) are added to the parameters."""
    with autocast():
        images = model.encode_image(batch.regions, batch.region_mask, batch.boxes)
        texts = model.encode_text(batch.tokens, batch.lengths)
        aux = model.aux_losses(batch, images, texts)
    pairs = Pairs.of(batch)
    found = score_gradients(
        model,
        images.detach(),
        texts.detach(),
        pairs=pairs,
        loss=loss,
        step=step,
        scale=scale,
        autocast=autocast,
        tile_bytes=tile_bytes,
        chunk_bytes=chunk_bytes,
    )
    push_into_encoders([(images, found.images), (texts, found.texts)], aux, scale=scale)
    return Step(found.loss, detached(aux), found.scores, found.scored_again, _count(found.scores, pairs))


def score_gradients(
    model: Matcher,
    images: Encoded,
    texts: Encoded,
    *,
    pairs: Pairs,
    loss: Loss,
    step: int = 0,
    scale: float | Tensor = 1.0,
    autocast: Autocast = nullcontext,
    tile_bytes: int | None = None,
    chunk_bytes: int | None = None,
) -> ScoreGradients:
    """Detached encodings -> the loss and their gradients; the scorer's own are added to its parameters."""
    forbid_random_scores(model)
    with autocast():
        scores = _scored(model, images, texts, pairs, tile_bytes=tile_bytes)
    leaf = scores.requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, pairs, step)
    (gradient,) = torch.autograd.grad(value, leaf)
    into_images, into_texts, again = push_gradients(
        model,
        images,
        texts,
        gradient * scale,
        online=(pairs.positive.shape[0], pairs.positive.shape[1]),
        autocast=autocast,
        chunk_bytes=chunk_bytes,
    )
    return ScoreGradients(value.detach(), scores.detach(), into_images, into_texts, again)


def push_gradients(
    model: Matcher,
    images: Encoded,
    texts: Encoded,
    gradient: Tensor,
    *,
    online: tuple[int, int] | None = None,
    autocast: Autocast = nullcontext,
    chunk_bytes: int | None = None,
) -> tuple[Encoded, Encoded, int]:
    """Pass 2: dL/dS (I, C) -> the gradients of both encodings, and how many pairs were scored for them.

    `online` says how many images and captions are not mined negatives; by default all.
    """
    into_images, into_texts = _zeros(images), _zeros(texts)
    again = 0
    bound = _chunk_bytes(chunk_bytes, images.mask)
    for part in _parts(model, images, texts, gradient, online=online, chunk_bytes=bound):
        part_images, part_texts = _leaves(images.index(part.rows)), _leaves(part.texts)
        with torch.enable_grad(), autocast():
            part_scores = part.score(part_images, part_texts)
        torch.autograd.backward(part_scores, part.gradient.to(part_scores.dtype))
        _add(into_images, part.rows, part_images)
        _add(into_texts, part.columns, part_texts)
        again += part.gradient.numel()
    return into_images, into_texts, again


def push_into_encoders(
    encoded: Sequence[tuple[Encoded, Encoded]], aux: Mapping[str, Tensor], *, scale: float | Tensor
) -> None:
    """Encodings with their gradients, and the auxiliary losses -> once through the encoders."""
    roots: list[Tensor] = [value * scale for value in aux.values()]
    gradients: list[Tensor | None] = [None] * len(roots)
    for encoding, gradient in encoded:
        for root, value in zip(encoding.floats(), gradient.floats(), strict=True):
            if root.requires_grad:
                roots.append(root)
                gradients.append(value.to(root.dtype))
    torch.autograd.backward(roots, gradients)


def _count(scores: Tensor, pairs: Pairs) -> int:
    """How many pairs of a matrix were scored."""
    return pairs.positive.numel() + len(_mined(pairs, scores)[0])


def _online(images: Encoded, texts: Encoded, pairs: Pairs) -> tuple[Encoded, Encoded]:
    """Those whose every pair is scored; mined negatives that joined the batch stand behind them."""
    rows, columns = pairs.positive.shape
    return images.index(slice(0, rows)), texts.index(slice(0, columns))


def _mined(pairs: Pairs, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the mined pairs of a matrix, each once, without those in the online part."""
    wanted = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    if (mined := pairs.offline) is not None:
        wanted[mined.images[mined.real], mined.captions[mined.real]] = True
        pairs.online(wanted).zero_()
    rows, columns = wanted.nonzero(as_tuple=True)
    return rows, columns


def _whole_matrix(model: Matcher, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
    """Scores (I, C) with gradient; 0 where no pair is asked for."""
    block = model.score_block(*_online(images, texts, pairs))
    block = block.to(torch.promote_types(block.dtype, torch.float32))
    if pairs.offline is None:
        return block
    scores = block.new_zeros(len(images), len(texts))
    scores[: block.shape[0], : block.shape[1]] = block
    rows, columns = _mined(pairs, scores)
    if len(rows):
        scores[rows, columns] = model.score_pairs(images.index(rows), texts.index(columns)).to(scores.dtype)
    return scores


@torch.no_grad()
def _scored(
    model: Matcher, images: Encoded, texts: Encoded, pairs: Pairs, *, tile_bytes: int | None
) -> Tensor:
    """The same without gradient, in tiles."""
    block = score_matrix(model, *_online(images, texts, pairs), tile_bytes=tile_bytes)
    if pairs.offline is None:
        return block
    scores = block.new_zeros(len(images), len(texts))
    scores[: block.shape[0], : block.shape[1]] = block
    bound = _chunk_bytes(tile_bytes, images.mask)
    for some_rows, some, chunk_texts in _chunks(model, images, texts, _mined(pairs, scores), bound):
        found = model.score_pairs(images.index(some_rows), chunk_texts)
        scores[some_rows, some] = found.to(scores.dtype)
    return scores


@dataclass(frozen=True, slots=True)
class _Part:
    """Pairs that go through the second pass together."""

    rows: Tensor | slice
    columns: Tensor
    texts: Encoded
    gradient: Tensor  # (pairs,) or (rows, columns)
    score: Callable[[Encoded, Encoded], Tensor]


def _parts(
    model: Matcher,
    images: Encoded,
    texts: Encoded,
    gradient: Tensor,
    *,
    online: tuple[int, int] | None,
    chunk_bytes: int,
) -> Iterator[_Part]:
    needed = gradient != 0
    height, width = online or gradient.shape
    block = needed[:height, :width]
    if 2 * int(block.sum()) > block.numel():
        # Mostly needed: whole tiles share the work of a block, which pairs would repeat.
        parts = images.index(slice(0, height)), texts.index(slice(0, width))
        for tile in tiles(model, *parts, tile_bytes=chunk_bytes, gradient=True):
            rows = slice(tile.rows.start, min(tile.rows.stop, height))
            part = gradient[rows, tile.columns]
            yield _Part(rows, tile.columns, tile.texts, part, model.score_block)
        block.zero_()
        if not bool(needed.any()):
            return
    some, columns = needed.nonzero(as_tuple=True)
    if not len(some):
        # No pair violates: one pair with gradient 0 leaves the zeros that one pass would leave in every
        # parameter.
        some = columns = torch.zeros(1, dtype=torch.int64, device=gradient.device)
    for of_images, of_texts, chunk_texts in _chunks(model, images, texts, (some, columns), chunk_bytes):
        yield _Part(of_images, of_texts, chunk_texts, gradient[of_images, of_texts], model.score_pairs)


def _chunks(
    model: Matcher, images: Encoded, texts: Encoded, wanted: tuple[Tensor, Tensor], chunk_bytes: int
) -> Iterator[tuple[Tensor, Tensor, Encoded]]:
    """Pairs (rows, columns) in chunks -> their rows, columns and captions, with little padding."""
    rows, columns = wanted
    if not len(rows):
        return
    lengths = texts.lengths[columns]
    order = lengths.argsort(stable=True)  # neighbours of like length, so that a chunk pads little
    rows, columns, lengths = rows[order], columns[order], lengths[order]
    size = tile_pairs(model, images, int(lengths[-1]), tile_bytes=chunk_bytes, gradient=True)
    for start in range(0, len(lengths), size):
        chunk = slice(start, min(start + size, len(lengths)))
        some = columns[chunk]
        yield rows[chunk], some, texts.index(some).trim(int(lengths[chunk.stop - 1]))


def _leaves(encoded: Encoded) -> Encoded:
    return encoded.map(
        lambda tensor: tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor
    )


def _zeros(encoded: Encoded) -> Encoded:
    """Where the gradients of chunks add up, at least in single precision."""
    return encoded.map(
        lambda tensor: (
            torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
            if tensor.is_floating_point()
            else tensor
        )
    )


def _add(total: Encoded, rows: Tensor | slice, leaves: Encoded) -> None:
    cut = total.trim(leaves.mask.shape[1])
    for into, leaf in zip(cut.floats(), leaves.floats(), strict=True):
        if leaf.grad is None:
            continue
        if isinstance(rows, slice):
            into[rows] += leaf.grad
        else:
            into.index_add_(0, rows, leaf.grad.to(into.dtype))


def _chunk_bytes(given: int | None, like: Tensor) -> int:
    if given is not None:
        return given
    return CPU_CHUNK_BYTES if like.device.type == "cpu" else GPU_CHUNK_BYTES


def detached(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in losses.items()}


def forbid_random_scores(model: Matcher) -> None:
    for name, module in model.named_modules():
        if name.split(".")[0] in ONCE_PER_BATCH or not module.training:
            continue
        dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if dropout or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{name} ({type(module).__name__}) gives a pair another score in the second pass; "
                "a scorer has no dropout and no batch statistics: move it into the encoders"
            )
