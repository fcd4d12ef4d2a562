"""The sample on disk: Karpathy's schema, the same bytes however it was made, and nothing foreign touched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from camp.cli import camp_data
from camp.errors import InputError
from camp.manifests.scenes import sample
from camp.manifests.scenes.records import split_of, split_sizes
from camp.manifests.scenes.sample import write_sample
from camp.manifests.scenes.scene import KINDS, sample_scene


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "small"
    write_sample(folder, images=60, seed=3, workers=1)
    return folder


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_captions_follow_karpathys_schema(small: Path) -> None:
    data = json.loads((small / "karpathy.json").read_text())
    assert set(data) == {"images", "dataset"}
    assert data["dataset"] == "camp-sample"
    sentids = []
    for number, image in enumerate(data["images"]):
        assert set(image) == {"filename", "imgid", "sentids", "split", "sentences"}
        assert image["imgid"] == number
        assert image["split"] in ("train", "val", "test")
        assert (small / "images" / image["filename"]).is_file()
        assert image["sentids"] == [sentence["sentid"] for sentence in image["sentences"]]
        assert len(image["sentids"]) == 5
        sentids += image["sentids"]
        for sentence in image["sentences"]:
            assert set(sentence) == {"raw", "tokens", "imgid", "sentid"}
            assert sentence["imgid"] == number
            assert " ".join(sentence["tokens"]) == sentence["raw"].lower().replace(",", "").rstrip(".")
    assert sentids == list(range(300))


def test_the_objects_lie_beside_the_images(small: Path) -> None:
    data = json.loads((small / "objects.json").read_text())
    captions = json.loads((small / "karpathy.json").read_text())["images"]
    assert data["classes"] == list(KINDS)
    by_name = {image["filename"]: image for image in data["images"]}
    for image, captioned in zip(data["images"], captions, strict=True):
        assert (image["filename"], image["split"]) == (captioned["filename"], captioned["split"])
        with Image.open(small / "images" / image["filename"]) as picture:
            assert picture.size == (image["width"], image["height"])
            assert picture.format == "JPEG"
        for thing in image["objects"]:
            assert data["classes"][thing["label"]] == thing["kind"]
            x1, y1, x2, y2 = thing["box"]
            assert 0 <= x1 < x2 <= image["width"]
            assert 0 <= y1 < y2 <= image["height"]
        if image["partner"] is None:
            assert image["difference"] is None
            continue
        partner = by_name[image["partner"]]
        assert partner["partner"] == image["filename"]
        assert partner["split"] == image["split"]
        assert image["difference"]["detail"] == partner["difference"]["detail"]
        assert image["difference"]["here"] == partner["difference"]["partner"]
        assert image["difference"]["here"] != image["difference"]["partner"]


def test_the_card_tells_the_measured_numbers(small: Path) -> None:
    card = json.loads((small / "card.json").read_text())
    assert card["splits"] == split_sizes(60)
    assert card["captions"] == 300
    assert card["images_in_pairs"] == 48
    assert sum(card["pairs_by_detail"].values()) == 24
    text = (small / "card.md").read_text()
    for oracle in card["oracle_r@1"].values():
        assert f"| {oracle['caption_retrieval']} | {oracle['image_retrieval']} |" in text


def test_the_bytes_do_not_depend_on_the_workers(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_FEW", 0)
    write_sample(tmp_path / "two", images=60, seed=3, workers=2)
    assert _bytes(tmp_path / "two") == _bytes(small)


class _KilledError(Exception):
    pass


class _DyingBar:
    def advance(self, count: int = 1) -> None:
        raise _KilledError

    def note(self, text: str) -> None:
        pass


@contextlib.contextmanager
def _dying_progress(label: str, total: int | None, unit: str) -> Iterator[_DyingBar]:
    yield _DyingBar()


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with pytest.raises(_KilledError):
        write_sample(folder, images=60, seed=3, workers=1, progress=_dying_progress)
    images = sorted((folder / "images").iterdir())
    assert 0 < len(images) < 60
    assert not (folder / "karpathy.json").exists()
    kept, cut, swapped = images[0], images[1], images[2]
    before = kept.stat().st_mtime_ns
    cut.write_bytes(cut.read_bytes()[:-100])
    swapped.write_bytes(kept.read_bytes())
    (folder / "images" / ".scene_000059.jpg.1.tmp").write_bytes(b"half")
    write_sample(folder, images=60, seed=3, workers=1)
    assert kept.stat().st_mtime_ns == before
    assert _bytes(folder) == _bytes(small)


def test_an_earlier_sample_makes_way(small: Path, tmp_path: Path) -> None:
    write_sample(tmp_path, images=70, seed=4, workers=1)
    write_sample(tmp_path, images=60, seed=3, workers=1)
    assert _bytes(tmp_path) == _bytes(small)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"mine"),
        ("images/holiday.jpg", b"mine"),
        ("karpathy.json", b'{"dataset": "flickr30k", "images": []}'),
        ("karpathy.json", b"not JSON"),
    ],
)
def test_foreign_content_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=path.name):
        write_sample(tmp_path, images=12)
    assert _bytes(tmp_path) == {name: content}


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        write_sample(tmp_path / "file", images=12)


def test_twelve_images_are_the_fewest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 12"):
        write_sample(tmp_path, images=11)
    card = write_sample(tmp_path, images=12)
    assert sum(card["splits"].values()) == 12
    assert min(card["splits"].values()) >= 1


def test_the_default_splits() -> None:
    assert split_sizes(1200) == {"train": 1000, "val": 100, "test": 100}


@given(st.integers(12, 5000))
def test_splits_add_up_and_never_part_a_pair(images: int) -> None:
    sizes = split_sizes(images)
    assert sum(sizes.values()) == images
    assert min(sizes.values()) >= 1
    assert abs(sizes["train"] - images * 10 / 12) <= 3
    assert abs(sizes["test"] - images / 12) <= 3
    for boundary in (sizes["train"], sizes["train"] + sizes["val"]):
        assert sample_scene(0, boundary - 1).partner != boundary
        assert split_of(boundary - 1, sizes) != split_of(boundary, sizes)


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(camp_data, ["sample", str(tmp_path / "s"), "--images", "12", "--seed", "5"])
    assert result.exit_code == 0, result.output
    assert "12 images" in result.stdout
    assert "60 captions" in result.stdout
    again = CliRunner().invoke(camp_data, ["sample", str(tmp_path / "s"), "--images", "12", "--json"])
    assert json.loads(again.stdout)["seed"] == 0


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    result = CliRunner().invoke(camp_data, ["sample", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "thesis.tex" in result.stderr
