"""What a feature set stores -> its columns, their shapes and types, the same for both file formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InputError, VerificationError

STORES = {"arrow": ".arrow", "hdf5": ".h5"}  # name -> suffix of a shard
DTYPES = ("float16", "float32")
SHORT = ("pad-zero", "pad-repeat", "error")
OPTIONAL_COLUMNS = ("classes", "class_scores", "attributes", "attribute_scores", "regressed_boxes")

_SHARD_NAME = re.compile(r"([a-z][a-z0-9_-]*)-(\d{5,})")
_BATCH_BYTES = (
    32 << 20
)  # what is staged in memory before it is written, and the size of an Arrow record batch
_BATCH_ROWS = (64, 256)


class Column(NamedTuple):
    """One column: what a single image has in it."""

    name: str
    dtype: npt.DTypeLike
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """R regions of D numbers an image. Boxes and scores are always float32."""

    regions: int  # R
    dim: int  # D
    dtype: str = "float16"
    store: str = "arrow"
    columns: tuple[str, ...] = ()  # of OPTIONAL_COLUMNS
    short: str = "pad-zero"  # what an image with fewer than R regions gets
    boxes: bool = True  # False where the source has none: zeros are stored, and a size of 0×0 is allowed

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("dtype", self.dtype, DTYPES),
            ("store", self.store, tuple(STORES)),
            ("short", self.short, SHORT),
        ):
            if value not in allowed:
                raise InputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
        if self.regions < 1 or self.dim < 1:
            raise InputError(f"{self.regions} regions of {self.dim} numbers; both must be at least 1")
        unknown = [name for name in self.columns if name not in OPTIONAL_COLUMNS]
        if unknown:
            raise InputError(f"no column {unknown[0]!r}; there are {', '.join(OPTIONAL_COLUMNS)}")
        # One order, so that the same columns always give the same bytes.
        ordered = tuple(name for name in OPTIONAL_COLUMNS if name in self.columns)
        object.__setattr__(self, "columns", ordered)

    def layout(self) -> list[Column]:
        """Every column in file order: the small ones first, the features last."""
        R = self.regions
        optional = {
            "classes": Column("classes", np.int32, (R,)),
            "class_scores": Column("class_scores", np.float32, (R,)),
            "attributes": Column("attributes", np.int32, (R,)),
            "attribute_scores": Column("attribute_scores", np.float32, (R,)),
            "regressed_boxes": Column("regressed_boxes", np.float32, (R, 4)),
        }
        return [
            Column("image_id", np.int64, ()),
            Column("num_regions", np.int32, ()),
            Column("size", np.int32, (2,)),  # width, height
            Column("boxes", np.float32, (R, 4)),  # xyxy in original pixels
            *(optional[name] for name in self.columns),
            Column("features", self.dtype, (R, self.dim)),
        ]

    @property
    def batch_rows(self) -> int:
        """Rows that are staged and written together."""
        row_bytes = sum(column.row_bytes for column in self.layout())
        low, high = _BATCH_ROWS
        return max(low, min(high, _BATCH_BYTES // row_bytes))

    @property
    def suffix(self) -> str:
        return STORES[self.store]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "columns": list(self.columns)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, source: object) -> FeatureSpec:
        """What to_json gave -> the spec; `source` is named when it is something else."""
        names = {field.name for field in fields(cls)}
        try:
            if set(value) != names:
                raise InputError(f"fields {sorted(value)}, expected {sorted(names)}")
            return cls(**{**value, "columns": tuple(value["columns"])})
        except (InputError, TypeError, ValueError) as error:
            raise VerificationError(f"{source}: not a feature description ({error})") from None

    def differences(self, other: FeatureSpec) -> list[str]:
        """What differs, as 'dtype float16, not float32'."""
        mine, theirs = self.to_json(), other.to_json()
        return [f"{name} {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]


def shard_name(split: str, number: int) -> str:
    """('train', 0) -> 'train-00000'."""
    return f"{split}-{number:05d}"


def parse_shard_name(shard: str) -> tuple[str, int]:
    """'train-00000' -> ('train', 0)."""
    match = _SHARD_NAME.fullmatch(shard)
    if match is None:
        raise InputError(f"shard {shard!r}: expected a name such as 'train-00000'")
    return match[1], int(match[2])


def is_shard_name(name: str) -> bool:
    return _SHARD_NAME.fullmatch(name) is not None
