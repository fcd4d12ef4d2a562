"""What many tests need: real data where it lies beside the checkout, a tiny data set, no leaked threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from camp.manifests.dataset import Dataset, write_generation
from camp.manifests.manifest import manifest_from_rows
from camp.schema import CaptionRow, ImageRow

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

SHARED_DATA = Path(os.environ.get("CAMP_REAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real photographs, captions and features, where it is present."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """A test that leaves a thread running fails."""
    before = set(threading.enumerate())
    yield
    leaked = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in leaked:
        thread.join(timeout=5)
    assert not [thread for thread in leaked if thread.is_alive()]


# A shell without job control starts background commands with Ctrl-C ignored, and they hand that down: tests
# that interrupt a child need it to listen.
signal.signal(signal.SIGINT, signal.default_int_handler)

MakeDataset = Callable[..., Dataset]


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """(images per split, captions per image) -> a small data set without pixels."""

    def make(
        counts: dict[str, int] | None = None,
        *,
        captions_per_image: int = 5,
        root: Path | None = None,
        previous: Dataset | None = None,
    ) -> Dataset:
        counts = counts or {"train": 6, "val": 2, "test": 3}
        first_image = 0 if previous is None else previous.images.num_rows
        first_caption = 0 if previous is None else previous.captions.num_rows
        splits = [split for split, count in counts.items() for _ in range(count)]
        images = [
            ImageRow(
                image_id=first_image + position,
                key=f"photo.{first_image + position:04d}.jpg",
                file=f"photo.{first_image + position:04d}.jpg",
                split=split,
                width=640,
                height=480,
                imgid=1000 + first_image + position,
                cocoid=500_000 + first_image + position,
            )
            for position, split in enumerate(splits)
        ]
        captions = [
            CaptionRow(
                caption_id=first_caption + number,
                image_id=first_image + number // captions_per_image,
                text=f"A dog number {number} runs on grass .",
                sentid=number,
            )
            for number in range(len(images) * captions_per_image)
        ]
        return write_generation(
            root or tmp_path / "dataset",
            manifest_from_rows(images, captions),
            name="tiny",
            source={"format": "test"},
            findings={},
            label_names=[],
            image_roots=["images"],
            previous=previous,
        )

    return make
