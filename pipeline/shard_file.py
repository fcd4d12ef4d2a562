"""The two file formats behind one set of functions: create, describe, locate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from ..errors import VerificationError
from ..files import unseal
from ..schema import FEATURES_VERSION
from .feature_spec import FeatureSpec
from .shard_layout import ShardLayout

Array = npt.NDArray[Any]

# h5py and pyarrow are imported where they are needed: a reader of Arrow shards needs neither.


class ShardFile(Protocol):
    """A shard being written."""

    def fileno(self) -> int: ...

    def write(self, columns: Mapping[str, Array], digest: str) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


def create_shard_file(path: Path, spec: FeatureSpec, meta: bytes) -> ShardFile:
    """A new file that carries `meta`; blocks are then written to it."""
    if spec.store == "arrow":
        from .arrow_shard import ArrowShardFile

        return ArrowShardFile(path, spec, meta)
    from .hdf5_shard import Hdf5ShardFile

    return Hdf5ShardFile(path, spec, meta)


def read_meta(path: Path) -> dict[str, Any]:
    """A shard file -> what it says of itself: shard, spec, fingerprint, capacity, provenance."""
    if path.suffix == ".arrow":
        from .arrow_shard import read_arrow_meta as read
    else:
        from .hdf5_shard import read_hdf5_meta as read
    meta = unseal(read(path), source=path)
    if meta.get("schema_version") != FEATURES_VERSION:
        raise VerificationError(
            f"{path}: schema version {meta.get('schema_version')}, expected {FEATURES_VERSION}; "
            "use the release that wrote it"
        )
    return meta


def locate(path: Path, spec: FeatureSpec, meta: bytes) -> tuple[ShardLayout, list[str]]:
    """A shard file -> where its columns are, and the digest of each batch of rows."""
    if spec.store == "arrow":
        from .arrow_shard import locate_arrow

        return locate_arrow(path, spec, meta)
    from .hdf5_shard import locate_hdf5

    return locate_hdf5(path, spec, meta)
