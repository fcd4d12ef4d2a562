"""A long score matrix -> blocks of rows on disk, each whole or absent, so that a killed evaluation goes on.

`RUN/scores/<split>-<checkpoint>-<identity>/rows-00000.npy` holds the first images with every caption, and so
on. What a block holds depends on the plan alone, never on who computes it or when: under torchrun
every process takes its own blocks, and a matrix that was resumed is the one that was not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..files import atomic_writer, fingerprint

STORE_VERSION = 1
BLOCK_FLOATS = 1_000_000_000  # intermediate numbers behind one block: about a minute of CAMP on two cores
LONG_FLOATS = 5 * BLOCK_FLOATS  # from here on a matrix is worth keeping

Block = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ScoreStore:
    """The blocks of one matrix."""

    folder: Path
    shape: tuple[int, int]
    block_rows: int
    dtype: np.dtype[np.floating]

    def blocks(self) -> Iterator[tuple[Path, slice]]:
        """Every block's file and rows, in order."""
        for number, start in enumerate(range(0, self.shape[0], self.block_rows)):
            rows = slice(start, min(start + self.block_rows, self.shape[0]))
            yield self.folder / f"rows-{number:05d}.npy", rows

    def missing(self, *, rank: int = 0, world_size: int = 1) -> list[tuple[Path, slice]]:
        """What this process has yet to compute."""
        mine = list(self.blocks())[rank::world_size]
        return [(path, rows) for path, rows in mine if self._open(path, rows) is None]

    def write(self, path: Path, scores: Block) -> None:
        with atomic_writer(path) as stream:
            np.save(stream, scores.astype(self.dtype))

    def read(self) -> Block:
        """The whole matrix, in the precision it was kept in."""
        scores = np.empty(self.shape, self.dtype)
        for path, rows in self.blocks():
            block = self._open(path, rows)
            assert block is not None, f"{path} is not whole"
            scores[rows] = block
        return scores

    def _open(self, path: Path, rows: slice) -> Block | None:
        """A block, mapped; None where it is absent or damaged, to be made again."""
        try:
            block: Block = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        expected = (rows.stop - rows.start, self.shape[1])
        return block if (block.shape, block.dtype) == (expected, self.dtype) else None


def open_store(
    root: Path,
    name: str,
    *,
    identity: str,
    shape: tuple[int, int],
    pair_floats: int,
    dtype: str = "float32",
) -> ScoreStore:
    """The store of what `identity` names, empty or not; those of the same name but older are removed."""
    block_rows = max(1, BLOCK_FLOATS // max(1, pair_floats * shape[1]))
    plan = fingerprint(
        {
            "version": STORE_VERSION,
            "identity": identity,
            "shape": list(shape),
            "block_rows": block_rows,
            "dtype": dtype,
        }
    )
    folder = root / f"{name}-{plan.rsplit(':', 1)[-1][:16]}"
    for other in root.glob(f"{name}-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return ScoreStore(folder=folder, shape=shape, block_rows=min(block_rows, shape[0]), dtype=np.dtype(dtype))


def is_long(shape: tuple[int, int], *, pair_floats: int) -> bool:
    """Whether a matrix takes long enough to be kept as it grows."""
    return pair_floats * shape[0] * shape[1] >= LONG_FLOATS
