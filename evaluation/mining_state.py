"""Lists of finished blocks -> files beside the result, so that a killed mining goes on.

`FILE.parts/state.json` is the commit point: it names the files of the images' lists and the one of the
captions' lists, with their checksums. What it does not name is a leftover.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MismatchError, VerificationError
from ..files import atomic_writer, checksum_file, read_sealed, write_sealed

STATE_FILE = "state.json"


class MiningState:
    """What is on disk of an unfinished mining."""

    def __init__(self, out: Path, header: Mapping[str, Any]) -> None:
        self.folder = out.with_name(f"{out.name}.parts")
        self._header = dict(header)
        self.done = 0  # images whose lists are on disk
        self._rows: list[dict[str, str]] = []
        self._columns: dict[str, str] | None = None
        path = self.folder / STATE_FILE
        if not path.exists():
            return
        state = read_sealed(path)
        if state["header"] != self._header:
            raise MismatchError(
                f"{self.folder}: holds an unfinished mining of {_told(state['header'])}, but this one is of "
                f"{_told(self._header)}; remove the folder, or choose another --out"
            )
        self.done, self._rows, self._columns = state["done"], state["rows"], state["columns"]

    def columns(self) -> Tensor | None:
        """The captions' keys after `done` images."""
        return None if self._columns is None else torch.from_numpy(self._load(self._columns))

    def rows(self) -> Iterator[Tensor]:
        """The images' keys, in their order."""
        for entry in self._rows:
            yield torch.from_numpy(self._load(entry))

    def save(self, *, done: int, rows: Tensor, columns: Tensor) -> None:
        """The lists of the images since the last save, and of all captions."""
        before = self._columns
        self._rows = [*self._rows, self._write(f"images-{done:09d}.npy", rows)]
        self._columns = self._write(f"captions-{done:09d}.npy", columns)
        self.done = done
        state = {"header": self._header, "done": done, "rows": self._rows, "columns": self._columns}
        write_sealed(self.folder / STATE_FILE, state)
        if before is not None:
            (self.folder / before["file"]).unlink(missing_ok=True)

    def remove(self) -> None:
        """The result is written."""
        if self.folder.exists():
            (self.folder / STATE_FILE).unlink(missing_ok=True)
            shutil.rmtree(self.folder)

    def _write(self, name: str, keys: Tensor) -> dict[str, str]:
        path = self.folder / name
        with atomic_writer(path) as stream:
            np.save(stream, keys.cpu().numpy())
        return {"file": name, "checksum": checksum_file(path)}

    def _load(self, entry: Mapping[str, str]) -> Any:
        path = self.folder / entry["file"]
        if not path.is_file() or checksum_file(path) != entry["checksum"]:
            raise VerificationError(
                f"{path}: damaged or missing; remove {self.folder} and run the same command again"
            )
        return np.load(path, allow_pickle=False)


def _told(header: Mapping[str, Any]) -> str:
    run = header["run"]
    return (
        f"{run['model']} ({run['checkpoint']}, {run['checksum']}) on {header['dataset']['name']} "
        f"{header['split']}, top {header['top']['captions']} captions and {header['top']['images']} images"
    )
