"""The records that cross rooms, and the versions of what is written to disk."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor

DATASET_VERSION = 1
FEATURES_VERSION = 1
VOCAB_VERSION = 1
TOKENS_VERSION = 1

SPLITS = ("train", "val", "test", "all")  # 'all' is what a folder of images has


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of the manifest. image_id is assigned once and never reused."""

    image_id: int
    key: str  # the whole file name, or the foreign id where there is no file
    file: str  # relative to the image root; '' where only features exist
    split: str
    width: int | None = None
    height: int | None = None
    imgid: int | None = None  # Karpathy's
    cocoid: int | None = None
    labels: tuple[int, ...] | None = None  # indices into the data set's label names
    root: int = 0  # which of the data set's image roots `file` is relative to


@dataclass(frozen=True, slots=True)
class CaptionRow:
    """One caption of the manifest."""

    caption_id: int
    image_id: int
    text: str
    sentid: int | None = None


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one image, best first. Boxes are xyxy in pixels of the upright original image."""

    boxes: npt.NDArray[np.float32]  # (n, 4)
    features: npt.NDArray[np.float32]  # (n, D)
    width: int
    height: int
    classes: npt.NDArray[np.int32] | None = None  # (n,)
    class_scores: npt.NDArray[np.float32] | None = None  # (n,)
    attributes: npt.NDArray[np.int32] | None = None  # (n,)
    attribute_scores: npt.NDArray[np.float32] | None = None  # (n,)
    regressed_boxes: npt.NDArray[np.float32] | None = None  # (n, 4)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model trains on: distinct images, and captions that point to them."""

    regions: Tensor  # (I, R, D)
    region_mask: Tensor  # (I, R) bool, true where a region is real
    boxes: Tensor  # (I, R, 4)
    tokens: Tensor  # (C, N) int64, padded with 0
    lengths: Tensor  # (C,) int64
    image_ids: Tensor  # (I,) int64
    caption_ids: Tensor  # (C,) int64
    caption_image: Tensor  # (C,) int64, the row of each caption's image
    labels: Tensor | None = None  # (I, L) multi-hot
    region_classes: Tensor | None = None  # (I, R) int64, what the detector took each region for
    negative_image: Tensor | None = None  # (C,) the row of an image mined for each caption, -1 for none
    negative_caption: Tensor | None = None  # (C,) the row of a caption mined for its image, -1 for none
    partner_caption: Tensor | None = None  # (C,) the row of a caption of that mined image, -1 for none
    joined: Tensor | None = None  # (C,) bool: true where a caption came only as a negative; these are last

    @property
    def anchors(self) -> int:
        """How many captions, the first ones, stand for a positive pair."""
        return len(self.caption_ids) if self.joined is None else int((~self.joined).sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same on a device; what Lightning and Accelerate call."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            moved[field.name] = None if value is None else value.to(device, non_blocking=non_blocking)
        return Batch(**moved)
