"""Scoring: CAMP against the GEMM rate and against padded captions, the released form expanded, SCAN's loop.

Ratios: gemm (CAMP's share of the machine's GEMM rate, captions of mixed lengths), padded50 (against captions
padded to 50 words), official_expanded and scan_loop (against the published arrangement of the same scores),
rerank10 (how many times faster than the whole matrix the top 10% in both directions are).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
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
GEMM_ROWS = 4096
FLICKR_IMAGES, FLICKR_CAPTIONS = 1000, 5000
GTX_1080 = 8.9e12  # FLOP/s in single precision, as its maker states


def main() -> None:
    options = arguments(__doc__ or "")
    torch.manual_seed(0)
    result = Result("score")
    scale = 1 if options.quick else 2
    with torch.inference_mode():
        camp(result, images=8 * scale, captions=24 * scale)
        official(result, images=8 * scale, captions=8 * scale)
        scan(result, images=64 * scale, captions=64 * scale)
        base(result)
        reranked(result, images=20 * scale, captions=60 * scale)
    result.finish(options.json)


def caption_lengths(captions: int) -> Tensor:
    """Lengths like those of COCO's captions with their two marks: 9 to 25, most of them 11 to 14."""
    generator = torch.Generator().manual_seed(1)
    return (12.5 + 2.4 * torch.randn(captions, generator=generator)).round().clamp(9, 25).long()


def encode(model: Matcher, *, images: int, lengths: Tensor) -> tuple[Encoded, Encoded]:
    ids = torch.randint(1, VOCABULARY, (len(lengths), int(lengths.max())))
    return model.encode_image(torch.randn(images, REGIONS, FEATURES).relu()), model.encode_text(ids, lengths)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def camp(result: Result, *, images: int, captions: int) -> None:
    model = CampPaper(vocab_size=VOCABULARY).eval()
    lengths = caption_lengths(captions)
    encoded_images, texts = encode(model, images=images, lengths=lengths)
    padded = texts.pad(PUBLISHED_WORDS)
    left, right, product = torch.randn(GEMM_ROWS, DIM), torch.randn(DIM, DIM), torch.empty(GEMM_ROWS, DIM)

    def unbucketed() -> Tensor:
        # Tiles of the same size as ours, so that padding is all that differs.
        rows = [
            torch.cat([model.score_block(encoded_images.index(slice(i, i + 4)), padded.index(slice(t, t + 4)))
                       for t in range(0, captions, 4)], dim=1)
            for i in range(0, images, 4)
        ]  # fmt: skip
        return torch.cat(rows)

    same(score_matrix(model, encoded_images, texts), unbucketed())
    seconds = interleaved(
        {
            "gemm": lambda: torch.mm(left, right, out=product),
            "camp": lambda: score_matrix(model, encoded_images, texts),
            "padded": unbucketed,
        }
    )
    gemm = 2 * GEMM_ROWS * DIM**2 / seconds["gemm"]
    rows = images * int((REGIONS + lengths).sum())
    rate = 2 * rows * DIM**2 / seconds["camp"]
    result.row("GEMM 4096×1024×1024", gemm / 1e9, "GFLOP/s")
    result.row("CAMP, mixed lengths", rate / 1e9, "GFLOP/s")
    result.row("CAMP, mixed lengths", 1e3 * seconds["camp"] / (images * captions), "ms/pair")
    result.row("CAMP, padded to 50", 1e3 * seconds["padded"] / (images * captions), "ms/pair")
    result.ratio("gemm", rate / gemm)
    result.ratio("padded50", seconds["padded"] / seconds["camp"])
    extrapolated(
        result, pair_seconds=seconds["camp"] / (images * captions), share=rate / gemm, lengths=lengths
    )


def extrapolated(result: Result, *, pair_seconds: float, share: float, lengths: Tensor) -> None:
    """What Flickr30K's test would take, here and on the supplementary's GPUs, beside its 263 s."""
    pairs = FLICKR_IMAGES * FLICKR_CAPTIONS
    operations = 2 * pairs * (REGIONS + float(lengths.float().mean())) * DIM**2
    result.row("CAMP, Flickr30K 1,000×5,000 here, extrapolated", pairs * pair_seconds, "s")
    result.row("… on 8 GTX 1080 at our share of GEMM", operations / (8 * GTX_1080 * share), "s")
    result.row("… as published, 8 GTX 1080", 263.497, "s")
    result.notes.append(
        f"8 GTX 1080 are taken as 8 × {GTX_1080 / 1e12:.1f} TFLOP/s × our share of the GEMM rate"
    )


def official(result: Result, *, images: int, captions: int) -> None:
    model = CampOfficial(vocab_size=VOCABULARY).eval()
    encoded_images, texts = encode(model, images=images, lengths=torch.full((captions,), 13))

    def expanded() -> Tensor:
        tiles = [
            torch.cat([official_expanded(model, encoded_images.local[i : i + 4], texts.local[t : t + 4])
                       for t in range(0, captions, 4)], dim=1)
            for i in range(0, images, 4)
        ]  # fmt: skip
        return torch.cat(tiles)

    same(score_matrix(model, encoded_images, texts), expanded())
    seconds = interleaved({"ours": lambda: score_matrix(model, encoded_images, texts), "expanded": expanded})
    pairs = images * captions
    result.row("released CAMP, N=13", 1e3 * seconds["ours"] / pairs, "ms/pair")
    result.row("released CAMP, expanded, N=13", 1e3 * seconds["expanded"] / pairs, "ms/pair")
    result.ratio("official_expanded", seconds["expanded"] / seconds["ours"])


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
    result.notes.append(f"best of {REPEATS} interleaved repeats")


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
    """CAMP on the top 10% of the base model's order, both directions, against CAMP on everything."""
    lengths, owner = caption_lengths(captions), np.arange(captions) * images // captions
    cheap, dear = Base(vocab_size=VOCABULARY).eval(), CampPaper(vocab_size=VOCABULARY).eval()
    order = score_matrix(cheap, *encode(cheap, images=images, lengths=lengths)).numpy()
    encoded_images, texts = encode(dear, images=images, lengths=lengths)
    again = pair_scorer(dear, encoded_images, texts)

    def top() -> object:
        return rerank(order, owner, again, captions=captions // 10, images=images // 10)

    seconds = interleaved({"all": lambda: score_matrix(dear, encoded_images, texts), "top": top})
    result.row(f"CAMP, all {images}×{captions}", seconds["all"], "s")
    result.row("CAMP, top 10% both ways", seconds["top"], "s")
    result.row("… share of the whole time", 100 * seconds["top"] / seconds["all"], "%")
    result.ratio("rerank10", seconds["all"] / seconds["top"])


if __name__ == "__main__":
    main()
