"""remote_dataset.py: images and features behind URLs, plain ones and those of an S3 server on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camp.errors import CampError, InputError, StorageError
from camp.manifests.dataset import Dataset
from camp.pipeline.executor_slurm import SlurmExecutor
from camp.pipeline.extract_job import extract_features
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.remote_dataset import RemoteMirror, open_dataset
from camp.pipeline.remote_files import RemoteFiles

MakePhotographs = Callable[..., Dataset]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMP_CACHE", str(tmp_path / "cache"))


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_features_behind_a_url_are_those_of_a_folder(
    tmp_path: Path, make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 10, "val": 2}, widths={4: 23})
    shutil.copytree(dataset.root, tmp_path / "there")
    url = f"file://{tmp_path}/there"
    extract_features(dataset, name="fake", options=fake_options, workers=2)
    summary = extract_features(open_dataset(url), name="fake", options=fake_options, workers=2)
    assert (summary.done, summary.failed) == (11, 1)
    there = tmp_path / "there" / "features" / "fake"
    assert folder_bytes(there) == folder_bytes(dataset.features_folder("fake"))
    again = extract_features(open_dataset(url), name="fake", options=fake_options)
    assert (again.units_before, again.units_now) == (4, 0)

    (there / "train-00002.arrow").write_bytes(b"cut short")  # its marker no longer counts
    (tmp_path / "well").touch()
    again = extract_features(open_dataset(url), name="fake", options=fake_options, retry_failed=True)
    assert (again.units_now, again.done) == (2, 12)
    extract_features(dataset, name="fake", options=fake_options, retry_failed=True)
    assert folder_bytes(there) == folder_bytes(dataset.features_folder("fake"))


def test_the_marker_goes_last_and_is_withdrawn_first(
    tmp_path: Path,
    make_photographs: MakePhotographs,
    fake_options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = make_photographs({"train": 4})
    extract_features(dataset, name="fake", options=fake_options)
    mirror = RemoteMirror(f"file://{tmp_path}/there", dataset.features_folder("fake"))
    calls: list[tuple[str, str]] = []
    for action in ("upload", "write", "remove"):
        real = getattr(RemoteFiles, action)

        def recorded(self: Any, *args: Any, real: Any = real, action: str = action, **kwargs: Any) -> Any:
            calls.append((action, str(args[-1] if action == "upload" else args[0])))
            return real(self, *args, **kwargs)

        monkeypatch.setattr(RemoteFiles, action, recorded)
    mirror.push("train-00000")
    assert calls == [("upload", "train-00000.arrow"), ("write", "train-00000.json")]
    calls.clear()
    mirror.push("train-00000")  # the same again
    assert calls == []
    (tmp_path / "there" / "train-00000.json").write_text("another")
    mirror.push("train-00000")
    assert calls == [
        ("remove", "index.json"),
        ("remove", "train-00000.json"),
        ("upload", "train-00000.arrow"),
        ("write", "train-00000.json"),
    ]


def test_trouble_with_the_storage_is_one_sentence(
    tmp_path: Path, make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    with pytest.raises(InputError, match="no dataset.json found"):
        open_dataset(f"file://{tmp_path}/nowhere")
    with pytest.raises(CampError, match=r"nosuch://x/y"):
        open_dataset("nosuch://x/y")
    pytest.importorskip("submitit", reason="the package 'submitit' is not installed")
    dataset = make_photographs({"train": 2})
    with pytest.raises(InputError, match="needs a data set on a file system that all nodes share"):
        extract_features(
            open_dataset(f"file://{dataset.root}"), name="x", options=fake_options, executor=SlurmExecutor()
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # botocore's own
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_s3(s3_bucket: str, make_photographs: MakePhotographs, fake_options: ExtractOptions) -> None:
    import s3fs

    dataset = make_photographs({"train": 6, "val": 2})
    extract_features(dataset, name="undisturbed", options=fake_options)
    system = s3fs.S3FileSystem(use_listings_cache=False)
    for path in dataset.root.rglob("*"):
        if path.is_file() and "features" not in path.parts:
            system.put_file(str(path), f"pictures/set/{path.relative_to(dataset.root)}")
    summary = extract_features(open_dataset(f"{s3_bucket}/set"), name="fake", options=fake_options, workers=2)
    assert summary.complete
    expected = folder_bytes(dataset.features_folder("undisturbed"))
    found = {
        name.rsplit("/", 1)[1]: system.cat_file(name)
        for name in system.ls("pictures/set/features/fake")
        if not name.endswith(".extraction")
    }
    assert found == expected
    again = extract_features(open_dataset(f"{s3_bucket}/set"), name="fake", options=fake_options)
    assert again.units_now == 0
    with pytest.raises((StorageError, InputError)):
        open_dataset("s3://nosuchbucket/set")
