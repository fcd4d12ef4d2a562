"""A run -> one self-contained HTML page: cards, curves, recall beside the papers', galleries."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..files import write_atomic
from ..progress import ProgressFactory, no_progress
from .cross_rank import cross_ranks
from .gates import gate_means
from .query import QueryEncoder
from .ranks import Ranks, Scores, rank_both_ways
from .recall import Metrics, evaluate, summarize
from .report_gallery import (
    Answered,
    Gallery,
    answer_images,
    answer_texts,
    choose_queries,
    parameter_count,
    worst_queries,
)
from .report_page import render_page
from .run_folder import Run
from .run_scores import open_run_scores, rerank_runs, run_scores
from .search_index import open_split_of

PAGE = "index.html"
TOPS = ("1%", "2%", "5%", "10%", "20%")
QUERIES, FAILURES, EXPLAINED = 8, 4, 3


@dataclass(frozen=True)
class ReportFacts:
    """Everything the page shows."""

    title: str
    run: Mapping[str, str]
    data: Mapping[str, str]
    split: str
    images: int
    captions: int
    metrics: Metrics
    ranks: Ranks
    cross_ranks: Any
    gates: Mapping[str, float]
    journal: Sequence[Mapping[str, Any]]
    rerank: Sequence[Mapping[str, Any]]
    candidates: str
    dataset: str
    gallery: Gallery
    texts: Sequence[Answered]  # captions that ask for images
    pictures: Sequence[Answered]  # images that ask for captions
    failed_texts: Sequence[Answered]
    failed_pictures: Sequence[Answered]
    explained: Sequence[tuple[int, int, int]]  # image, its caption, another image's caption


def write_report(
    run: Run,
    *,
    out: Path,
    journal: Sequence[Mapping[str, Any]] = (),
    split: str = "test",
    folds: int = 1,
    dataset: Path | None = None,
    checkpoint: str = "best",
    candidates: Run | None = None,
    device: torch.device,
    progress: ProgressFactory = no_progress,
) -> tuple[Path, list[str]]:
    """Measure the run on a split and write `out`/index.html -> the page's path, and notes on what it lacks.

    `journal` holds the lines of the training's diary, for the curves.
    """
    encoder = QueryEncoder.open(run, dataset=dataset, checkpoint=checkpoint, device=device)
    rows = open_split_of(encoder, split=split)
    measured = run_scores(
        run, encoder.model, rows, dataset=encoder.dataset, split=split, checkpoint=checkpoint, device=device
    )
    start = time.perf_counter()
    # What reranking is set against must be computed now, not read from what an earlier call kept.
    scores = measured.matrix(keep=False if candidates else None, progress=progress)
    seconds = time.perf_counter() - start
    metrics = evaluate(scores, rows.caption_image, folds=folds)
    ranks = rank_both_ways(scores, rows.caption_image)
    reranked: list[dict[str, Any]] = []
    if candidates is not None:
        cheap = open_run_scores(candidates, split=split, dataset=dataset, device=device)
        reranked = rerank_runs(cheap, measured, tops=TOPS)
        # The matrix above took every pair: what reranking is measured against, encoding included.
        everything = {"top": "all", "pairs_share": 1.0, "seconds": seconds, "query_seconds": None}
        reranked.append({**everything, **summarize(ranks)})
    gallery = Gallery(encoder, rows)
    owner = rows.caption_image
    own_image = np.arange(len(rows.image_ids))
    facts = ReportFacts(
        title=f"{run.header['model']['name']} on {encoder.dataset.name}",
        run=_run_card(run, encoder, checkpoint),
        data=_data_card(encoder),
        split=split,
        images=len(rows.image_ids),
        captions=len(rows.caption_ids),
        metrics=metrics,
        ranks=ranks,
        cross_ranks=cross_ranks(scores, owner),
        gates=gate_means(encoder.model, rows, device=device),
        journal=journal,
        rerank=reranked,
        candidates="" if candidates is None else candidates.folder.name,
        dataset=encoder.dataset.name,
        gallery=gallery,
        texts=answer_texts(scores, owner, ranks, choose_queries(ranks.images, owner, count=QUERIES)),
        pictures=answer_images(
            scores, owner, ranks, choose_queries(ranks.captions, own_image, count=QUERIES)
        ),
        failed_texts=answer_texts(scores, owner, ranks, worst_queries(ranks.images, owner, count=FAILURES)),
        failed_pictures=answer_images(
            scores, owner, ranks, worst_queries(ranks.captions, own_image, count=FAILURES)
        ),
        explained=_explained(scores, owner, ranks),
    )
    page = render_page(facts)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file is there, expected a folder for the page")
    write_atomic(out / PAGE, page.encode("utf-8"))
    return out / PAGE, gallery.notes


def _explained(scores: Scores, owner: Any, ranks: Ranks) -> list[tuple[int, int, int]]:
    """Images with their best own caption, and the next one's swapped in."""
    images = choose_queries(ranks.captions, np.arange(len(scores)), count=EXPLAINED + 1)
    if len(images) < 2:
        return []
    best = []
    for image in images:
        own = np.flatnonzero(owner == image)
        best.append(int(own[np.argmax(scores[image, own])]))
    swapped = [*best[1:], best[0]]
    return list(zip(images, best, swapped, strict=True))[:EXPLAINED]


def _run_card(run: Run, encoder: QueryEncoder, checkpoint: str) -> dict[str, str]:
    header = run.header
    card = {
        "model": str(header["model"]["name"]),
        "parameters": f"{parameter_count(encoder.model):,}",
        "checkpoint": checkpoint,
    }
    for name, value in header["model"]["options"].items():
        card[name.replace("_", " ")] = str(value)
    config = header.get("config")
    if config:
        card |= {
            "loss": f"{config['loss']['name']}, margin {config['loss']['margin']}",
            "batch": str(config["data"]["batch_size"]),
            "optimizer": f"{config['optimizer']['name']}, rate {config['optimizer']['lr']:g}",
            "epochs": str(config["schedule"]["epochs"]),
            "seed": str(config["run"]["seed"]),
        }
    return card


def _data_card(encoder: QueryEncoder) -> dict[str, str]:
    dataset, features = encoder.dataset, encoder.features
    splits = ", ".join(
        f"{split} {counts['images']:,} / {counts['captions']:,}" for split, counts in dataset.counts.items()
    )
    extractor = features.index.provenance.get("extractor") or {}
    made_by = extractor.get("model") if isinstance(extractor, Mapping) else extractor
    return {
        "data set": dataset.name,
        "fingerprint": dataset.fingerprint[:12],
        "images / captions": splits,
        "features": f"{features.index.folder.name}, {features.spec.regions} regions × {features.spec.dim}",
        "extractor": str(made_by or "imported"),
        "vocabulary": f"{len(encoder.vocabulary):,} words",
    }
