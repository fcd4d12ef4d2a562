"""A .npy file -> a score matrix, and each caption's image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..manifests.dataset import Dataset
from .ranks import Scores


def read_scores(path: Path) -> Scores:
    """Memory-map a matrix of real numbers; anything else is an error that says what it is."""
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a readable .npy file ({error})") from None
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
        found = "an archive" if not isinstance(matrix, np.ndarray) else f"{matrix.ndim} dimensions"
        raise InputError(f"{path}: found {found}, expected one matrix, images × captions")
    if not np.issubdtype(matrix.dtype, np.floating):
        if not np.issubdtype(matrix.dtype, np.integer):
            raise InputError(f"{path}: found {matrix.dtype} values, expected real numbers")
        return np.asarray(matrix, np.float64)
    return matrix


def caption_owners(
    shape: tuple[int, ...], *, captions_per_image: int, dataset: Path | None, split: str
) -> npt.NDArray[np.int64]:
    """The image row of each caption: from a data set's split, or so many captions per image in order."""
    images, captions = shape
    if dataset is not None:
        opened = Dataset.open(dataset)
        ids = opened.select_images([split])["image_id"].to_numpy()
        row_of = np.full(opened.images.num_rows, -1, np.int64)
        row_of[ids] = np.arange(len(ids))
        owners: npt.NDArray[np.int64] = row_of[opened.select_captions([split])["image_id"].to_numpy()]
        if (len(ids), len(owners)) != (images, captions):
            raise InputError(
                f"scores: found {images}×{captions}, expected {len(ids)}×{len(owners)}, "
                f"the images × captions of split {split!r} of {dataset}"
            )
        return owners
    if captions != images * captions_per_image:
        turned = images == captions * captions_per_image
        advice = "it seems to be captions × images: transpose it" if turned else "set --captions-per-image"
        raise InputError(
            f"scores: found {images}×{captions}, expected {images}×{images * captions_per_image} "
            f"for {captions_per_image} captions per image; {advice}"
        )
    return np.arange(images).repeat(captions_per_image)
