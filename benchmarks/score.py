"""Scoring: CAMP against the GEMM rate and against padded captions, the released form expanded, SCAN's loop.

Ratios: gemm (CAMP's share of torch.mm's rate, captions as long as COCO's; gemm_compiled with torch.compile,
in the full run), padded50 (against captions padded to 50 words), official_expanded and scan_loop (against the
published arrangement of the same scores, its layers computed as torch does by default), rerank10 (how many
times faster than the whole matrix the top 10% in both directions are).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from gemm import gemm_rates, gemm_ratio, gemm_rivals
from harness import REPEATS, Result, arguments, interleaved
from published import captions_of, official_expanded, scan_loop
from torch import Tensor

from camp.evaluation.rerank import rerank
from camp.evaluation.run_scores import pair_scorer
from camp.models.base import Base
from camp.models.camp_official import CampOfficial
from camp.models.camp_paper import CampPaper
from camp.models.encoded import Encoded, word_mask
from camp.models.matcher import Matcher
from camp.models.scan import Scan
from camp.models.tiles import score_matrix

REGIONS, DIM, FEATURES, VOCABULARY = 36, 1024, 2048, 10_000
PUBLISHED_WORDS = 50
FLICKR_IMAGES, FLICKR_CAPTIONS = 1000, 5000
GTX_1080 = 8.9e12  # FLOP/s in single precision, as its maker states
RIVAL_TILE = 4  # images × captions of the expanded rivals: their rows, too, stay in the cache
# How many of COCO val2017's 25,014 captions have 7, 8, 9 … 25 tokens (NLTK's), the few longer ones left out.
FIRST_LENGTH = 7
LENGTH_COUNTS = (
    115,
    1255,
    4306,
    5246,
    4772,
    3521,
    2276,
    1392,
    799,
    464,
    282,
    177,
    117,
    82,
    51,
    34,
    26,
    22,
    21,
)
MARKS = 2  # <start> and <end>


def main() -> None:
    options = arguments(__doc__ or "")
    torch.manual_seed(0)
    result = Result("score")
    quick = options.quick
    with torch.inference_mode():
        camp(result, images=24 if quick else 48, captions=16 if quick else 32, compiled=not quick)
        official(result, images=32 if quick else 48, captions=48 if quick else 64, rival=8 if quick else 16)
        scan(result, images=64 if quick else 128, captions=64 if quick else 128)
        base(result)
        reranked(result, images=20 if quick else 40, captions=60 if quick else 120)
    result.notes.append(f"best of {REPEATS} interleaved repeats, {torch.get_num_threads()} threads")
    result.finish(options.json)


def caption_lengths(captions: int) -> Tensor:
    """Lengths at even steps through COCO's captions, in no order, with their two marks."""
    sums = list(accumulate(LENGTH_COUNTS))
    found = [bisect_right(sums, (n + 0.5) / captions * sums[-1]) for n in range(captions)]
    order = torch.randperm(captions, generator=torch.Generator().manual_seed(1))
    return torch.tensor(found)[order] + FIRST_LENGTH + MARKS


def in_tiles(
    block: Callable[[Encoded, Encoded], Tensor], images: Encoded, texts: Encoded, *, size: int = RIVAL_TILE
) -> Tensor:
    """A rival's block of scores, computed in tiles."""
    rows = [
        torch.cat(
            [
                block(images.index(slice(i, i + size)), texts.index(slice(t, t + size)))
                for t in range(0, len(texts), size)
            ],
            dim=1,
        )
        for i in range(0, len(images), size)
    ]
    return torch.cat(rows)


def encode(model: Matcher, *, images: int, lengths: Tensor) -> tuple[Encoded, Encoded]:
    ids = torch.randint(1, VOCABULARY, (len(lengths), int(lengths.max())))
    return model.encode_image(torch.randn(images, REGIONS, FEATURES).relu()), model.encode_text(ids, lengths)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def camp(result: Result, *, images: int, captions: int, compiled: bool) -> None:
    model = CampPaper(vocab_size=VOCABULARY).eval()
    lengths = caption_lengths(captions)
    encoded_images, texts = encode(model, images=images, lengths=lengths)
    padded = texts.pad(PUBLISHED_WORDS)
    rivals: dict[str, Callable[[], object]] = {
        **gemm_rivals(),
        "camp": lambda: score_matrix(model, encoded_images, texts),
        # Blocks as large as ours, so that padding is all that differs.
        "padded": lambda: in_tiles(model.score_block, encoded_images, padded, size=16),
    }
    same(score_matrix(model, encoded_images, texts), in_tiles(model.score_block, encoded_images, padded))
    if compiled:
        fast = CampPaper(vocab_size=VOCABULARY).eval()
        fast.load_state_dict(model.state_dict())
        fast.compile_scores()
        same(score_matrix(fast, encoded_images, texts), score_matrix(model, encoded_images, texts))
        rivals["compiled"] = lambda: score_matrix(fast, encoded_images, texts)
    seconds = interleaved(rivals)
    gemm = gemm_rates(result, seconds)
    work = 2 * images * int((REGIONS + lengths).sum()) * DIM**2
    pairs, mean_length = images * captions, float(lengths.float().mean())
    for name, label in (("camp", "CAMP"), ("compiled", "CAMP, compiled"), ("padded", "CAMP, padded to 50")):
        if name in seconds:
            result.row(label, 1e3 * seconds[name] / pairs, "ms/pair")
            result.row(label, work / seconds[name] / 1e9, "GFLOP/s")
    limit = (REGIONS + PUBLISHED_WORDS) / (REGIONS + mean_length)
    gain = seconds["padded"] / seconds["camp"]
    result.row(f"what bucketing can gain, (36+50)/(36+{mean_length:.1f})", limit, "times")
    result.row("… of which it gains", 100 * gain / limit, "%")
    gemm_ratio(result, "gemm", work / seconds["camp"], gemm)
    if compiled:
        gemm_ratio(result, "gemm_compiled", work / seconds["compiled"], gemm)
    result.ratio("padded50", gain)
    result.notes.append(f"CAMP: {images} images × {captions} captions, d={DIM}; FLOPs count no padded word")
    extrapolated(result, pair_seconds=seconds["camp"] / pairs, share=result.ratios["gemm"], words=mean_length)


