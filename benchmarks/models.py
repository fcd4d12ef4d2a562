"""Scoring cost per pair of the attention models: ours against the published arrangement of the same scores.

Ratios: scan, bfan, adapt, and mine_gemm (see mine.py). VSE++ and VSRN score by one product of matrices; their
row is for comparison.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import REPEATS, Result, arguments, interleaved
from mine import mining_row
from published import adapt_loop, bfan_loop, captions_of, scan_loop
from torch import Tensor

from camp.models.adapt import Adapt
from camp.models.bfan import Bfan
from camp.models.encoded import Encoded
from camp.models.matcher import Matcher
from camp.models.scan import Scan
from camp.models.tiles import score_matrix
from camp.models.vsepp import Vsepp

REGIONS, WORDS, DIM, FEATURES, VOCABULARY = 36, 13, 1024, 2048, 10_000


def main() -> None:
    options = arguments(__doc__ or "")
    torch.manual_seed(0)
    result = Result("models")
    size = 64 if options.quick else 128
    with torch.inference_mode():
        scan = Scan(vocab_size=VOCABULARY, dim=DIM).eval()
        images, texts = encode(scan, size)
        compare(result, "scan", scan, images, texts, lambda: scan_loop(images.local, captions_of(texts)))
        bfan = Bfan(vocab_size=VOCABULARY, dim=DIM).eval()
        images_b, texts_b = encode(bfan, size)
        compare(
            result, "bfan", bfan, images_b, texts_b, lambda: bfan_loop(images_b.local, captions_of(texts_b))
        )
        adapt = Adapt(vocab_size=VOCABULARY, dim=DIM).eval()
        images_a, texts_a = encode(adapt, size)
        compare(result, "adapt", adapt, images_a, texts_a, lambda: adapt_loop(adapt, images_a, texts_a))
        vsepp = Vsepp(vocab_size=VOCABULARY, dim=DIM).eval()
        images_v, texts_v = encode(vsepp, 4 * size)
        seconds = interleaved({"vsepp": lambda: score_matrix(vsepp, images_v, texts_v)})
        result.row("vsepp", 1e6 * seconds["vsepp"] / (4 * size) ** 2, "µs/pair")
    mining_row(result, quick=options.quick)
    result.notes.append(f"{size}×{size} pairs, R={REGIONS}, N={WORDS}, d={DIM}; best of {REPEATS} repeats")
    result.finish(options.json)


def encode(model: Matcher, size: int) -> tuple[Encoded, Encoded]:
    regions = torch.randn(size, REGIONS, FEATURES).relu()
    ids = torch.randint(1, VOCABULARY, (size, WORDS))
    return model.encode_image(regions), model.encode_text(ids, torch.full((size,), WORDS))


def compare(
    result: Result,
    name: str,
    model: Matcher,
    images: Encoded,
    texts: Encoded,
    published: Callable[[], Tensor],
) -> None:
    torch.testing.assert_close(score_matrix(model, images, texts), published(), rtol=1e-3, atol=1e-4)
    seconds = interleaved({"ours": lambda: score_matrix(model, images, texts), "published": published})
    pairs = len(images) * len(texts)
    result.row(name, 1e6 * seconds["ours"] / pairs, "µs/pair")
    result.row(f"{name}, published arrangement", 1e6 * seconds["published"] / pairs, "µs/pair")
    result.ratio(name, seconds["published"] / seconds["ours"])


if __name__ == "__main__":
    main()
