"""One CAMP training step: two passes against one of autograd, the published arrangement, and the GEMM rate.

Ratios: one_pass_time (how many times faster than one pass over B×B, same batch), one_pass_memory (how many
times less memory above weights and gradients), gemm (the selection pass's share of the machine's own GEMM
rate; gemm_compiled with torch.compile, in the full run), loader_wait (the share of its time that a consumer
of 5 ms a batch spends waiting for the loader).
"""

from __future__ import annotations

import gc
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gemm import gemm_rates, gemm_ratio, gemm_rivals
from harness import REPEATS, Result, arguments, interleaved
from loader import BATCH, make_dataset

from camp.models.camp_paper import CampPaper
from camp.models.encoded import Encoded
from camp.models.losses import build_loss
from camp.models.tiles import score_matrix
from camp.models.two_pass import Step, one_pass_step, two_pass_step
from camp.pipeline.loader import FeatureLoader
from camp.schema import Batch

REGIONS, WORDS, DIM, FEATURES, VOCABULARY = 36, 16, 1024, 2048, 10_000
PUBLISHED_WORDS = 50  # every caption is padded to this in the published code
CONSUMER_SECONDS = 5e-3


def main() -> None:
    options = arguments(__doc__ or "")
    torch.manual_seed(0)
    result = Result("train_step")
    model = CampPaper(vocab_size=VOCABULARY, region_dim=FEATURES, dim=DIM)
    loader_wait(result, rows=4096 if options.quick else 32768)
    selection_rate(result, model, images=16, captions=64, compiled=not options.quick)
    compare_steps(result, model, size=64, repeats=2 if options.quick else REPEATS)
    if not options.quick:
        published(result, model, size=32, repeats=3)
    result.finish(options.json)


def make_batch(size: int) -> Batch:
    generator = torch.Generator().manual_seed(size)
    rows = torch.arange(size)
    return Batch(
        regions=torch.randn(size, REGIONS, FEATURES, generator=generator).relu(),
        region_mask=torch.ones(size, REGIONS, dtype=torch.bool),
        boxes=torch.zeros(size, REGIONS, 4),
        tokens=torch.randint(1, VOCABULARY, (size, WORDS), generator=generator),
        lengths=torch.full((size,), WORDS),
        image_ids=rows,
        caption_ids=rows,
        caption_image=rows,
    )


def loader_wait(result: Result, *, rows: int) -> None:
    """A consumer of 5 ms a batch, away (as while a GPU works) or busy on a core -> its share of waiting."""

    def away() -> None:
        time.sleep(CONSUMER_SECONDS)

    def busy() -> None:
        end = time.perf_counter() + CONSUMER_SECONDS
        while time.perf_counter() < end:
            hashlib.sha256(work)  # one thread, without the interpreter, as a training step is

    work = bytes(1 << 18)
    consumers = {"away": away, "busy": busy}
    with tempfile.TemporaryDirectory() as scratch:
        dataset = make_dataset(Path(scratch), rows)
        with FeatureLoader(dataset, split="train", features="bench", batch_size=BATCH, dtype=None) as loader:
            best = dict.fromkeys(consumers, 1.0)
            for turn in range(REPEATS):
                for number, (name, consume) in enumerate(consumers.items()):
                    loader.set_epoch(turn * len(consumers) + number)
                    best[name] = min(best[name], waiting_share(loader, consume))
    for name, share in best.items():
        result.row(f"consumer of 5 ms a batch, {name}, waits", 100 * share, "% of its time")
    result.ratio("loader_wait", max(best.values()))


def waiting_share(loader: FeatureLoader, consume: Callable[[], None]) -> float:
    """Of one epoch, the first batch apart."""
    batches = iter(loader)
    next(batches)
    begin, waited = time.perf_counter(), 0.0
    while True:
        start = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - start
        if batch is None:
            return waited / (time.perf_counter() - begin)
        consume()