def extrapolated(result: Result, *, pair_seconds: float, share: float, words: float) -> None:
    """What Flickr30K's test would take, here and on the supplementary's GPUs, beside its 263 s."""
    pairs = FLICKR_IMAGES * FLICKR_CAPTIONS
    operations = 2 * pairs * (REGIONS + words) * DIM**2
    result.row("CAMP, Flickr30K 1,000×5,000 here, extrapolated", pairs * pair_seconds, "s")
    result.row("… on 8 GTX 1080 at our share of GEMM", operations / (8 * GTX_1080 * share), "s")
    result.row("… as published, 8 GTX 1080", 263.497, "s")
    result.notes.append(
        f"8 GTX 1080 are taken as 8 × {GTX_1080 / 1e12:.1f} TFLOP/s × our share of the GEMM rate, "
        f"{operations / 1e12:,.0f} TFLOP in all"
    )


def official(result: Result, *, images: int, captions: int, rival: int) -> None:
    """The released form against itself as published: every pair expanded, captions padded to 50.

    The rival scores fewer pairs, in tiles of its own: what one costs does not depend on their number.
    """
    model = CampOfficial(vocab_size=VOCABULARY).eval()
    encoded_images, texts = encode(model, images=images, lengths=caption_lengths(captions))
    few_images, few_texts = encoded_images.index(slice(0, rival)), texts.index(slice(0, rival))
    padded = few_texts.pad(PUBLISHED_WORDS)

    def expanded() -> Tensor:
        return in_tiles(lambda i, t: official_expanded(model, i, t), few_images, padded)

    same(score_matrix(model, few_images, few_texts), expanded())
    seconds = interleaved({"ours": lambda: score_matrix(model, encoded_images, texts), "expanded": expanded})
    ours, published = seconds["ours"] / (images * captions), seconds["expanded"] / rival**2
    result.row("released CAMP", 1e3 * ours, "ms/pair")
    result.row("released CAMP as published", 1e3 * published, "ms/pair")
    result.ratio("official_expanded", published / ours)


def scan(result: Result, *, images: int, captions: int) -> None:
    model = Scan(vocab_size=VOCABULARY).eval()
    encoded_images, texts = encode(model, images=images, lengths=caption_lengths(captions))
    words = captions_of(texts)
    same(score_matrix(model, encoded_images, texts), scan_loop(encoded_images.local, words))
    seconds = interleaved(
        {
            "ours": lambda: score_matrix(model, encoded_images, texts),
            "loop": lambda: scan_loop(encoded_images.local, words),
        }
    )
    pairs = images * captions
    result.row("SCAN t2i", 1e6 * seconds["ours"] / pairs, "µs/pair")
    result.row("SCAN t2i, published loop", 1e6 * seconds["loop"] / pairs, "µs/pair")
    result.ratio("scan_loop", seconds["loop"] / seconds["ours"])


def base(result: Result) -> None:
    """The base model's whole Flickr30K matrix, from encodings."""
    model = Base(vocab_size=VOCABULARY).eval()
    lengths = caption_lengths(FLICKR_CAPTIONS)
    rows = (torch.full((FLICKR_IMAGES,), REGIONS), lengths)
    images, texts = (
        Encoded(
            local=torch.empty(len(counts), int(counts.max()), 0),
            mask=word_mask(counts, int(counts.max())),
            glob=F.normalize(torch.randn(len(counts), DIM), dim=-1),
        )
        for counts in rows
    )
    seconds = interleaved({"ours": lambda: score_matrix(model, images, texts)})
    result.row("base model, 1,000×5,000 from encodings", seconds["ours"], "s")


def reranked(result: Result, *, images: int, captions: int) -> None:
    """CAMP on the top 10% of another order, both directions, against CAMP on everything.

    The order is random: the two directions then share no more pairs than chance lets them, the dearest case.
    """
    lengths, owner = caption_lengths(captions), np.arange(captions) * images // captions
    model = CampPaper(vocab_size=VOCABULARY).eval()
    order = np.random.default_rng(0).normal(size=(images, captions)).astype(np.float32)
    encoded_images, texts = encode(model, images=images, lengths=lengths)
    again = pair_scorer(model, encoded_images, texts)
    shares = []

    def top() -> None:
        found = rerank(order, owner, again, captions=captions // 10, images=images // 10)
        shares.append(found.pairs / order.size)

    seconds = interleaved({"all": lambda: score_matrix(model, encoded_images, texts), "top": top})
    result.row(f"CAMP, all {images}×{captions}", seconds["all"], "s")
    result.row("CAMP, top 10% both ways", seconds["top"], "s")
    result.row("… share of the pairs", 100 * shares[0], "%")
    result.row("… share of the whole time", 100 * seconds["top"] / seconds["all"], "%")
    result.ratio("rerank10", seconds["all"] / seconds["top"])


if __name__ == "__main__":
    main()
