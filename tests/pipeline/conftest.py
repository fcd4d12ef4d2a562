"""What tests of the pipeline share: photographs, an extractor that misbehaves on request, an S3 server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camp.extractors.extractor import RegionPolicy
from camp.manifests.dataset import Dataset
from camp.pipeline.extract_options import ExtractOptions

# Workers are processes of their own and import it by name. Features are a function of the pixels alone.
# An image's width decides what happens: 13 kills the worker, 17 never ends, 19 raises; 23 raises while
# WELL is absent. RUN_LOG gets a line per image, SLOW a pause.
FAKE_EXTRACTOR = """
import os, signal, threading, time
from pathlib import Path
import numpy as np
from camp.schema import Regions

class Fake:
    dim = 8
    class_names = ("thing", "stuff")
    attribute_names = None

    def __init__(self, policy, version):
        self.policy = policy
        self.config = {"model": "fake", "version": version, "regions": policy.max_regions}

    def prepare(self, photograph):
        width = photograph.width
        if width == 17:
            threading.Event().wait()
        if width == 19 or (width == 23 and not Path(os.environ["WELL"]).exists()):
            raise ValueError("this width is not liked")
        return photograph.pixels.astype(np.float32)

    def extract(self, prepared, photographs):
        time.sleep(float(os.environ.get("SLOW", "0")) * len(prepared))
        return [self.one(pixels, size) for pixels, size in zip(prepared, photographs)]

    def one(self, pixels, size):
        if size[0] == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if log := os.environ.get("RUN_LOG"):
            with open(log, "a") as stream:
                stream.write(f"{pixels.sum():.0f}\\n")
        count = self.policy.max_regions
        base = np.arange(count * self.dim, dtype=np.float32).reshape(count, self.dim)
        boxes = np.tile(np.array([0, 0, *size], np.float32), (count, 1))
        return Regions(boxes=boxes, features=base + pixels.sum() % 997 + 1, width=size[0], height=size[1],
                       classes=np.zeros(count, np.int32), class_scores=np.ones(count, np.float32))

def build(model, *, weights, sha256, policy, device, compile, version=1):
    if model == "broken":
        raise ValueError("no such thing")
    return Fake(policy, version)
"""


@pytest.fixture
def fake_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExtractOptions:
    """Options of the fake extractor; worker processes find it through PYTHONPATH."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "fake_extractor.py").write_text(FAKE_EXTRACTOR)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_EXTRACTOR", str(folder / "fake_extractor.py"))
    monkeypatch.setenv("WELL", str(tmp_path / "well"))
    return ExtractOptions(
        model="fake",
        builder="fake_extractor:build",
        policy=RegionPolicy(min_regions=3, max_regions=3, with_labels=True),
        dtype="float32",  # no torch in the workers: they start in a fraction of a second
        device="cpu",
        shard_size=4,
        batch=2,
        image_seconds=120.0,  # a busy machine is not an endless decode
    )


MakePhotographs = Callable[..., Dataset]


@pytest.fixture
def make_photographs(tmp_path: Path, make_dataset: Callable[..., Dataset]) -> MakePhotographs:
    """A data set with a small picture for each image; `widths` says which image is how wide."""

    def make(
        counts: dict[str, int] | None = None, widths: dict[int, int] | None = None, **more: object
    ) -> Dataset:
        dataset = make_dataset(counts, captions_per_image=1, **more)
        images = tmp_path / "dataset" / "images"
        images.mkdir(exist_ok=True)
        for row in dataset.image_rows():
            path = images / row.file
            if not path.exists():
                generator = np.random.default_rng(row.image_id)
                size = (
                    generator.choice([6, 8]),
                    (widths or {}).get(row.image_id, generator.choice([10, 12])),
                    3,
                )
                Image.fromarray(generator.integers(0, 256, size, dtype=np.uint8)).save(path, format="PNG")
        return dataset

    return make


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on a real S3 server on loopback."""
    pytest.importorskip("moto", reason="the package 'moto' is not installed")
    pytest.importorskip("s3fs", reason="the package 's3fs' is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.1)
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("pictures")
        yield "s3://pictures"
        s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.terminate()
        server.wait()
