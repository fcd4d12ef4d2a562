"""A small Visual Genome detector: the published one's layers, fewer and narrower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from camp.extractors.vg_detector import Sizes


@pytest.fixture(scope="session")
def small_sizes() -> Sizes:
    return Sizes(blocks=(1, 2, 2), width=8, hidden=16, classes=30, attributes=10)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this test is found by the next."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CAMP_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The networks are small: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
