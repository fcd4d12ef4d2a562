"""A generated Karpathy file the size of COCO's -> seconds and peak memory of `camp-data import`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Result, arguments

# Karpathy's COCO: images and captions per split as published.
SPLITS = {"train": 82_783, "restval": 30_504, "val": 5_000, "test": 5_000}
CAPTIONS = 616_767
WORDS = [
    *(
        "a",
        "the",
        "man",
        "woman",
        "dog",
        "street",
        "riding",
        "holding",
        "with",
        "red",
        "on",
        "of",
        "in",
        "and",
    ),
    *(
        "two",
        "people",
        "standing",
        "next",
        "to",
        "train",
        "large",
        "white",
        "table",
        "sitting",
        "food",
        "plate",
    ),
]


def generate(path: Path, *, share: float) -> tuple[int, int]:
    """Write a file of COCO's shape; gives its images and captions."""
    draw = random.Random(0)
    counts = {split: int(count * share) for split, count in SPLITS.items()}
    images = sum(counts.values())
    captions = round(CAPTIONS * share)
    surplus = captions - 5 * images
    imgid = sentid = 0
    with path.open("w") as stream:
        stream.write('{"images": [')
        for split, count in counts.items():
            for _ in range(count):
                sentences = []
                for _ in range(6 if imgid < surplus else 5):
                    tokens = draw.choices(WORDS, k=10)
                    raw = " ".join(tokens).capitalize() + "."
                    sentences.append({"tokens": tokens, "raw": raw, "imgid": imgid, "sentid": sentid})
                    sentid += 1
                record = {
                    "filepath": "val2014" if split != "train" else "train2014",
                    "sentids": [sentence["sentid"] for sentence in sentences],
                    "filename": f"COCO_{imgid:012d}.jpg",
                    "imgid": imgid,
                    "split": split,
                    "sentences": sentences,
                    "cocoid": 9 + 3 * imgid,
                }
                stream.write((", " if imgid else "") + json.dumps(record))
                imgid += 1
        stream.write('], "dataset": "coco"}')
    return images, sentid


def main() -> None:
    options = arguments(__doc__ or "")
    result = Result("import_coco")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "dataset_coco.json")
        images, captions = generate(source, share=0.2 if options.quick else 1.0)
        command = [
            sys.executable, "-m", "camp.cli", "import", str(source),
            "--format", "karpathy", "--out", str(Path(folder, "dataset")), "--max-captions", "0",
        ]  # fmt: skip
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise SystemExit(f"import failed with status {status}")
        result.row("images", images, "images")
        result.row("captions", captions, "captions")
        result.row("file", source.stat().st_size / 1e6, "MB")
        result.row("import", seconds, "s")
        result.row("peak memory", usage.ru_maxrss / 1e6, "GB")
    result.finish(options.json)


if __name__ == "__main__":
    main()
