"""A feature set -> rows, checked against the regions that were written; from threads and after forks too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from camp.errors import InputError, VerificationError
from camp.manifests.dataset import Dataset
from camp.pipeline.feature_index import INDEX_FILE, FeatureIndex
from camp.pipeline.feature_spec import FeatureSpec
from camp.pipeline.shard_reader import ShardReader
from camp.schema import Regions

MakeDataset = Callable[..., Dataset]
MakeFeatures = Callable[..., Path]
MakeRegions = Callable[..., Regions]

SPEC = {
    store: FeatureSpec(regions=3, dim=5, store=store, columns=("classes", "class_scores"))
    for store in ("arrow", "hdf5")
}


@pytest.fixture(params=["arrow", "hdf5"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_by_position_and_by_id(
    make_dataset: MakeDataset, make_features: MakeFeatures, make_regions: MakeRegions, store: str
) -> None:
    dataset, spec = make_dataset({"train": 300, "val": 7}), SPEC[store]
    reader = ShardReader.open(make_features(dataset, spec=spec, shard_size=290, failed=[4, 301]))
    assert len(reader) == 305
    assert reader.image_ids.tolist() == [i for i in range(307) if i not in (4, 301)]
    assert 3 in reader
    assert 4 not in reader
    for position in (0, 255, 256, 288, 289, 304):
        image_id = int(reader.image_ids[position])
        expected = make_regions(image_id, spec)
        for found in (reader[position], reader.by_id(image_id)):
            assert (found.width, found.height) == (640, 480)
            for name in ("boxes", "classes", "class_scores"):
                assert np.array_equal(getattr(found, name), getattr(expected, name))
            assert np.array_equal(found.features, expected.features.astype(np.float16))
        assert reader.num_regions[position] == len(expected.features)
        assert reader.sizes[position].tolist() == [640, 480]
        assert np.array_equal(reader.boxes[position, : len(expected.boxes)], expected.boxes)
    assert reader.positions("val").tolist() == list(range(299, 305))
    assert reader.image_ids[reader.positions("val")].tolist() == [300, 302, 303, 304, 305, 306]
    assert len(reader.positions()) == 305
    assert reader.locate(299) == ("val-00000", 0)
    assert reader.locate(290) == ("train-00001", 1)
    with pytest.raises(InputError, match=r"no features of image 4; see failures\.parquet"):
        reader.by_id(4)
    with pytest.raises(IndexError, match="row 305 of 305"):
        reader[305]


def test_features_are_views_that_cannot_be_written(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    reader = ShardReader.open(make_features(make_dataset(), spec=SPEC[store]))
    view = reader.features(2)
    assert view.base is not None
    assert np.shares_memory(view, reader.features(2))
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def test_gather_into_a_buffer(make_dataset: MakeDataset, make_features: MakeFeatures, store: str) -> None:
    with ShardReader.open(
        make_features(make_dataset({"train": 600}), spec=SPEC[store], shard_size=300)
    ) as reader:
        order = np.random.default_rng(0).permutation(600)
        expected = np.stack([reader.features(position) for position in order])
        out = np.empty((600, 3, 5), np.float16)
        for threads in (1, 2, 3):
            out[...] = 0
            assert reader.gather(order, out=out, threads=threads) is out
            assert np.array_equal(out, expected)
        assert np.array_equal(reader.gather(order[:2]), expected[:2])
        assert reader.gather([]).shape == (0, 3, 5)
        reader.will_need(order[:5])
        with pytest.raises(InputError, match=r"buffer float16 \(600, 3, 5\), expected float16 \(2, 3, 5\)"):
            reader.gather(order[:2], out=out)
        with pytest.raises(IndexError, match="rows 0..600 of 600"):
            reader.gather([0, 600])
        out.flags.writeable = False
        with pytest.raises(InputError, match="read-only"):
            reader.gather(order, out=out)


def test_gather_into_a_buffer_that_is_not_contiguous(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    reader = ShardReader.open(make_features(make_dataset({"train": 9}), spec=SPEC[store]))
    around = np.full((9, 3, 10), 9, np.float16)
    reader.gather(np.arange(9), out=around[:, :, ::2])
    assert np.array_equal(around[:, :, ::2], reader.gather(np.arange(9)))
    assert (around[:, :, 1::2] == 9).all()


def test_threads_share_a_reader(make_dataset: MakeDataset, make_features: MakeFeatures, store: str) -> None:
    with ShardReader.open(
        make_features(make_dataset({"train": 200}), spec=SPEC[store], shard_size=64)
    ) as reader:
        expected = reader.gather(np.arange(200))
        wrong: list[int] = []

        def look(seed: int) -> None:
            for _ in range(20):
                order = np.random.default_rng(seed).permutation(200)
                if not np.array_equal(reader.gather(order, threads=2), expected[order]):
                    wrong.append(seed)

        threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # numpy's threads count, though they sleep
def test_a_forked_process_shares_a_reader(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    with ShardReader.open(
        make_features(make_dataset({"train": 200}), spec=SPEC[store], shard_size=64)
    ) as reader:
        order = np.random.default_rng(0).permutation(200)
        expected = reader.gather(order)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                same = all(
                    np.array_equal(reader.gather(order, threads=threads), expected)
                    for threads in (1, 2)
                    for _ in range(10)
                )
                os._exit(0 if same else 1)
            children.append(child)
        assert np.array_equal(reader.gather(order, threads=2), expected)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0, 0, 0]


def test_opening_asks_neither_library_and_reads_no_features(
    make_dataset: MakeDataset,
    make_features: MakeFeatures,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    folder = make_features(make_dataset(), spec=SPEC[store])
    for module in ("arrow_shard", "hdf5_shard", "shard_file"):
        monkeypatch.setitem(__import__("sys").modules, f"camp.pipeline.{module}", None)
    assert len(ShardReader.open(folder)) == 11


@pytest.mark.parametrize("change", ["missing", "truncated", "empty"])
def test_shards_that_are_not_what_the_index_says(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str, change: str
) -> None:
    folder = make_features(make_dataset(), spec=SPEC[store])
    path = folder / f"train-00001{SPEC[store].suffix}"
    size = path.stat().st_size
    if change == "missing":
        path.unlink()
    else:
        os.truncate(path, 0 if change == "empty" else size - 1)
    message = {
        "missing": "missing, but the index lists it",
        "truncated": f"{size - 1:,} bytes, expected {size:,}",
        "empty": f"empty, expected {size:,} bytes",
    }[change]
    with pytest.raises(VerificationError) as caught:
        ShardReader.open(folder)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_an_index_that_is_absent_or_damaged(
    make_dataset: MakeDataset, make_features: MakeFeatures, tmp_path: Path
) -> None:
    folder = make_features(make_dataset(), spec=SPEC["arrow"])
    path = folder / INDEX_FILE
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"rows": 2', b'"rows": 3', 1))
    with pytest.raises(VerificationError, match=r"index\.json: damaged.*verify --repair"):
        FeatureIndex.open(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"no index\.json, the features are not finished"):
        FeatureIndex.open(folder)
    with pytest.raises(InputError, match="no such feature set; make it with 'camp-data extract'"):
        FeatureIndex.open(tmp_path / "nowhere")
