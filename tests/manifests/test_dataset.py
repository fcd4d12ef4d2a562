"""The data set directory: generations, append, and what a kill or a damaged file does to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camp import files
from camp.errors import InputError, MismatchError, StorageError, VerificationError
from camp.manifests.dataset import Dataset
from camp.manifests.importing import append_dataset, import_dataset
from camp.manifests.source import SourceOptions
from camp.manifests.summary import summarize_manifest

MakeDataset = Callable[..., Dataset]


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FIRST = [
    {"image": "a.jpg", "caption": "a one", "split": "train", "labels": ["dog"]},
    {"image": "a.jpg", "caption": "a two", "split": "train", "labels": ["dog"]},
    {"image": "b.jpg", "caption": "b one", "split": "test", "labels": ["ant"]},
]
MORE = [
    {"image": "b.jpg", "caption": "b one", "split": "test", "labels": ["ant"]},
    {"image": "b.jpg", "caption": "b two", "split": "test", "labels": ["ant"]},
    {"image": "c.jpg", "caption": "c one", "split": "val", "labels": ["bee", "dog"]},
]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return import_dataset(table(tmp_path / "first.jsonl", FIRST), format="table", out=tmp_path / "d").dataset


class TestAppend:
    def test_new_images_and_captions_get_new_ids(self, tmp_path: Path, dataset: Dataset) -> None:
        before = {path: path.read_bytes() for path in (dataset.root / "manifest").iterdir()}
        result = append_dataset(dataset, table(tmp_path / "more.jsonl", MORE), format="table")
        after = result.dataset
        assert (result.added_images, result.added_captions) == (1, 2)
        assert after.images["key"].to_pylist() == ["a.jpg", "b.jpg", "c.jpg"]
        assert after.images["image_id"].to_pylist() == [0, 1, 2]
        assert after.captions["caption_id"].to_pylist() == [0, 1, 2, 3, 4]
        assert after.captions["image_id"].to_pylist() == [0, 0, 1, 1, 2]
        assert after.label_names == ["ant", "dog", "bee"]  # earlier numbers stay
        assert after.images["labels"].to_pylist() == [[1], [0], [1, 2]]
        assert after.counts == {
            "train": {"images": 1, "captions": 2},
            "val": {"images": 1, "captions": 1},
            "test": {"images": 1, "captions": 2},
        }
        assert all(path.read_bytes() == content for path, content in before.items())
        assert after.fingerprint != dataset.fingerprint
        assert after.generations[0] == dataset.generations[0]

    def test_a_second_time_adds_nothing(self, tmp_path: Path, dataset: Dataset) -> None:
        source = table(tmp_path / "more.jsonl", MORE)
        after = append_dataset(dataset, source, format="table").dataset
        again = append_dataset(Dataset.open(dataset.root), source, format="table")
        assert (again.added_images, again.added_captions) == (0, 0)
        assert again.dataset.fingerprint == after.fingerprint
        assert len(again.dataset.generations) == 2

    def test_an_image_never_changes_its_split(self, tmp_path: Path, dataset: Dataset) -> None:
        moved = [{"image": "a.jpg", "caption": "x", "split": "test"}]
        with pytest.raises(
            InputError, match="'a.jpg': found in split 'test', but the data set has it in 'train'"
        ):
            append_dataset(dataset, table(tmp_path / "moved.jsonl", moved), format="table")

    def test_another_image_root_is_kept_apart(self, tmp_path: Path, dataset: Dataset) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "c.jpg").touch()
        after = append_dataset(
            dataset,
            table(tmp_path / "more.jsonl", MORE[2:]),
            format="table",
            options=SourceOptions(images=str(elsewhere)),
            sizes=False,
        ).dataset
        rows = list(after.image_rows())
        assert Path(after.image_path(rows[2])) == elsewhere / "c.jpg"
        with pytest.raises(InputError, match="'a.jpg' has no file"):
            after.image_path(rows[0])

    def test_killed_before_the_header_changes_nothing(
        self, tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = table(tmp_path / "more.jsonl", MORE)

        def die(path: Path, content: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("camp.manifests.dataset.write_sealed", die)
        with pytest.raises(KeyboardInterrupt):
            append_dataset(dataset, source, format="table")
        monkeypatch.undo()
        assert Dataset.open(dataset.root).images.num_rows == 2
        assert append_dataset(Dataset.open(dataset.root), source, format="table").added_images == 1


def test_an_existing_data_set_is_not_overwritten(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(InputError, match=r"already holds data set 'd' \(2 images\)"):
        import_dataset(table(tmp_path / "first.jsonl", FIRST), format="table", out=dataset.root)


def test_header_and_files_are_checked(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(InputError, match=r"no dataset.json found, expected a data set"):
        Dataset.open(tmp_path)
    header = json.loads((dataset.root / "dataset.json").read_text())
    (dataset.root / "dataset.json").write_text(json.dumps({**header, "schema_version": 99}))
    with pytest.raises(MismatchError, match="schema version 99, expected 1"):
        Dataset.open(dataset.root)
    (dataset.root / "dataset.json").write_text("{")
    with pytest.raises(VerificationError, match="not a data set header"):
        Dataset.open(dataset.root)
    (dataset.root / "dataset.json").write_text(json.dumps(header))
    (dataset.root / "manifest" / "images.parquet").write_bytes(b"junk")
    with pytest.raises(VerificationError, match=r"images\.parquet: cannot be read"):
        _ = Dataset.open(dataset.root).images


def test_unknown_split_names_the_known_ones(make_dataset: MakeDataset) -> None:
    with pytest.raises(InputError, match="no split 'dev'; this data set has train, val, test"):
        make_dataset().select_images(["dev"])


def test_moving_the_data_set_with_its_images_keeps_paths_right(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "images").mkdir(parents=True)
    (home / "images" / "a.jpg").touch()
    source = table(home / "t.jsonl", [{"image": "a.jpg", "caption": "x"}])
    import_dataset(source, format="table", out=home / "d", sizes=False)
    home.rename(tmp_path / "moved")
    moved = Dataset.open(tmp_path / "moved" / "d")
    assert Path(moved.image_path(next(moved.image_rows()))) == tmp_path / "moved" / "images" / "a.jpg"


def test_summary_tells_everything(tmp_path: Path, dataset: Dataset) -> None:
    append_dataset(dataset, table(tmp_path / "more.jsonl", MORE), format="table")
    facts = summarize_manifest(Dataset.open(dataset.root))
    assert facts["splits"]["test"]["captions_per_image"] == {"min": 2, "mean": 2.0, "max": 2}
    assert [generation["images"] for generation in facts["generations"]] == [2, 1]
    assert facts["findings"]["images the data set has already, new captions added"]["count"] == 1


class TestAtomicFiles:
    def test_whole_or_absent(self, tmp_path: Path) -> None:
        target = tmp_path / "x.bin"
        with pytest.raises(ZeroDivisionError), files.atomic_writer(target) as stream:
            stream.write(bytes([1 // len(list(tmp_path.glob("absent")))]))
        assert list(tmp_path.iterdir()) == []
        files.write_atomic(target, b"whole")
        assert target.read_bytes() == b"whole"
        assert files.checksum_file(target) == files.checksum_bytes(b"whole")

    def test_a_full_disk_is_one_clear_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(
            StorageError, match="x.bin: no space left on the disk; free some and run the same"
        ):
            files.write_atomic(tmp_path / "x.bin", b"content")
        assert list(tmp_path.iterdir()) == []
