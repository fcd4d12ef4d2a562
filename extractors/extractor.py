"""What every extractor is: photographs of one shape -> the regions of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from ..schema import Regions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Photograph:
    """One decoded image, upright."""

    pixels: npt.NDArray[np.uint8]  # (height, width, 3) RGB

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


@dataclass(frozen=True, slots=True)
class RegionPolicy:
    """How many regions an image gets and which ones."""

    min_regions: int = 36
    max_regions: int = 36
    select: str = "anderson"  # anderson | maxnms | score
    boxes: str = "proposal"  # proposal | regressed: which of the two is kept as `boxes`
    with_labels: bool = False  # keep classes, attributes and their scores
    with_both_boxes: bool = False  # keep the regressed boxes beside the proposals

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("select", self.select, ("anderson", "maxnms", "score")),
            ("boxes", self.boxes, ("proposal", "regressed")),
        ):
            if value not in allowed:
                raise InputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
        if not 1 <= self.min_regions <= self.max_regions:
            raise InputError(
                f"{self.min_regions} to {self.max_regions} regions asked for; expected 1 <= min <= max"
            )
        if self.with_both_boxes and self.boxes == "regressed":
            raise InputError("with both box sets kept, boxes are the proposals; leave boxes at 'proposal'")


class Extractor(Protocol):
    """One photograph's regions never depend on what else is in the call."""

    @property
    def dim(self) -> int:
        """Length of a region's feature."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides the output, as JSON: model, weights hash, preprocessing, selection."""

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names behind Regions.classes, where the model has them."""

    @property
    def attribute_names(self) -> Sequence[str] | None:
        """Names behind Regions.attributes, where the model has them."""

    def prepare(self, photograph: Photograph) -> npt.NDArray[Any]:
        """Resize and lay out one photograph; runs in decoding threads. Its .shape is the bucket key."""

    def extract(
        self, prepared: Sequence[npt.NDArray[Any]], photographs: Sequence[tuple[int, int]]
    ) -> list[Regions]:
        """Prepared images of one shape and their original (width, height) -> their regions, in order.

        At most max_regions each; fewer than min_regions where the image has no more. Padding is the shard's
        affair.
        """
