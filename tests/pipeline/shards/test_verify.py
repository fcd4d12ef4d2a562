"""Damaged data sets -> findings that name the file and the row; what can be proven is rebuilt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camp.cli import camp_data
from camp.errors import MismatchError
from camp.files import checksum_file, read_sealed, write_sealed
from camp.manifests.dataset import Dataset
from camp.pipeline.feature_index import FAILURES_FILE, INDEX_FILE, finalize
from camp.pipeline.feature_spec import OPTIONAL_COLUMNS, FeatureSpec
from camp.pipeline.row_block import RowBlock
from camp.pipeline.shard_reader import ShardReader
from camp.pipeline.shard_writer import ShardWriter
from camp.pipeline.tokens import TokenReader, tokenize_dataset
from camp.pipeline.verify import verify_dataset
from camp.schema import Regions
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer
from camp.vocab.vectors import load_vectors, save_vectors, vectors_file

MakeDataset = Callable[..., Dataset]
MakeFeatures = Callable[..., Path]
STORES = ("arrow", "hdf5")


def findings(dataset: Dataset, **more: Any) -> list[str]:
    return [str(finding) for finding in verify_dataset(dataset.root, **more).all_findings()]


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in files_of(root)}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dataset(make_dataset: MakeDataset, make_features: MakeFeatures, store: str) -> Dataset:
    dataset = make_dataset({"train": 6, "test": 3})
    spec = FeatureSpec(regions=3, dim=4, store=store, columns=OPTIONAL_COLUMNS)
    make_features(dataset, spec=spec, failed=[2])
    return dataset


def test_an_intact_set_has_no_findings(dataset: Dataset) -> None:
    result = verify_dataset(dataset.root)
    assert result.intact
    (check,) = result.features
    assert (check.shards, check.rows, check.gaps) == (3, 8, [])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found(dataset: Dataset, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(dataset.root)))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        run = CliRunner().invoke(camp_data, ["verify", str(dataset.root)])
        # A header whose version or syntax is hit cannot be opened at all: that is an error of its own.
        assert run.exit_code in ((1, 4) if path.name == "dataset.json" else (4,)), (path.name, place)
        assert path.name in run.output
    finally:
        path.write_bytes(content)


def test_every_byte_of_the_small_files_counts(dataset: Dataset) -> None:
    folder = dataset.features_folder("made")
    for name in (INDEX_FILE, "test-00000.json", FAILURES_FILE):
        content = (folder / name).read_bytes()
        for place in range(0, len(content), 101):
            (folder / name).write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            assert any(name in finding for finding in findings(dataset)), (name, place)
        (folder / name).write_bytes(content)
    assert findings(dataset) == []


def test_a_damaged_shard_names_its_rows(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    dataset = make_dataset({"train": 600})
    spec = FeatureSpec(regions=2, dim=3, store=store)
    folder = make_features(dataset, spec=spec, shard_size=600)
    shard = ShardReader.open(folder).shards[0]
    offset = [segment for segment in shard.layout.segments() if segment.first <= 300][-1]
    start = offset.offsets["features"] + (300 - offset.first) * 2 * 3 * 2
    path = shard.path
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)
    assert findings(dataset)[0] == (f"features/made/{path.name}: checksum differs: damaged in rows 256..511")
    content[start] ^= 1
    content[-1] ^= 1
    path.write_bytes(content)
    assert "damaged" in findings(dataset)[0]


def test_files_that_are_not_what_they_should_be(dataset: Dataset, store: str) -> None:
    folder = dataset.features_folder("made")
    path = next(folder.glob("test-00000.[ah]*"))
    content = path.read_bytes()
    for damaged, message in (
        (content[:-1], f"{len(content) - 1:,} bytes, expected {len(content):,}"),
        (b"x" * len(content), f"begins with {b'x' * (6 if store == 'arrow' else 8)!r}"),
        (None, "missing"),
    ):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        found = findings(dataset)
        assert found[0].startswith(f"features/made/{path.name}: {message}")
        assert "3 images of test neither in an intact shard nor in failures.parquet" in found[1]
        path.write_bytes(content)


def test_an_index_that_disagrees_with_its_shards(dataset: Dataset) -> None:
    folder = dataset.features_folder("made")
    index = read_sealed(folder / INDEX_FILE)
    before = json.loads(json.dumps(index))
    index["shards"][1]["rows"] += 1
    write_sealed(folder / INDEX_FILE, index)
    assert "features/made/train-00000.json: disagrees with the index" in findings(dataset)[0]
    index = json.loads(json.dumps(before))
    index["shards"] = [entry for entry in index["shards"] if entry["shard"] != "test-00000"]
    write_sealed(folder / INDEX_FILE, index)
    assert "test-00000.json: done, but not in the index" in findings(dataset)[0]
    index = json.loads(json.dumps(before))
    index["spec"]["short"] = "error"
    write_sealed(folder / INDEX_FILE, index)
    assert "made in another way than the index says" in findings(dataset)[0]
    write_sealed(folder / INDEX_FILE, before)
    assert findings(dataset) == []


def bad_rows() -> dict[str, dict[str, Any]]:
    """What a writer of ours refuses, so it is put into the block behind its back."""
    return {
        "features not finite (NaN or infinity)": {"features": np.float16(np.nan)},
        "features all zero": {"features": np.float16(0)},
        "num_regions not in 1..3": {"num_regions": 4},
        "boxes outside the image": {"boxes": np.float32(10_000)},
        "image size below 1×1": {"size": 0},
        "class_scores not finite": {"class_scores": np.float32(np.inf)},
    }


@pytest.mark.parametrize("problem", bad_rows())
def test_bad_rows_are_named(
    make_dataset: MakeDataset,
    make_features: MakeFeatures,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    problem: str,
) -> None:
    dataset = make_dataset({"train": 6})
    plain = RowBlock.add

    def add(block: RowBlock, image_id: int, regions: Regions) -> None:
        plain(block, image_id, regions)
        if image_id == 4:
            for name, value in bad_rows()[problem].items():
                block.columns()[name][-1] = value

    monkeypatch.setattr(RowBlock, "add", add)
    spec = FeatureSpec(regions=3, dim=4, store=store, columns=OPTIONAL_COLUMNS)
    make_features(dataset, spec=spec, shard_size=3)
    monkeypatch.undo()
    file = f"features/made/train-00001{spec.suffix}"
    assert f"{file}, row 1 (image 4): {problem}" in findings(dataset)


def test_ids_must_be_the_manifests(
    make_dataset: MakeDataset, make_features: MakeFeatures, tmp_path: Path
) -> None:
    dataset = make_dataset({"train": 4, "test": 2})
    spec = FeatureSpec(regions=1, dim=2)
    folder = dataset.features_folder("made")
    regions = Regions(
        boxes=np.zeros((1, 4), np.float32), features=np.ones((1, 2), np.float32), width=2, height=2
    )
    units = {"train-00000": [0, 1, 4, 99], "train-00001": [1, 2], "test-00000": [5]}
    for shard, ids in units.items():
        with ShardWriter(folder, shard=shard, spec=spec, fingerprint="unit", capacity=9) as writer:
            for image_id in ids:
                writer.add(image_id, regions)
            if shard == "test-00000":
                writer.fail(2, "why not")
            writer.commit()
    finalize(folder, provenance={}, spec=spec, expected_shards=list(units))
    assert findings(dataset) == [
        "features/made/train-00000.arrow, row 2 (image 4): belongs to test, not to train",
        "features/made/train-00000.arrow, row 3 (image 99): not in the manifest",
        "features/made (image 1): in more than one row",
        "features/made (image 2): in a row and in failures.parquet",
        "features/made: 1 images of test neither in an intact shard nor in failures.parquet, the first is "
        "image 4; run the command that makes the features again",
        "features/made: 1 images of train neither in an intact shard nor in failures.parquet, the first is "
        "image 3; run the command that makes the features again",
    ]


def test_a_file_of_another_layout_under_a_shards_name(
    make_dataset: MakeDataset, make_features: MakeFeatures, tmp_path: Path
) -> None:
    """Right checksum, wrong content: what a program that rewrote a shard would leave."""
    dataset = make_dataset({"train": 6, "test": 3})
    folder = make_features(dataset, spec=FeatureSpec(regions=3, dim=4, store="hdf5"))
    path, other = folder / "test-00000.h5", tmp_path / "other.h5"
    with h5py.File(path) as source, h5py.File(other, "w") as target:
        for name, values in source.items():
            target.create_dataset(name, data=values[...], chunks=True)
        target.attrs.update(source.attrs)
    other.replace(path)
    for marker in (folder / "test-00000.json", folder / INDEX_FILE):
        value = read_sealed(marker)
        entry = value if "layout" in value else value["shards"][0]
        entry["bytes"], entry["checksum"] = path.stat().st_size, checksum_file(path)
        write_sealed(marker, value)
    assert "features/made/test-00000.h5: a chunked dataset, expected contiguous ones" in findings(dataset)


def test_manifest_damage_is_found(dataset: Dataset) -> None:
    path = dataset.root / "manifest" / "captions.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"XXXX")
    assert "manifest/captions.parquet: checksum differs: damaged or replaced" in findings(dataset)
    path.unlink()
    found = findings(dataset)
    assert (
        "manifest/captions.parquet: cannot be read (No such file or directory), but it is recorded" in found
    )


def test_unfinished_sets_say_so(dataset: Dataset, store: str) -> None:
    folder = dataset.features_folder("made")
    (folder / INDEX_FILE).unlink()
    (folder / "train-00001.json").unlink()
    found = findings(dataset)
    assert "no index.json, the features are not finished" in found[0]
    assert found[1].startswith("features/made/train-00001: no marker and not in the index: unfinished")


@pytest.mark.parametrize("lost", ["index", "markers", "everything", "failures"])
def test_repair_rebuilds_from_intact_shards(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str, lost: str
) -> None:
    dataset = make_dataset({"train": 6, "test": 3})
    spec = FeatureSpec(regions=3, dim=4, store=store)
    # Without index and markers nobody knows why an image failed, so then none may have.
    folder = make_features(dataset, spec=spec, failed=[] if lost == "everything" else [2])
    before = snapshot(folder)
    for path in folder.iterdir():
        if (
            (path.name == INDEX_FILE and lost in ("index", "everything"))
            or (path.suffix == ".json" and path.name != INDEX_FILE and lost in ("markers", "everything"))
            or (path.name == FAILURES_FILE and lost in ("failures", "everything"))
        ):
            path.write_bytes(b"{}") if lost == "index" else path.unlink()
    assert not verify_dataset(dataset.root).intact
    result = verify_dataset(dataset.root, repair=True)
    assert result.intact, [str(finding) for finding in result.all_findings()]
    assert snapshot(folder) == before
    assert not verify_dataset(dataset.root, repair=True).repairs[0].changed


def test_repair_lists_what_must_be_extracted_again(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    dataset = make_dataset({"train": 8, "test": 3})
    spec = FeatureSpec(regions=3, dim=4, store=store)
    folder = make_features(dataset, spec=spec, failed=[2])
    before = snapshot(folder)
    path = folder / f"train-00001{spec.suffix}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (folder / "train-00000.json").unlink()  # intact, its one failure is in failures.parquet
    run = CliRunner().invoke(camp_data, ["verify", str(dataset.root), "--repair", "--json"])
    assert run.exit_code == 4
    report = json.loads(run.stdout)
    repair = report["repairs"]["made"]
    assert repair["markers"] == ["train-00000"]
    assert list(repair["extract_again"]) == ["train-00001"]
    assert "checksum differs" in repair["extract_again"]["train-00001"]
    assert report["features"]["made"]["gaps"] == [4, 5, 6, 7]
    assert ShardReader.open(folder).image_ids.tolist() == [8, 9, 10, 0, 1, 3]
    # The command that made the features does the rest, and all is as it was.
    make_features(dataset, spec=spec, failed=[2])
    assert snapshot(folder) == before


def test_repair_does_not_invent_reasons(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset({"train": 6})
    folder = make_features(dataset, spec=FeatureSpec(regions=3, dim=4), failed=[2])
    for name in (INDEX_FILE, FAILURES_FILE, "train-00000.json"):
        (folder / name).unlink()
    result = verify_dataset(dataset.root, repair=True)
    assert not result.intact
    assert "the reasons of its failed images are lost" in result.repairs[0].extract_again["train-00000"]
    assert result.features[0].gaps == [0, 1, 2, 3]


def test_repair_refuses_rows_that_nothing_proves(
    make_dataset: MakeDataset, make_features: MakeFeatures, store: str
) -> None:
    dataset = make_dataset({"train": 6})
    spec = FeatureSpec(regions=3, dim=4, store=store)
    folder = make_features(dataset, spec=spec)
    layout = read_sealed(folder / "train-00000.json")["layout"]
    for path in folder.glob("*.json"):
        path.unlink()
    path = folder / f"train-00000{spec.suffix}"
    content = bytearray(path.read_bytes())
    content[(layout["tail"] or layout["offsets"])["boxes"]] ^= 1
    path.write_bytes(content)
    result = verify_dataset(dataset.root, repair=True)
    assert result.repairs[0].extract_again == {
        "train-00000": f"train-00000{spec.suffix}: its rows do not fit its digests"
    }
    assert path.exists()


def test_repair_keeps_one_kind(make_dataset: MakeDataset, make_features: MakeFeatures) -> None:
    dataset = make_dataset({"train": 9})
    folder = make_features(dataset, spec=FeatureSpec(regions=3, dim=4))
    other = make_features(dataset, "other", spec=FeatureSpec(regions=3, dim=5))
    for end in (".arrow", ".json"):
        shutil.copy(other / f"train-00002{end}", folder)
    (folder / INDEX_FILE).unlink()
    result = verify_dataset(dataset.root, features=["made"], repair=True)
    assert result.repairs[0].extract_again == {
        "train-00002": "train-00002.arrow: made in another way than the others"
    }


def test_vocabularies_vectors_and_tokens_are_checked(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset({"train": 3})
    vocabulary = build_vocabulary(dataset, tokenizer=open_tokenizer("plain"), min_count=1)
    path = dataset.vocab_file("words")
    vocabulary.save(path)
    tokenize_dataset(dataset)
    (tmp_path / "glove.txt").write_text("dog 1 2\ngrass 3 4\n")
    vectors = load_vectors(tmp_path / "glove.txt", vocabulary=vocabulary)
    save_vectors(vectors_file(path, "glove"), vectors, vocabulary=vocabulary)
    assert findings(dataset) == []
    tokens = dataset.tokens_folder("words") / "train.arrow"
    values = TokenReader(tokens).values
    content = bytearray(tokens.read_bytes())
    content[content.index(values.tobytes())] ^= 1
    tokens.write_bytes(content)
    matrix = vectors_file(path, "glove")
    matrix.write_bytes(matrix.read_bytes()[:-1] + b"x")
    path.write_bytes(path.read_bytes().replace(b'"dog"', b'"dot"'))
    found = findings(dataset)
    assert found[0].startswith("vocab/words.json: fingerprint")
    assert found[1].startswith("tokens/words/train.arrow: checksum")
    assert found[2] == "vocab/words.glove.npy: checksum differs: damaged or replaced"
    matrix.with_suffix(".json").unlink()
    assert findings(dataset)[2].startswith("vocab/words.glove.json: not the description of words.glove.npy")


def test_command_line(dataset: Dataset, store: str) -> None:
    run = CliRunner()
    result = run.invoke(camp_data, ["verify", str(dataset.root)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "features/made: 3 shards, 8 rows" in result.stderr
    assert "all is well" in result.stderr
    os.truncate(dataset.features_folder("made") / f"test-00000{'.arrow' if store == 'arrow' else '.h5'}", 9)
    result = run.invoke(camp_data, ["verify", str(dataset.root)])
    assert result.exit_code == 4
    assert "9 bytes, expected" in result.stdout
    assert "2 problems found" in result.stderr
    result = run.invoke(camp_data, ["verify", str(dataset.root), "--features", "none"])
    assert result.exit_code == 1
    assert "no features 'none'; this data set has made" in result.stderr


def test_unknown_features_are_an_error(dataset: Dataset) -> None:
    with pytest.raises(MismatchError, match="no features 'none'; this data set has made"):
        verify_dataset(dataset.root, features=["none"])
