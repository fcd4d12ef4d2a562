"""Mined negatives <-> one Parquet file that says what it was mined from.

A row per query: `query` ('image' or 'caption'), `id`, `negatives` (ids of captions or images, hardest first)
and their `scores`. The header is JSON in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, MismatchError, VerificationError
from ..files import atomic_writer, canonical_json
from ..manifests.dataset import Dataset
from .negatives_join import OfflineNegatives

MINED_VERSION = 1
QUERIES = ("image", "caption")

_METADATA = b"camp.mined"
_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("negatives", pa.list_(pa.int64()), nullable=False),
        pa.field("scores", pa.list_(pa.float32()), nullable=False),
    ]
)

Ints = npt.NDArray[np.int64]
Lists = tuple[str, Ints, Ints, npt.NDArray[np.float32]]
"""'image' or 'caption', the queries' ids (n,), their negatives' ids (n, h) with -1 behind the end, scores."""


def write_negatives(path: Path, header: Mapping[str, Any], lists: Iterable[Lists]) -> None:
    """Lists in groups, images before captions -> the file, whole or not at all; the same bytes every time."""
    metadata = {_METADATA: canonical_json({"schema_version": MINED_VERSION, **header})}
    with (
        atomic_writer(path) as stream,
        pq.ParquetWriter(
            stream, _SCHEMA.with_metadata(metadata), compression="zstd", use_dictionary=["query"]
        ) as writer,
    ):
        for query, ids, negatives, scores in lists:
            there = negatives >= 0
            offsets = pa.array(np.concatenate([[0], there.sum(axis=1).cumsum()]).astype(np.int32))
            writer.write_table(
                pa.table(
                    [
                        pa.array([query] * len(ids), pa.string()),
                        pa.array(ids, pa.int64()),
                        pa.ListArray.from_arrays(offsets, pa.array(negatives[there], pa.int64())),
                        pa.ListArray.from_arrays(offsets, pa.array(scores[there], pa.float32())),
                    ],
                    schema=_SCHEMA,
                )
            )


def read_header(path: Path) -> dict[str, Any]:
    """A mined file -> what it was mined from."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        header: dict[str, Any] = json.loads(metadata[_METADATA])
        version = header.pop("schema_version")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; make it with 'camp mine RUN --out {path}'") from None
    except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
        raise VerificationError(f"{path}: not a file of mined negatives ({error!r})") from None
    if version != MINED_VERSION:
        raise MismatchError(f"{path}: schema version {version}, expected {MINED_VERSION}; mine again")
    return header


def read_negatives(path: Path) -> OfflineNegatives:
    """A mined file -> the lists that the loader joins."""
    read_header(path)
    try:
        table = pq.read_table(path, columns=["query", "id", "negatives"])
    except (pa.ArrowInvalid, OSError) as error:
        raise VerificationError(f"{path}: damaged ({error}); mine again") from None
    found: dict[str, tuple[Ints, Ints]] = {}
    for query in QUERIES:
        rows = table.filter(pa.compute.equal(table["query"], query))
        found[query] = rows["id"].to_numpy(), _rectangle(rows["negatives"].combine_chunks())
    return OfflineNegatives(
        caption_ids=found["caption"][0],
        images=found["caption"][1],
        image_ids=found["image"][0],
        captions=found["image"][1],
    )


def _rectangle(lists: pa.ListArray) -> Ints:
    """Lists of different lengths -> (n, longest), -1 behind the end of each."""
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    lengths = np.diff(lists.offsets.to_numpy())
    made = np.full((len(lists), int(lengths.max(initial=0))), -1, np.int64)
    made[np.arange(made.shape[1]) < lengths[:, None]] = lists.flatten().to_numpy()
    return made


def check_origin(
    path: Path, *, dataset: Dataset, split: str, features: str, vocab: str, other_inputs: bool = False
) -> dict[str, Any]:
    """Refuse lists that were mined from something else -> their header.

    `features` and `vocab` are fingerprints. Ids stay right when only those differ, so that `other_inputs`
    allows it.
    """
    header = read_header(path)
    found = header["dataset"]["fingerprint"]
    if found not in dataset.history:  # what was appended since has no lists, and needs none
        raise MismatchError(
            f"{path}: mined from data set {header['dataset']['name']} ({found}), but {dataset.root} is "
            f"{dataset.fingerprint}; mine again"
        )
    if header["split"] != split:
        raise MismatchError(
            f"{path}: mined from split {header['split']!r}, expected {split!r}; mine that with --split"
        )
    if not other_inputs:
        for part, expected in (("features", features), ("vocab", vocab)):
            if header[part]["fingerprint"] != expected:
                raise MismatchError(
                    f"{path}: mined with {part} {header[part]['name']!r} "
                    f"({header[part]['fingerprint']}), but this run has {expected}; mine again, or set "
                    "negatives.other_inputs=true if that is meant"
                )
    return header