def selection_rate(result: Result, model: CampPaper, *, images: int, captions: int, compiled: bool) -> None:
    """Pass 1 in multiply-adds of (R + N)·d² per pair, as a share of torch.mm's rate."""
    with torch.inference_mode():
        batch = make_batch(captions)
        encoded_images = model.encode_image(batch.regions[:images])
        encoded_texts = model.encode_text(batch.tokens, batch.lengths)
        rivals: dict[str, Callable[[], object]] = {
            **gemm_rivals(),
            "selection": lambda: score_matrix(model, encoded_images, encoded_texts),
        }
        if compiled:
            fast = CampPaper(vocab_size=VOCABULARY, region_dim=FEATURES, dim=DIM)
            fast.load_state_dict(model.state_dict())
            fast.compile_scores()
            rivals["compiled"] = lambda: score_matrix(fast, encoded_images, encoded_texts)
        seconds = interleaved(rivals)
    gemm = gemm_rates(result, seconds)
    work = 2 * images * captions * (REGIONS + WORDS) * DIM**2
    for name, label, ratio in (
        ("selection", "selection pass", "gemm"),
        ("compiled", "selection pass, compiled", "gemm_compiled"),
    ):
        if name in seconds:
            result.row(label, work / seconds[name] / 1e9, "GFLOP/s")
            gemm_ratio(result, ratio, work / seconds[name], gemm)


def compare_steps(result: Result, model: CampPaper, *, size: int, repeats: int) -> None:
    """Both ways on one batch, by turns. The first step of each is also its memory measurement."""
    batch, loss = make_batch(size), build_loss("bce_hardest")
    ways: dict[str, Callable[[], Step]] = {
        "two passes": lambda: two_pass_step(model, batch, loss=loss),
        "one pass": lambda: one_pass_step(model, batch, loss=loss),
    }
    two_pass_step(model, make_batch(2), loss=loss)  # so that gradients exist and count as the floor
    best = dict.fromkeys(ways, float("inf"))
    memory: dict[str, float | None] = {}
    losses = {}
    for turn in range(repeats):
        for name, way in ways.items():
            model.zero_grad(set_to_none=False)
            gc.collect()
            floor = reset_peak() if turn == 0 else None
            start = time.perf_counter()
            step = way()
            best[name] = min(best[name], time.perf_counter() - start)
            losses[name] = float(step.loss)
            if turn == 0:
                memory[name] = None if floor is None else peak() - floor
    limit = 3 * size**2 / (size**2 + 9 * size)
    ratio = best["one pass"] / best["two passes"]
    for name in ways:
        result.row(f"{name}, B={size}", best[name], "s")
        if (used := memory[name]) is not None:
            result.row(f"{name}, B={size}, peak above weights and gradients", used / 1e6, "MB")
        result.row(f"{name}, B={size}, loss", losses[name], "")
    result.row("share of the arithmetic limit 3B²/(B²+9B)", ratio / limit, "")
    result.ratio("one_pass_time", ratio)
    one, two = memory["one pass"], memory["two passes"]
    if one is not None and two is not None:
        result.ratio("one_pass_memory", one / two)
    result.notes.append(
        f"best of {repeats} turns for the steps (one pass takes seconds), of {REPEATS} for the rest"
    )


def published(result: Result, model: CampPaper, *, size: int, repeats: int) -> None:
    """One pass with every caption padded to 50 words, as the published code arranges it."""
    batch, loss = make_batch(size), build_loss("bce_hardest")

    def padded(encode: Callable[..., Encoded]) -> Callable[..., Encoded]:
        return lambda *inputs: encode(*inputs).pad(PUBLISHED_WORDS)

    def arranged() -> None:
        encode = model.encode_text
        model.encode_text = padded(encode)  # type: ignore[method-assign]
        try:
            one_pass_step(model, batch, loss=loss)
        finally:
            model.encode_text = encode  # type: ignore[method-assign]

    seconds = interleaved(
        {"published": arranged, "two passes": lambda: two_pass_step(model, batch, loss=loss)},
        repeats=repeats,
        warm_up=0,
    )
    result.row(f"one pass, captions padded to 50, B={size}", seconds["published"], "s")
    result.row(f"two passes, B={size}", seconds["two passes"], "s")
    result.row("against the published arrangement", seconds["published"] / seconds["two passes"], "×")


def reset_peak() -> int | None:
    """Start the kernel's record of the highest resident size afresh -> the size now, in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def peak() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
