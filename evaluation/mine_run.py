"""A run and a split -> a file of the hardest negatives of every image and caption, resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..pipeline.negatives_file import Lists, read_header, write_negatives
from ..progress import ProgressFactory, no_progress
from .mining import hidden_pairs, mine_block, model_blocks, parts
from .mining_state import MiningState
from .run_folder import Run
from .run_scores import RunScores, open_run_scores
from .top_lists import TopLists, from_keys

GROUP = 8192  # queries written at once
SAVE_SECONDS = 60.0
SAVE_SHARE = 20  # saving takes at most one part in so many of the time


@dataclass(frozen=True)
class Mined:
    """What was written."""

    path: Path
    images: int
    captions: int
    top_captions: int
    top_images: int
    resumed: int  # images that an earlier, killed run had done
    already: bool  # the file was there, and is what was asked for


def mine_run(
    run: Run,
    *,
    out: Path,
    split: str = "train",
    top_captions: int = 300,
    top_images: int = 60,
    skip_identical: bool = False,
    dataset: Path | None = None,
    checkpoint: str = "best",
    device: torch.device,
    save_seconds: float = SAVE_SECONDS,
    progress: ProgressFactory = no_progress,
    say: Callable[[str], None] = lambda text: None,
) -> Mined:
    """Mine; a run that was killed goes on, and writes the same bytes."""
    measured = open_run_scores(run, split=split, dataset=dataset, checkpoint=checkpoint, device=device)
    rows = measured.rows
    images, captions = len(rows.image_ids), len(rows.caption_ids)
    header = _header(run, measured, split=split, dataset=dataset, checkpoint=checkpoint)
    header["top"] = {"captions": min(top_captions, captions), "images": min(top_images, images)}
    header["skip_identical"] = skip_identical
    result = {
        "path": out,
        "images": images,
        "captions": captions,
        "top_captions": header["top"]["captions"],
        "top_images": header["top"]["images"],
    }
    if out.exists():
        if read_header(out) != header:
            raise InputError(f"{out}: holds negatives that were mined otherwise; choose another --out")
        MiningState(out, header).remove()
        return Mined(**result, resumed=images, already=True)
    state = MiningState(out, header)
    columns = TopLists(captions, top=header["top"]["images"], device=device)
    if (saved := state.columns()) is not None:
        columns.load(saved, seen=state.done)
        say(f"going on: {state.done:,} of {images:,} images are done")
    resumed = state.done
    hidden = hidden_pairs(rows, skip_identical=skip_identical)
    waiting: list[Tensor] = []
    saved_at, pause = time.monotonic(), save_seconds
    with torch.no_grad(), progress("mining", images - resumed, "images") as bar:
        blocks, size = model_blocks(measured.model, rows, device=device)
        for block in parts(images, size):
            if block.stop <= resumed:
                continue
            keys = mine_block(
                blocks(block),
                block,
                hidden=hidden,
                captions=captions,
                top=header["top"]["captions"],
                columns=columns,
                device=device,
            )
            waiting.append(keys.cpu())
            bar.advance(block.stop - block.start)
            start = time.monotonic()
            if start - saved_at >= pause or block.stop == images:
                state.save(done=block.stop, rows=torch.cat(waiting), columns=columns.sorted_keys())
                waiting = []
                saved_at = time.monotonic()
                pause = max(save_seconds, SAVE_SHARE * (saved_at - start)) if save_seconds else 0
    write_negatives(out, header, _lists(state, measured))
    state.remove()
    return Mined(**result, resumed=resumed, already=False)


def _header(
    run: Run, measured: RunScores, *, split: str, dataset: Path | None, checkpoint: str
) -> dict[str, Any]:
    """What the lists depend on."""
    opened = run.dataset(dataset)
    features = measured.rows.features.index
    return {
        "dataset": {"name": opened.name, "fingerprint": opened.fingerprint},
        "split": split,
        "features": {"name": features.folder.name, "fingerprint": features.fingerprint},
        "vocab": {"name": run.vocab_name(opened), "fingerprint": run.header["vocab"]["fingerprint"]},
        "run": {
            "model": run.header["model"]["name"],
            "checkpoint": checkpoint,
            "checksum": json.loads((run.folder / f"{checkpoint}.json").read_bytes())["checksum"],
        },
    }


def _lists(state: MiningState, measured: RunScores) -> Iterator[Lists]:
    """Numbers of rows -> ids, a group at a time."""
    rows = measured.rows
    for query, own, others, saved in (
        ("image", rows.image_ids, rows.caption_ids, state.rows()),
        ("caption", rows.caption_ids, rows.image_ids, (k for k in [state.columns()] if k is not None)),
    ):
        start = 0
        for keys in _groups(saved):
            numbers, scores = from_keys(keys)
            ids = np.where(numbers >= 0, others[numbers], -1)
            yield query, own[start : start + len(ids)], ids, scores
            start += len(ids)
        assert start == len(own), f"{start} {query} lists, expected {len(own)}"


def _groups(saved: Iterable[Tensor]) -> Iterator[Tensor]:
    """Keys in pieces of any size -> in pieces of one size: a file must not show when its mining was saved."""
    rest: Tensor | None = None
    for keys in saved:
        rest = keys if rest is None else torch.cat([rest, keys])
        whole = len(rest) // GROUP * GROUP
        for part in parts(whole, GROUP):
            yield rest[part]
        rest = rest[whole:]
    if rest is not None and len(rest):
        yield rest
