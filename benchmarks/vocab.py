"""100,000 distinct captions -> word counts: ours against the loop over NLTK's word_tokenize."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nltk
from harness import Result, arguments, interleaved, peak_megabytes
from nltk.tokenize import word_tokenize

from camp.vocab.counting import CHUNK_CAPTIONS, TokenCounts, count_tokens
from camp.vocab.encoding import encode_captions
from camp.vocab.plain_captions import sift
from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vocabulary import vocabulary_from_counts

REAL_DATA = Path(os.environ.get("CAMP_REAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
STREAMED = 2_000_000


def real_captions() -> list[str]:
    """Captions of COCO and Flickr30K where they lie beside the checkout."""
    captions: list[str] = []
    for path in sorted(REAL_DATA.glob("coco-*/**/captions_*.json")):
        captions += [annotation["caption"] for annotation in json.loads(path.read_bytes())["annotations"]]
    for path in sorted(REAL_DATA.glob("scan-captions/*/*_caps.txt")):
        captions += path.read_text(encoding="utf-8").splitlines()
    return captions


THINGS = "man woman dog cat horse bus train table pizza street sign kite bench child player boat"
COLOURS = "red blue green white black small large old young wooden"
DOINGS = "sitting standing running riding holding watching jumping waiting walking"
ODD = ('"STOP"', "(left)", "Mr. Smith's", "don't", "10:14", "street. The end", "well... almost", "– yes")


def drawn_captions() -> list[str]:
    """Where there are none: sentences of a small grammar, one in fifty with something that is not plain."""
    rng = random.Random(0)
    things, colours, doings = THINGS.split(), COLOURS.split(), DOINGS.split()
    return [
        f"A {rng.choice(colours)} {rng.choice(things)} is {rng.choice(doings)} by a {rng.choice(things)}, "
        f"{rng.choice(ODD) + ' ' if rng.random() < 0.02 else ''}beside {rng.randrange(99)} "
        f"{rng.choice(things)}s and a {rng.choice(colours)} {rng.choice(things)}."
        for _ in range(40_000)
    ]


def distinct_captions(count: int) -> list[str]:
    """Real captions, then the beginning of one with the end of another, until there are enough."""
    base = list(dict.fromkeys(real_captions() or drawn_captions()))
    rng = random.Random(1)
    captions = dict.fromkeys(base)
    while len(captions) < count:
        first, second = rng.choice(base).split(" "), rng.choice(base).split(" ")
        captions[" ".join(first[: len(first) // 2] + second[len(second) // 2 :])] = None
    mixed = list(captions)
    rng.shuffle(mixed)
    return mixed[:count]


def chunks(captions: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(captions), CHUNK_CAPTIONS):
        yield captions[start : start + CHUNK_CAPTIONS]


def nltk_loop(captions: list[str], *, preserve_line: bool) -> Counter[str]:
    counter: Counter[str] = Counter()
    for caption in captions:
        counter.update(word_tokenize(caption.lower(), preserve_line=preserve_line))
    return counter


def measure_streaming() -> None:
    """In a process of its own: memory while two million captions stream by."""
    tokenizer = open_tokenizer("nltk")
    sample = distinct_captions(20_000)

    def stream() -> Iterator[list[str]]:
        for number in range(STREAMED // 20_000):
            yield [f"{caption[:-1]} {number}" for caption in sample]

    count_tokens([sample], tokenizer=tokenizer)
    before = peak_megabytes()
    counts = count_tokens(stream(), tokenizer=tokenizer)
    after = peak_megabytes()
    print(json.dumps({"captions": counts.captions, "megabytes": after - before}))


def main() -> None:
    options = arguments(__doc__ or "")
    if (REAL_DATA / "nltk_data").is_dir():
        nltk.data.path.insert(0, str(REAL_DATA / "nltk_data"))
    captions = distinct_captions(10_000 if options.quick else 100_000)
    tokenizer = open_tokenizer("nltk")
    result = Result("vocab")
    counts = TokenCounts(nltk_loop(captions, preserve_line=not tokenizer.punkt), captions=len(captions))
    assert count_tokens(chunks(captions), tokenizer=tokenizer) == counts, "the tokens differ"
    vocabulary = vocabulary_from_counts(counts, tokenizer=tokenizer, source={})
    seconds = interleaved(
        {
            "nltk": lambda: nltk_loop(captions, preserve_line=not tokenizer.punkt),
            "ours": lambda: count_tokens(chunks(captions), tokenizer=tokenizer, workers=None),
            "ids": lambda: list(encode_captions(chunks(captions), vocabulary=vocabulary, workers=None)),
        },
        warm_up=0,
    )
    for name, label in (
        ("nltk", "a loop over word_tokenize, counting"),
        ("ours", "ours, counting"),
        ("ids", "ours, token ids"),
    ):
        result.row(label, len(captions) / seconds[name], "captions/s")
    _, holes = sift([caption.lower() for caption in captions])
    result.row("captions that go to NLTK", 100 * len(holes) / len(captions), "%")
    result.ratio("nltk_loop", seconds["nltk"] / seconds["ours"])
    if not options.quick:
        command = [sys.executable, __file__, "--streaming"]
        streamed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        result.row(f"memory while {streamed['captions']:,} captions stream by", streamed["megabytes"], "MB")
    result.notes.append(
        f"NLTK {nltk.__version__}, punkt_tab {'present' if tokenizer.punkt else 'absent'}; "
        f"{len(captions):,} distinct {'real' if real_captions() else 'drawn'} captions and mixtures of them; "
        "counts compared before timing; no cache of captions; ours stays in one process below two seconds"
    )
    result.finish(options.json)


if __name__ == "__main__":
    if sys.argv[1:] == ["--streaming"]:
        measure_streaming()
    else:
        main()
