"""COCO 5K scores -> CxC recalls, ECCV Caption's mAP@R, R-precision and R@1, and PMRP.

Other annotators' judgements of the same test set, where a caption may fit more images than the one it was
written for. The judgements come with the package `eccv_caption` (those of PMRP are a download of their own).
"""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError, MissingPackageError
from ..manifests.dataset import Dataset
from .ranks import Scores

Ints = npt.NDArray[np.int64]

_DIRECTIONS = {"i2t": "caption_retrieval", "t2i": "image_retrieval"}


def coco_ids(dataset: Dataset, image_ids: Ints, caption_ids: Ints) -> tuple[Ints, Ints]:
    """A data set's own ids -> COCO's, of images and of captions."""
    found = []
    for table, key, column, ids in (
        (dataset.images, "image_id", "cocoid", image_ids),
        (dataset.captions, "caption_id", "sentid", caption_ids),
    ):
        rows = table.take(pc.index_in(pa.array(ids), table[key].combine_chunks()))
        if rows[column].null_count:
            raise InputError(
                f"{dataset.root}: {rows[column].null_count:,} rows without {column}; --eccv is for COCO as "
                "Karpathy split it, imported with its cocoid and sentid"
            )
        found.append(rows[column].to_numpy().astype(np.int64))
    return found[0], found[1]


def load_judgements(pmrp: Path | None = None) -> Any:
    """The package's Metrics object; `pmrp` is the folder of its two pm_*.json files."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of two packages it can do without
            from eccv_caption import Metrics
    except ImportError:
        raise MissingPackageError(
            "--eccv needs the package eccv_caption; pip install 'camp-toolkit[eccv]'"
        ) from None
    if pmrp is not None:
        for name in ("pm_image_to_caption.json", "pm_caption_to_image.json"):
            if not (pmrp / name).is_file():
                raise InputError(f"{pmrp}: no {name} found; see the eccv_caption package for the download")
    return Metrics(extra_file_dir=None if pmrp is None else str(pmrp))


def eccv_metrics(scores: Scores, cocoids: Ints, sentids: Ints, judgements: Any) -> dict[str, Any]:
    """(I, C) scores and COCO's ids of rows and columns -> percent, by metric and direction."""
    rows = np.flatnonzero(np.isin(cocoids, list(judgements.coco_gts["i2t"])))
    columns = np.flatnonzero(np.isin(sentids, judgements.coco_ids))  # a sixth caption is nobody's
    expected = (len(judgements.coco_gts["i2t"]), len(judgements.coco_ids))
    if (len(rows), len(columns)) != expected:
        raise InputError(
            f"found {len(rows):,} images and {len(columns):,} captions of COCO's test set, expected "
            f"{expected[0]:,} and {expected[1]:,}: Karpathy's test split, all of it"
        )
    block = np.asarray(scores[np.ix_(rows, columns)])
    images, captions = cocoids[rows], sentids[columns]
    sets = [judgements.cxc_gts, judgements.eccv_gts, *([judgements.pm_gts] if judgements.pm_gts else [])]

    def longest(direction: str) -> int:
        return max(10, *(len(right) for judged in sets for right in judged[direction].values()))

    own = {int(caption): right for caption, right in judgements.coco_gts["t2i"].items()}
    owner = np.array([own[int(caption)][0] for caption in captions])
    retrieved = {
        "i2t": {
            int(image): _best(block[row], owner == image, captions, longest("i2t"))
            for row, image in enumerate(images)
        },
        "t2i": {
            int(caption): _best(block[:, column], images == owner[column], images, longest("t2i"))
            for column, caption in enumerate(captions)
        },
    }
    targets = ["cxc_recalls", "eccv_r1", "eccv_map_at_r", "eccv_rprecision"]
    with contextlib.redirect_stderr(io.StringIO()):  # it draws progress bars, asked or not
        found = judgements.compute_all_metrics(retrieved["i2t"], retrieved["t2i"], target_metrics=targets)
        if judgements.pm_gts:
            found["pmrp"] = judgements.pmrp(retrieved, "all")
    return {
        direction: {name: 100 * float(values[short]) for name, values in found.items()}
        for short, direction in _DIRECTIONS.items()
    }


def _best(scores: npt.NDArray[Any], right: npt.NDArray[np.bool_], ids: Ints, count: int) -> list[int]:
    """The ids of the highest scores, best first; among equal ones the right answer comes last."""
    count = min(count, len(scores))
    bound = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero(scores >= bound)
    order = np.lexsort((right[candidates], -scores[candidates]))[:count]
    return [int(number) for number in ids[candidates[order]]]
