"""A unit of captions -> a committed file of their counts or token ids: a worker of every executor."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ..files import atomic_writer, fingerprint, write_sealed
from ..manifests.dataset import Dataset
from ..schema import FEATURES_VERSION
from ..vocab.counting import TokenCounts, count_tokens, table_chunks
from ..vocab.encoding import EncodedCaptions, encode_captions, join_encoded
from ..vocab.shelf import open_vocabulary
from ..vocab.tokenizer import Tokenizer, open_tokenizer
from ..vocab.vocabulary import Vocabulary
from .caption_options import COUNT, CaptionOptions
from .caption_plan import CaptionSlices
from .feature_index import marker_path
from .job_worker import Announce, UnitStats, no_announce
from .plan import Unit
from .tokens import SplitTokens

_STATISTICS = ("words", "unknown", "longest", "long_captions", "empty", "truncated")


class CaptionWorker:
    """Opens the vocabulary once, then does unit after unit."""

    device = "cpu"
    hanging = 0

    def __init__(self, dataset: Dataset, *, folder: Path, options: CaptionOptions) -> None:
        self.folder, self._options = folder, options
        self._slices = CaptionSlices(dataset)
        if options.task == COUNT:
            self._tokenizer = open_tokenizer(options.tokenizer)
            self.description = describe_captions(self._tokenizer)
        else:
            _, self._vocabulary = open_vocabulary(dataset, options.vocab)
            self.description = describe_captions(self._vocabulary.runnable_tokenizer, self._vocabulary)
        self.fingerprint = parts_fingerprint(options, self.description)

    def run(
        self,
        unit: Unit,
        *,
        careful: bool = False,
        skip: Mapping[int, str] | None = None,
        retry: bool = False,
        announce: Announce = no_announce,
    ) -> UnitStats:
        """A unit -> its file, then its marker. careful and skip mean nothing here: no caption is left out."""
        start = time.perf_counter()
        captions = self._slices.read(unit)
        path = part_path(self.folder, unit)
        with atomic_writer(path) as stream:
            (self._count if self._options.task == COUNT else self._encode)(captions, stream)
        size = path.stat().st_size
        write_sealed(
            marker_path(self.folder, unit.shard),
            {
                "schema_version": FEATURES_VERSION,
                "shard": unit.shard,
                "file": path.name,
                "fingerprint": unit.fingerprint(self.fingerprint),
                "rows": unit.images,
                "bytes": size,
                "failures": [],
            },
        )
        announce({"event": "progress", "images": unit.images, "failed": 0})
        return UnitStats(unit.shard, unit.images, 0, size, time.perf_counter() - start)

    def _count(self, captions: Mapping[str, pa.Table], stream: BinaryIO) -> None:
        tables = [captions[split] for split in self._options.splits if split in captions]
        counts = count_tokens(
            (chunk for table in tables for chunk in table_chunks(table)), tokenizer=self._tokenizer
        )
        document = {"captions": counts.captions, "counts": counts.counter}
        stream.write(json.dumps(document).encode())

    def _encode(self, captions: Mapping[str, pa.Table], stream: BinaryIO) -> None:
        arrays: dict[str, Any] = {}
        for split, table in captions.items():
            encoded = join_encoded(
                encode_captions(
                    table_chunks(table), vocabulary=self._vocabulary, max_words=self._options.max_words
                )
            )
            arrays[f"{split}.caption_ids"] = table["caption_id"].to_numpy()
            arrays[f"{split}.image_ids"] = table["image_id"].to_numpy()
            arrays[f"{split}.values"], arrays[f"{split}.lengths"] = encoded.values, encoded.lengths
            arrays[f"{split}.statistics"] = np.array([getattr(encoded, name) for name in _STATISTICS])
        np.savez(stream, **arrays)


def describe_captions(tokenizer: Tokenizer, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """What has to be the same on every machine."""
    return {"tokenizer": tokenizer.identity, "vocabulary": vocabulary and vocabulary.fingerprint}


def parts_fingerprint(options: CaptionOptions, description: Mapping[str, Any]) -> str:
    return fingerprint([options.identity(), dict(description)])


def part_path(folder: Path, unit: Unit) -> Path:
    return folder / f"{unit.shard}.part"


def read_counts(folder: Path, unit: Unit) -> TokenCounts:
    """What a worker counted."""
    document = json.loads(part_path(folder, unit).read_bytes())
    return TokenCounts(Counter(document["counts"]), document["captions"])


def read_tokens(folder: Path, unit: Unit, split: str) -> SplitTokens | None:
    """What a worker encoded of a split; None where the unit has none of its captions."""
    with np.load(part_path(folder, unit), allow_pickle=False) as arrays:
        if f"{split}.values" not in arrays:
            return None
        found = {
            name: arrays[f"{split}.{name}"] for name in ("caption_ids", "image_ids", "values", "lengths")
        }
        numbers = dict(zip(_STATISTICS, arrays[f"{split}.statistics"].tolist(), strict=True))
    return SplitTokens(
        found["caption_ids"],
        found["image_ids"],
        EncodedCaptions(values=found["values"], lengths=found["lengths"], **numbers),
    )
