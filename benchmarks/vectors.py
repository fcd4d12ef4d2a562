"""400,000 x 300 word vectors in a text file -> a 10,000-word matrix, against reading line by line."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import Result, arguments, interleaved, peak_megabytes

from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vectors import WordVectors, load_vectors
from camp.vocab.vocabulary import SPECIAL_WORDS, Specials, Vocabulary

DIM = 300
WANTED_SHARE = 40  # every 40th word of the file: 10,000 of 400,000


def write_vectors(path: Path, rows: int) -> None:
    """Distinct words; the numbers repeat every thousand lines, which no reader profits from."""
    rng = np.random.default_rng(0)
    vectors = [" ".join(f"{number:.5f}" for number in rng.normal(0, 0.4, DIM)) for _ in range(1000)]
    with path.open("w") as stream:
        for start in range(0, rows, 1000):
            stream.writelines(f"word{start + row} {vector}\n" for row, vector in enumerate(vectors))


def wanted_vocabulary(rows: int) -> Vocabulary:
    return Vocabulary(
        words=(*SPECIAL_WORDS, *(f"word{row}" for row in range(0, rows, WANTED_SHARE))),
        specials=Specials(pad=0, start=1, end=2, unk=3),
        tokenizer=open_tokenizer("plain"),
    )


def read_lines(path: Path) -> int:
    lines = 0
    with path.open("rb") as stream:
        for _ in stream:
            lines += 1
    return lines


def measure_memory(path: Path, rows: int) -> None:
    """In a process of its own: how much more than before it needs at most."""
    vocabulary = wanted_vocabulary(rows)
    before = peak_megabytes()
    vectors = load_vectors(path, vocabulary=vocabulary)
    after = peak_megabytes()
    print(json.dumps({"grown": after - before, "result": vectors.matrix.nbytes / 2**20}))


def main() -> None:
    options = arguments(__doc__ or "")
    rows = 100_000 if options.quick else 400_000
    result = Result("vectors")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.txt"
        write_vectors(path, rows)
        vocabulary = wanted_vocabulary(rows)

        def ours() -> WordVectors:
            return load_vectors(path, vocabulary=vocabulary)

        assert ours().coverage["types_found"] == len(vocabulary) - len(SPECIAL_WORDS)
        seconds = interleaved({"lines": lambda: read_lines(path), "ours": ours})
        megabytes = path.stat().st_size / 1e6
        result.row("reading line by line, nothing else", megabytes / seconds["lines"], "MB/s")
        result.row("ours", megabytes / seconds["ours"], "MB/s")
        result.ratio("read_lines", seconds["lines"] / seconds["ours"])
        command = [sys.executable, __file__, "--memory", str(path), str(rows)]
        memory = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    result.row("peak memory beyond the result", memory["grown"] - memory["result"], "MB")
    result.notes.append(
        f"{rows:,} x {DIM}, {megabytes:,.0f} MB in the page cache; {rows // WANTED_SHARE:,} words wanted"
    )
    result.finish(options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
