"""One text query over 30,000 images, d=1024: the base model's vectors, and CAMP on the top 100 of them.

From the words to the answer: encoding the text, looking at every vector, and for the reranked form reading
and encoding the regions of 100 images and scoring them. Ratios: base_second, reranked_second (how many such
queries fit into a second), faiss (how many times faster than looking at every vector, where installed).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from harness import REPEATS, Result, arguments, interleaved

from camp.errors import MissingPackageError
from camp.evaluation.nearest import Exact, Nearest, open_nearest
from camp.evaluation.search import RERANKED
from camp.models.base import Base
from camp.models.camp_paper import CampPaper
from camp.models.tiles import score_matrix

IMAGES, REGIONS, DIM, FEATURES, VOCABULARY, WORDS = 30_000, 36, 1024, 2048, 10_000, 13
STORED = 2000  # images whose regions are really there; the rest would only fill memory
TOP = 10


def main() -> None:
    options = arguments(__doc__ or "")
    torch.manual_seed(0)
    result = Result("search")

    vectors = unit_rows(IMAGES)
    base, camp = Base(vocab_size=VOCABULARY).eval(), CampPaper(vocab_size=VOCABULARY).eval()
    ids, lengths = torch.randint(1, VOCABULARY, (1, WORDS)), torch.tensor([WORDS])
    stored = np.random.default_rng(0).random((STORED, REGIONS, FEATURES), np.float32).astype(np.float16)
    exact = Exact(vectors)

    def query() -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = base.encode_text(ids, lengths).glob[0].numpy()
        return found

    def reranked() -> object:
        rows, _ = exact(query(), RERANKED)
        regions = torch.from_numpy(stored[rows % STORED]).float()
        again = score_matrix(camp, camp.encode_image(regions), camp.encode_text(ids, lengths))[:, 0]
        return rows[again.topk(TOP).indices.numpy()]

    rivals: dict[str, Callable[[], object]] = {"base": lambda: exact(query(), TOP), "reranked": reranked}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        near = faiss_index(vectors, Path(folder), result)
        if near is not None:
            asked = query()
            rivals["faiss"] = lambda: near(asked, TOP)
            rivals["exact"] = lambda: exact(asked, TOP)
        seconds = interleaved(rivals, repeats=REPEATS if options.quick else 3 * REPEATS)
    result.row(f"a text among {IMAGES:,} images, base model", 1e3 * seconds["base"], "ms")
    result.row(f"… the first {RERANKED} scored again by CAMP", 1e3 * seconds["reranked"], "ms")
    result.ratio("base_second", 1 / seconds["base"])
    result.ratio("reranked_second", 1 / seconds["reranked"])
    if near is not None:
        result.row("… every vector looked at", 1e3 * seconds["exact"], "ms")
        result.row("… FAISS instead", 1e3 * seconds["faiss"], "ms")
        result.ratio("faiss", seconds["exact"] / seconds["faiss"])
    result.notes.append(f"{torch.get_num_threads()} threads; regions in float16, read from memory")
    result.finish(options.json)


def unit_rows(count: int) -> npt.NDArray[np.float32]:
    vectors = np.random.default_rng(1).standard_normal((count, DIM), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def faiss_index(vectors: npt.NDArray[np.float32], folder: Path, result: Result) -> Nearest | None:
    try:
        return open_nearest(vectors, folder / "vectors.faiss", faiss=True)
    except MissingPackageError:
        result.notes.append("FAISS is not installed, its ratio is left out")
        return None


if __name__ == "__main__":
    main()
