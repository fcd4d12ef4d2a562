"""Flickr tokens, COCO captions, SCAN precomp, tables and folders -> data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from camp.errors import InputError
from camp.manifests.importing import ImportResult, import_dataset
from camp.manifests.source import SourceOptions


def run(source: Path, format: str, **options: Any) -> ImportResult:
    out = source.with_name(source.name + ".dataset")
    return import_dataset(source, format=format, out=out, options=SourceOptions(**options))


def images_in(result: ImportResult) -> dict[str, int]:
    return {split: counts["images"] for split, counts in result.dataset.counts.items()}


class TestFlickrToken:
    TOKENS = (
        "b.jpg#1\tSecond caption of b .\n"
        "b.jpg#0\tFirst caption of b .\n"
        "a.x.jpg#0\tA dotted name .\r\n"
        "orphan.jpg.1#0\tNobody's caption .\n"
        "c.jpg#0\tLast, without a newline ."
    )

    def test_order_of_appearance_captions_by_number(self, tmp_path: Path) -> None:
        (tmp_path / "tokens.txt").write_text(self.TOKENS)
        result = run(tmp_path / "tokens.txt", "flickr-token")
        assert result.dataset.images["key"].to_pylist() == ["b.jpg", "a.x.jpg", "c.jpg"]
        assert result.dataset.captions["text"].to_pylist()[:2] == [
            "First caption of b .",
            "Second caption of b .",
        ]
        assert images_in(result) == {"all": 3}
        orphans = result.findings["orphan keys that name no image, left out"]
        assert orphans == {"count": 1, "examples": ["tokens.txt: line 4: orphan.jpg.1"]}

    def test_split_lists_with_and_without_suffix(self, tmp_path: Path) -> None:
        (tmp_path / "tokens.txt").write_text(self.TOKENS)
        (tmp_path / "train.txt").write_text("b.jpg\nmissing.jpg\n")
        (tmp_path / "test.txt").write_text("a.x\n")
        split_files = {"train": tmp_path / "train.txt", "test": tmp_path / "test.txt"}
        result = run(tmp_path / "tokens.txt", "flickr-token", split_files=split_files)
        assert images_in(result) == {"train": 1, "test": 1}
        assert result.findings["images in no split list, left out"]["examples"] == ["c.jpg"]
        assert result.findings["names in a split list without captions, left out"]["examples"] == [
            "missing.jpg"
        ]

    def test_a_name_in_two_lists_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tokens.txt").write_text(self.TOKENS)
        (tmp_path / "names.txt").write_text("b.jpg\n")
        lists = {"train": tmp_path / "names.txt", "test": tmp_path / "names.txt"}
        with pytest.raises(InputError, match="line 1: 'b.jpg' is already in split 'train'"):
            run(tmp_path / "tokens.txt", "flickr-token", split_files=lists)

    @pytest.mark.parametrize("line", ["no tab here", "a.jpg\tno number", "a.jpg#x\tbad number"])
    def test_other_lines_are_refused(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "tokens.txt").write_text("a.jpg#0\tFine .\n" + line + "\n")
        with pytest.raises(InputError, match="line 2: found .*expected 'name.jpg#k<TAB>caption'"):
            run(tmp_path / "tokens.txt", "flickr-token")

    def test_invalid_utf8_names_the_line(self, tmp_path: Path) -> None:
        (tmp_path / "tokens.txt").write_bytes(b"a.jpg#0\tFine .\n" * 2000 + b"b.jpg#0\t\xff\n")
        with pytest.raises(InputError, match="invalid UTF-8 after line"):
            run(tmp_path / "tokens.txt", "flickr-token")


def coco(folder: Path, name: str, ids: list[int], captions: int = 5, **change: Any) -> Path:
    document = {
        "images": [{"id": i, "file_name": f"{i:012d}.jpg", "width": 640, "height": 480} for i in ids],
        "annotations": [
            {"id": 100 * i + k, "image_id": i, "caption": f"Caption {k} of {i}."}
            for i in ids
            for k in range(captions)
        ],
        **change,
    }
    path = folder / name
    path.write_text(json.dumps(document))
    return path


class TestCocoCaptions:
    def test_a_folder_gives_one_split_per_file(self, tmp_path: Path) -> None:
        folder = tmp_path / "annotations"
        folder.mkdir()
        coco(folder, "captions_train2017.json", [9, 4])
        coco(folder, "captions_val2017.json", [5], captions=7)
        result = run(folder, "coco-captions")
        assert images_in(result) == {"train": 2, "val": 1}
        assert result.dataset.images["cocoid"].to_pylist() == [9, 4, 5]
        assert result.dataset.counts["val"]["captions"] == 7
        assert result.dataset.images["width"].to_pylist() == [640, 640, 640]

    def test_subfolders_of_the_image_root_are_found(self, tmp_path: Path) -> None:
        source = coco(tmp_path, "captions_val2017.json", [5])
        (tmp_path / "photos" / "val2017").mkdir(parents=True)
        (tmp_path / "photos" / "val2017" / "000000000005.jpg").touch()
        result = run(source, "coco-captions", images=str(tmp_path / "photos"))
        row = next(result.dataset.image_rows())
        assert Path(result.dataset.image_path(row)).is_file()

    def test_id_lists_and_karpathy_files_give_splits(self, tmp_path: Path) -> None:
        source = coco(tmp_path, "captions.json", [1, 2, 3])
        (tmp_path / "train.txt").write_text("1\n")
        karpathy = {"images": [{"cocoid": 2, "split": "test"}, {"cocoid": 3, "split": "restval"}]}
        (tmp_path / "karpathy.json").write_text(json.dumps(karpathy))
        split_files = {"train": tmp_path / "train.txt", "test": tmp_path / "karpathy.json"}
        result = run(source, "coco-captions", split_files=split_files)
        assert images_in(result) == {"train": 1, "test": 1}

    def test_instances_become_labels_in_category_order(self, tmp_path: Path) -> None:
        source = coco(tmp_path, "captions_val2017.json", [1, 2])
        instances = tmp_path / "instances.json"
        instances.write_text(
            json.dumps(
                {
                    "annotations": [
                        {"image_id": 1, "category_id": 18},
                        {"image_id": 1, "category_id": 3},
                        {"image_id": 1, "category_id": 3},
                    ],
                    "categories": [
                        {"id": 18, "name": "dog"},
                        {"id": 1, "name": "person"},
                        {"id": 3, "name": "car"},
                    ],
                }
            )
        )
        result = run(source, "coco-captions", instances=[instances])
        assert result.dataset.label_names == ["person", "car", "dog"]
        assert result.dataset.images["labels"].to_pylist() == [[1, 2], []]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"annotations": [{"image_id": 1, "caption": None}]}, r"annotations\[0\].caption: found None"),
            (
                {"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]},
                r"images\[1\].id: found 1",
            ),
            ({"images": [{"file_name": "a"}]}, r"images\[0\].id: found None"),
            ({"annotations": []}, "no 'annotations' found"),
        ],
    )
    def test_wrong_fields_are_named(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            run(coco(tmp_path, "captions_val2017.json", [1], **change), "coco-captions")

    def test_captions_of_unlisted_images_are_reported(self, tmp_path: Path) -> None:
        extra = [{"id": 1, "image_id": 1, "caption": "x"}, {"id": 2, "image_id": 99, "caption": "lost"}]
        result = run(coco(tmp_path, "captions_val2017.json", [1], annotations=extra), "coco-captions")
        kind = "captions of images that are not listed, left out"
        assert result.findings[kind]["examples"] == ["image 99: lost"]

    def test_real_annotations(self, shared_data: Path, tmp_path: Path) -> None:
        folder = shared_data / "coco-mini"
        result = import_dataset(
            folder / "annotations",
            format="coco-captions",
            out=tmp_path / "mini",
            options=SourceOptions(
                images=str(folder), instances=sorted((folder / "annotations").glob("instances_*.json"))
            ),
        )
        assert images_in(result) == {"train": 80, "val": 79}
        assert len(result.dataset.label_names) == 80
        assert not result.findings
        assert all(Path(result.dataset.image_path(row)).is_file() for row in result.dataset.image_rows())
        val = import_dataset(
            shared_data / "coco-captions" / "captions_val2017.json",
            format="coco-captions",
            out=tmp_path / "val",
        )
        assert val.dataset.counts == {"val": {"images": 5000, "captions": 25014}}


class TestScanPrecomp:
    def write(self, folder: Path, name: str, images: int, *, newline: bool = True) -> None:
        lines = [f"caption {k} of {i} ." for i in range(images) for k in range(5)]
        (folder / f"{name}_caps.txt").write_text("\n".join(lines) + ("\n" if newline else ""))

    def test_five_captions_per_image_last_newline_optional(self, tmp_path: Path) -> None:
        self.write(tmp_path, "train", 4)
        self.write(tmp_path, "dev", 2, newline=False)
        self.write(tmp_path, "test", 1)
        self.write(tmp_path, "testall", 3)
        result = run(tmp_path, "scan-precomp")
        assert images_in(result) == {"train": 4, "val": 2, "test": 3}
        assert result.findings["splits left out"]["count"] == 1

    @pytest.mark.parametrize("per_caption", [False, True])
    def test_ids_are_kept_as_imgid(self, tmp_path: Path, per_caption: bool) -> None:
        self.write(tmp_path, "dev", 2)
        ids = [30, 10]
        lines = [str(i) for i in ids for _ in range(5 if per_caption else 1)]
        (tmp_path / "dev_ids.txt").write_text("\n".join(lines))
        assert run(tmp_path, "scan-precomp").dataset.images["imgid"].to_pylist() == ids

    def test_rows_repeated_five_times_are_one_image(self, tmp_path: Path) -> None:
        self.write(tmp_path, "dev", 3)
        rows = np.arange(3, dtype=np.float32).repeat(5).reshape(15, 1, 1)
        np.save(tmp_path / "dev_ims.npy", rows)
        assert images_in(run(tmp_path, "scan-precomp")) == {"val": 3}

    def test_one_row_per_caption_is_one_image_each(self, tmp_path: Path) -> None:
        self.write(tmp_path, "dev", 3)
        np.save(tmp_path / "dev_ims.npy", np.arange(15, dtype=np.float32).reshape(15, 1, 1))
        assert images_in(run(tmp_path, "scan-precomp")) == {"val": 15}

    def test_wrong_counts_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "dev_caps.txt").write_text("one\ntwo\n")
        with pytest.raises(InputError, match="found 2 captions, expected a multiple of 5"):
            run(tmp_path, "scan-precomp")
        self.write(tmp_path, "dev", 2)
        np.save(tmp_path / "dev_ims.npy", np.zeros((7, 1, 1), np.float32))
        with pytest.raises(InputError, match="found 7 rows, expected 10"):
            run(tmp_path, "scan-precomp")

    def test_real_captions(self, shared_data: Path, tmp_path: Path) -> None:
        result = import_dataset(
            shared_data / "scan-captions" / "f30k_precomp", format="scan-precomp", out=tmp_path / "f30k"
        )
        assert images_in(result) == {"val": 1014, "test": 1000}
        assert result.dataset.captions.num_rows == 10070


ROWS = [
    {"image": "a.jpg", "caption": "one, two", "split": "train", "labels": "dog;cat"},
    {"image": "b.jpg", "caption": "three", "split": "dev", "labels": ""},
    {"image": "a.jpg", "caption": "four", "split": "train", "labels": "bird"},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        quoted = [[f'"{value}"' for value in row.values()] for row in rows]
        path.write_text("\n".join(separator.join(cells) for cells in [list(rows[0]), *quoted]))
    return path


class TestTable:
    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
    def test_rows_of_one_image_are_gathered(self, tmp_path: Path, suffix: str) -> None:
        result = run(write_table(tmp_path / f"table{suffix}", ROWS), "table")
        assert images_in(result) == {"train": 1, "val": 1}
        assert result.dataset.captions["text"].to_pylist() == ["one, two", "four", "three"]
        assert result.dataset.label_names == ["bird", "cat", "dog"]
        assert result.dataset.images["labels"].to_pylist() == [[0, 1, 2], []]

    def test_lists_of_labels_and_named_columns(self, tmp_path: Path) -> None:
        rows = [{"photo": "a.jpg", "words": "x", "classes": ["sky", "sea"]}]
        columns = {"image": "photo", "caption": "words", "labels": "classes"}
        result = run(write_table(tmp_path / "t.jsonl", rows), "table", columns=columns)
        assert images_in(result) == {"all": 1}
        assert result.dataset.label_names == ["sea", "sky"]

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([{"image": "a", "caption": None}], "row 1.caption: found None, expected a text"),
            ([{"picture": "a", "caption": "x"}], "found columns picture, caption, expected one of image"),
            ([{"image": "a", "split": "x"}], "found split 'x'"),
            (
                [{"image": "a", "split": "train"}, {"image": "a", "split": "val"}],
                "row 2: image 'a' is in split 'val'",
            ),
            ([{"image": "../a"}], "climbs out"),
            ([{"image": "a", "labels": 3}], "row 1.labels: found 3"),
        ],
    )
    def test_wrong_fields_are_named(self, tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
        with pytest.raises(InputError, match=message):
            run(write_table(tmp_path / "t.jsonl", rows), "table")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.csv", b"image,caption\na.jpg,one,two\n", "line 2: found another number of fields"),
            ("t.csv", b"image,caption\n", "no rows found"),
            ("t.jsonl", b'{"image": "a"}\n{"image"\n', "line 2: not valid JSON"),
            ("t.jsonl", b"[" * 100_000, "nested too deeply"),
            ("t.parquet", b"PAR1junk", "not a readable Parquet file"),
            ("t.xml", b"", "found suffix '.xml'"),
            ("t.csv", b"image,caption\n\xff,x\n", "invalid UTF-8"),
        ],
    )
    def test_broken_files(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            run(tmp_path / name, "table")

    @settings(max_examples=50)
    @given(
        st.lists(
            st.fixed_dictionaries(
                {
                    "image": st.sampled_from(["a.jpg", "b.jpg", "c d.jpg"]),
                    "caption": st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
                        str.strip
                    ),
                }
            ),
            min_size=1,
        ),
    )
    def test_jsonl_and_parquet_agree(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
    ) -> None:
        folder = tmp_path_factory.mktemp("table")
        results = [
            run(write_table(folder / f"t{suffix}", rows), "table") for suffix in (".jsonl", ".parquet")
        ]
        assert results[0].dataset.fingerprint == results[1].dataset.fingerprint
        assert results[0].dataset.captions.num_rows == len(rows)


class TestFolder:
    def test_images_alone_sorted_nested_and_measured(self, tmp_path: Path) -> None:
        folder = tmp_path / "photos"
        (folder / "sub").mkdir(parents=True)
        Image.new("RGB", (30, 20)).save(folder / "z.1.png")
        sideways = Image.Exif()
        sideways[0x0112] = 6
        Image.new("RGB", (30, 20)).save(folder / "sub" / "a.JPG", exif=sideways)
        (folder / "notes.txt").write_text("not an image")
        (folder / "broken.jpg").write_text("not an image either")
        result = run(folder, "folder")
        assert result.dataset.images["key"].to_pylist() == ["broken.jpg", "z.1.png", "sub/a.JPG"]
        assert result.dataset.images["width"].to_pylist() == [None, 30, 20]  # the last one stands upright
        assert images_in(result) == {"all": 3}
        assert result.findings["files that are not images, left out"]["examples"] == ["notes.txt"]
        assert result.findings["images whose size cannot be read"]["examples"] == ["broken.jpg: not an image"]

    def test_an_empty_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(InputError, match="no images found"):
            run(tmp_path / "empty", "folder")


def test_missing_files_are_reported_and_all_missing_is_an_error(tmp_path: Path) -> None:
    source = write_table(
        tmp_path / "t.jsonl", [{"image": "a.jpg", "caption": "x"}, {"image": "b.jpg", "caption": "y"}]
    )
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match=r"none of the 2 images is there, expected for instance .*a\.jpg"):
        run(source, "table")
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.jpg")
    result = run(source, "table")
    assert result.findings["image files that are missing"] == {"count": 1, "examples": ["b.jpg"]}


def test_unknown_format_suggests(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'karpathy'"):
        import_dataset(tmp_path, format="karpaty", out=tmp_path / "out")
