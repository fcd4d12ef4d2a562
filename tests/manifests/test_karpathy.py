"""Karpathy JSON -> data set: order, ids, published counts, and one clear line for each bad file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camp.errors import InputError
from camp.manifests.dataset import Dataset
from camp.manifests.importing import import_dataset
from camp.manifests.source import SourceOptions


def karpathy_image(number: int, split: str = "train", captions: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "filename": f"{number:06d}.jpg",
        "imgid": number,
        "split": split,
        "sentids": [10 * number + k for k in range(captions)],
        "sentences": [
            {"raw": f"Caption {k} of {number}.", "tokens": [], "imgid": number, "sentid": 10 * number + k}
            for k in range(captions)
        ],
        **more,
    }


def write(path: Path, images: list[Any], name: str = "flickr30k") -> Path:
    path.write_text(json.dumps({"images": images, "dataset": name}))
    return path


def imported(tmp_path: Path, images: list[Any], **options: Any) -> Dataset:
    source = write(tmp_path / "source.json", images)
    result = import_dataset(source, format="karpathy", out=tmp_path / "out", options=SourceOptions(**options))
    return result.dataset


def test_order_and_ids_are_kept(tmp_path: Path) -> None:
    images = [karpathy_image(7, "test"), karpathy_image(3, "train"), karpathy_image(5, "val")]
    dataset = imported(tmp_path, images)
    assert dataset.name == "flickr30k"
    assert dataset.images["image_id"].to_pylist() == [0, 1, 2]
    assert dataset.images["imgid"].to_pylist() == [7, 3, 5]
    assert dataset.images["split"].to_pylist() == ["test", "train", "val"]
    assert dataset.captions["image_id"].to_pylist() == [0] * 5 + [1] * 5 + [2] * 5
    assert dataset.captions["sentid"].to_pylist()[:6] == [70, 71, 72, 73, 74, 30]
    assert dataset.select_captions(["val"])["text"][0].as_py() == "Caption 0 of 5."


def test_instances_become_labels_by_coco_id_or_file_name(tmp_path: Path) -> None:
    images = [karpathy_image(7, cocoid=70), karpathy_image(3, cocoid=30), karpathy_image(5, cocoid=50)]
    coco = tmp_path / "instances.json"
    coco.write_text(
        json.dumps(
            {
                "categories": [{"id": 9, "name": "boat"}, {"id": 2, "name": "cat"}],
                "annotations": [
                    {"id": 1, "image_id": 50, "category_id": 9},
                    {"id": 2, "image_id": 50, "category_id": 2},
                    {"id": 3, "image_id": 70, "category_id": 2},
                ],
            }
        )
    )
    dataset = imported(tmp_path, images, instances=[coco])
    assert dataset.label_names == ["cat", "boat"]
    assert dataset.images["labels"].to_pylist() == [[0], [], [0, 1]]
    objects = tmp_path / "objects.json"
    drawn = [{"filename": "000003.jpg", "objects": [{"kind": "kite"}, {"kind": "car"}, {"kind": "kite"}]}]
    objects.write_text(json.dumps({"classes": ["ball", "car", "kite"], "images": drawn}))
    (tmp_path / "second").mkdir()
    dataset = imported(tmp_path / "second", [karpathy_image(3), karpathy_image(4)], instances=[objects])
    assert dataset.label_names == ["ball", "car", "kite"]
    assert dataset.images["labels"].to_pylist() == [[1, 2], []]
    (tmp_path / "third").mkdir()
    with pytest.raises(InputError, match="none of its 1 images is in the files of --instances"):
        imported(tmp_path / "third", [karpathy_image(8)], instances=[objects])
    objects.write_text("{}")
    with pytest.raises(InputError, match=r"no 'annotations' and no 'objects' found, expected COCO's"):
        imported(tmp_path / "third", [karpathy_image(3)], instances=[objects])


# Karpathy's published counts, from files of the same shape.
PUBLISHED = {
    "flickr8k": {"train": 6000, "val": 1000, "test": 1000},
    "flickr30k": {"train": 29000, "val": 1014, "test": 1000},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_flickr_counts_are_the_published_ones(tmp_path: Path, name: str) -> None:
    splits = [split for split, count in PUBLISHED[name].items() for _ in range(count)]
    source = write(tmp_path / "d.json", [karpathy_image(n, s) for n, s in enumerate(splits)], name)
    dataset = import_dataset(source, format="karpathy", out=tmp_path / "out").dataset
    assert {split: counts["images"] for split, counts in dataset.counts.items()} == PUBLISHED[name]
    assert {split: counts["captions"] for split, counts in dataset.counts.items()} == {
        split: 5 * count for split, count in PUBLISHED[name].items()
    }


def test_coco_restval_joins_train_and_five_captions_are_kept(tmp_path: Path) -> None:
    # A hundredth of 82,783 + 30,504 / 5,000 / 5,000, some images with six captions.
    shape = {"train": 828, "restval": 305, "val": 50, "test": 50}
    splits = [split for split, count in shape.items() for _ in range(count)]
    images = [
        karpathy_image(n, s, captions=6 if n % 10 == 0 else 5, cocoid=2 * n, filepath="val2014")
        for n, s in enumerate(splits)
    ]
    source = write(tmp_path / "d.json", images, "coco")
    result = import_dataset(source, format="karpathy", out=tmp_path / "five")
    assert {s: c["images"] for s, c in result.dataset.counts.items()} == {
        "train": 1133,
        "val": 50,
        "test": 50,
    }
    assert result.dataset.captions.num_rows == 5 * len(images)
    assert result.findings["captions beyond the first 5, left out"]["count"] == 124
    assert result.dataset.images["file"][0].as_py() == "val2014/000000.jpg"
    assert result.dataset.images["cocoid"][2].as_py() == 4
    everything = import_dataset(
        source, format="karpathy", out=tmp_path / "all", options=SourceOptions(max_captions=0)
    )
    assert everything.dataset.captions.num_rows == 5 * len(images) + 124


def test_oddities_are_counted_with_examples(tmp_path: Path) -> None:
    odd = karpathy_image(1)
    odd["sentences"][0]["raw"] = "  "
    odd["sentences"][2]["raw"] = odd["sentences"][1]["raw"]
    source = write(tmp_path / "d.json", [karpathy_image(0), odd, karpathy_image(2, captions=0)])
    findings = import_dataset(source, format="karpathy", out=tmp_path / "out").findings
    assert findings["empty captions, left out"] == {"count": 1, "examples": ["000001.jpg"]}
    assert findings["the same caption twice for one image"]["count"] == 1
    assert findings["images without captions"] == {"count": 1, "examples": ["000002.jpg"]}


def broken(change: dict[str, Any]) -> list[Any]:
    return [karpathy_image(0), {**karpathy_image(1), **change}]


BAD: dict[str, tuple[bytes | list[Any], str]] = {
    "not JSON": (b"\x89PNG", "not a caption file|invalid UTF-8"),
    "cut off": (b'{"images": [{"filename": "a.jpg", "spl', "not valid JSON"),
    "a list": (b"[1, 2]", "found '\\[1, 2\\]', expected a JSON object"),
    "no images": (b'{"dataset": "x"}', "no 'images' list"),
    "images is a number": (b'{"images": 3}', "images: found 3, expected a list"),
    "trailing": (b'{"images": []} x', "after the JSON object"),
    "no comma": (b'{"images": [{} {}]}', "images\\[0\\]|expected ','"),
    "invalid UTF-8": (b'{"images": ["\xff"]}', "invalid UTF-8 at byte 13"),
    "nesting bomb": (b'{"images": [' + b"[" * 200_000, "nested too deeply"),
    "nesting bomb of objects": (b'{"images": ' + b'{"a":' * 200_000, "nested too deeply"),
    "unknown split": (broken({"split": "practice"}), "images\\[1\\].split: found split 'practice'"),
    "no split": (broken({"split": None}), "images\\[1\\].split: found split None"),
    "no file name": (broken({"filename": 5}), "images\\[1\\].filename: found 5, expected a file name"),
    "caption null": (
        broken({"sentences": [{"raw": None}]}),
        "images\\[1\\].sentences\\[0\\].raw: found None, expected a text",
    ),
    "sentences missing": (broken({"sentences": None}), "images\\[1\\].sentences: found None"),
    "sentence is text": (broken({"sentences": ["x"]}), "images\\[1\\].sentences\\[0\\]: found 'x'"),
    "imgid twice": (broken({"imgid": 0}), "imgid 0 is already that of image '000000.jpg'"),
    "file twice": (broken({"filename": "000000.jpg"}), "key '000000.jpg' is already"),
    "imgid is text": (broken({"imgid": "a"}), "images\\[1\\].imgid: found 'a', expected a whole number"),
    "absolute": (broken({"filename": "/etc/passwd"}), "absolute path '/etc/passwd'"),
    "drive": (broken({"filename": "C:\\x.jpg"}), "absolute path"),
    "climbs": (broken({"filepath": "../../x"}), "climbs out of the image root"),
    "climbs backwards": (broken({"filename": "..\\x.jpg"}), "climbs out of the image root"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    source = tmp_path / "bad.json"
    if isinstance(content, bytes):
        source.write_bytes(content)
    else:
        write(source, content)
    with pytest.raises(InputError, match=message) as caught:
        import_dataset(source, format="karpathy", out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
sources = st.lists(
    st.tuples(st.sampled_from(["train", "val", "test", "restval"]), st.lists(texts, max_size=6)), min_size=1
)


@settings(max_examples=60)
@given(sources)
def test_every_caption_arrives_or_is_counted(tmp_path_factory: pytest.TempPathFactory, source: Any) -> None:
    folder = tmp_path_factory.mktemp("karpathy")
    images = []
    for number, (split, captions) in enumerate(source):
        image = karpathy_image(number, split, captions=0)
        image["sentences"] = [{"raw": text} for text in captions]
        images.append(image)
    result = import_dataset(write(folder / "d.json", images), format="karpathy", out=folder / "out")
    kept = [
        (number, text.strip())
        for number, (_, captions) in enumerate(source)
        for text in captions
        if text.strip()
    ]
    table = result.dataset.captions
    assert list(zip(table["image_id"].to_pylist(), table["text"].to_pylist(), strict=True)) == kept
    empty = result.findings.get("empty captions, left out", {"count": 0})["count"]
    assert empty + len(kept) == sum(len(captions) for _, captions in source)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_no_bytes_lead_to_anything_but_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    (folder / "d.json").write_bytes(b'{"images": [' + junk)
    with pytest.raises(InputError):
        import_dataset(folder / "d.json", format="karpathy", out=folder / "out")


def test_reading_twice_gives_the_same_fingerprint(tmp_path: Path) -> None:
    images = [karpathy_image(n) for n in range(3)]
    first = imported(tmp_path, images)
    source = write(tmp_path / "again.json", images)
    second = import_dataset(source, format="karpathy", out=tmp_path / "second").dataset
    assert first.fingerprint == second.fingerprint
    images[2]["sentences"][0]["raw"] = "Another caption."
    third = import_dataset(
        write(tmp_path / "third.json", images), format="karpathy", out=tmp_path / "third"
    ).dataset
    assert third.fingerprint != first.fingerprint
