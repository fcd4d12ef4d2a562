"""Foreign ids and images: every way to join, which one 'auto' takes, and when it refuses to guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camp.errors import InputError
from camp.pipeline.joins import join_rows, stem, without_suffix
from camp.schema import ImageRow


def image(image_id: int, key: str, **other: int) -> ImageRow:
    return ImageRow(image_id=image_id, key=key, file=key, split="train", **other)  # type: ignore[arg-type]


COCO = [
    image(0, "COCO_train2014_000000573195.jpg"),
    image(1, "COCO_val2014_000000000042.jpg"),
    image(2, "000000001000.jpg"),
    image(3, "whatever.jpg", cocoid=77),
]
FLICKR = [image(n, f"photo.{n}.JPG", imgid=10 + n, cocoid=100 + n) for n in range(4)]


@pytest.mark.parametrize(
    ("images", "ids", "way", "rows"),
    [
        (COCO, ["573195", "42", "1000", "77"], "cocoid", {0: 0, 1: 1, 2: 2, 3: 3}),
        (COCO, ["COCO_val2014_000000000042", "COCO_train2014_000000573195"], "key", {0: 1, 1: 0}),
        (COCO, ["train/COCO_train2014_000000573195.png", "x/whatever"], "stem", {0: 0, 3: 1}),
        (COCO, ["COCO_test2015_000000573195", "COCO_val2014_000000001000"], "cocoid", {0: 0, 2: 1}),
        (COCO, ["val2014/000000573195", "000000000042"], "cocoid", {0: 0, 1: 1}),
        (FLICKR, ["photo.0", "photo.3"], "key", {0: 0, 3: 1}),
        (FLICKR, ["photo.0.JPG", "photo.1.JPG"], "key", {0: 0, 1: 1}),
        (FLICKR, ["photo.0.png", "photo.1.png"], "stem", {0: 0, 1: 1}),
        (FLICKR, ["13", "10"], "imgid", {3: 0, 0: 1}),
        (FLICKR, ["3", "2", "1", "0"], "image-id", {3: 0, 2: 1, 1: 2, 0: 3}),
        (FLICKR, ["train-000002", "train-000000"], "order", {2: 0, 0: 1}),
    ],
)
def test_auto_finds_the_way(images: list[ImageRow], ids: list[str], way: str, rows: dict[int, int]) -> None:
    join = join_rows(images, ids)
    assert (join.way, join.row_of_image) == (way, rows)
    assert join_rows(images, ids, way=way).row_of_image == rows
    assert join.matches[way] == len(rows)


def test_what_found_no_partner_is_listed() -> None:
    join = join_rows(FLICKR, ["photo.1", "stranger", "photo.3", "photo.3.JPG"])
    assert join.row_of_image == {1: 0, 3: 2}
    assert [row.key for row in join.images_without_row] == ["photo.0.JPG", "photo.2.JPG"]
    assert join.rows_without_image == [1]
    assert join.repeated_rows == [3]


def test_whole_dotted_names() -> None:
    assert without_suffix("a/photo.0001.jpg") == "a/photo.0001"
    assert without_suffix("photo.0001") == "photo.0001"
    assert stem("x\\y/photo.0001.x.JPEG") == "photo.0001.x"
    # 'photo' alone names none of them, and 'photo.00' is not 'photo.0'.
    with pytest.raises(InputError, match=r"no row belongs .* ids such as 'photo', 'photo.00', keys such as"):
        join_rows(FLICKR, ["photo", "photo.00"])


def test_a_stem_that_two_images_share_names_neither() -> None:
    images = [image(0, "a/x.jpg"), image(1, "b/x.jpg"), image(2, "b/y.jpg")]
    join = join_rows(images, ["x", "y"], way="stem")
    assert join.row_of_image == {2: 1}
    assert join_rows(images, ["a/x", "b/x"]).row_of_image == {0: 0, 1: 1}


def test_numbers_that_match_by_chance_are_not_trusted() -> None:
    with pytest.raises(InputError, match="as image-id only 2 of 3 rows belong to one of 4 images, .*chance"):
        join_rows(FLICKR, ["3", "0", "999"])
    assert join_rows(FLICKR, ["3", "0", "999"], way="image-id").row_of_image == {3: 0, 0: 1}


def test_two_ways_that_disagree_are_not_chosen_between() -> None:
    images = [image(n, f"{n}.x", imgid=3 - n) for n in range(4)]
    with pytest.raises(
        InputError, match="4 rows match both as imgid and as image-id, but to different images"
    ):
        join_rows(images, ["0", "1", "2", "3"])
    same = [image(n, f"{n}.x", imgid=n) for n in range(4)]
    assert join_rows(same, ["0", "1", "2", "3"]).way == "imgid"


def test_an_unknown_way() -> None:
    with pytest.raises(InputError, match="--join 'name', expected auto or one of key, stem"):
        join_rows(FLICKR, ["x"], way="name")


@given(order=st.permutations(range(8)), known=st.integers(1, 8))
def test_order_does_not_matter(order: list[int], known: int) -> None:
    images = [image(n, f"p.{n}.jpg") for n in range(8)]
    ids = [f"p.{n}" for n in order if n < known]
    join = join_rows(images, ids)
    assert {ids[row] for row in join.row_of_image.values()} == set(ids)
    assert all(ids[row] == f"p.{image_id}" for image_id, row in join.row_of_image.items())
