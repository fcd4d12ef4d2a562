"""extract_job.py: every image once, resumed, retried, appended; what is wrong is recorded or refused."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camp.errors import CampError, InputError, MismatchError, StorageError, TooManyFailuresError
from camp.manifests.dataset import Dataset
from camp.pipeline import extract_worker
from camp.pipeline.extract_events import Event
from camp.pipeline.extract_job import ExtractSummary, extract_features
from camp.pipeline.extract_options import ExtractOptions, check_name, default_name
from camp.pipeline.extract_state import control_folder
from camp.pipeline.extract_worker import ExtractWorker
from camp.pipeline.folder_lock import folder_lock
from camp.pipeline.live_view import SilentView
from camp.pipeline.shard_reader import ShardReader

MakePhotographs = Callable[..., Dataset]


class Recorder(SilentView):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def shards(self, kind: str) -> list[str]:
        return [event.shard for event in self.events if event.kind == kind]


def run(dataset: Dataset, options: ExtractOptions, **more: Any) -> ExtractSummary:
    return extract_features(dataset, name="fake", options=options, **{"workers": 2, **more})


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_every_image_gets_the_row_its_pixels_deserve(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    from PIL import Image

    dataset = make_photographs({"train": 9, "val": 3})
    summary = run(dataset, fake_options)
    assert (summary.units, summary.units_before, summary.images, summary.done) == (4, 0, 12, 12)
    assert summary.complete
    assert summary.devices == ["cpu"]
    with ShardReader.open(dataset.features_folder("fake")) as reader:
        assert sorted(reader.image_ids.tolist()) == list(range(12))
        for row in dataset.image_rows():
            pixels = np.asarray(Image.open(dataset.image_path(row))).astype(np.float32)
            expected = np.arange(24, dtype=np.float32).reshape(3, 8) + pixels.sum() % 997 + 1
            regions = reader.by_id(row.image_id)
            np.testing.assert_array_equal(regions.features, expected)
            assert (regions.width, regions.height) == (pixels.shape[1], pixels.shape[0])
    names = (dataset.features_folder("fake") / "class_names.txt").read_text()
    assert names.splitlines() == ["thing", "stuff"]


@pytest.mark.parametrize("store", ["arrow", "hdf5"])
def test_bytes_do_not_depend_on_workers_batches_or_order(
    store: str, tmp_path: Path, make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 9, "test": 2})
    options = dataclasses.replace(fake_options, store=store)
    run(dataset, options, workers=1)
    first = folder_bytes(dataset.features_folder("fake"))
    extract_features(
        dataset, name="other", options=dataclasses.replace(options, batch=5, decoders=3), workers=3
    )
    assert folder_bytes(dataset.features_folder("other")) == first


def test_a_second_run_does_nothing(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_photographs()
    run(dataset, fake_options)
    before = folder_bytes(dataset.features_folder("fake"))
    monkeypatch.setenv("PYTHONPATH", "")  # a worker could not even start
    summary = run(dataset, fake_options)
    assert (summary.units_before, summary.units_now, summary.done) == (summary.units, 0, 11)
    assert folder_bytes(dataset.features_folder("fake")) == before


def test_an_append_makes_new_shards_and_touches_no_old_one(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 6, "val": 1})
    run(dataset, fake_options)
    folder = dataset.features_folder("fake")
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-*")}
    grown = make_photographs({"train": 3, "test": 1}, previous=dataset)
    summary = run(grown, fake_options)
    assert (summary.units_before, summary.units_now, summary.done) == (3, 2, 11)
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in folder.glob("*-*")}.items()
    with ShardReader.open(folder) as reader:
        assert sorted(reader.image_ids.tolist()) == list(range(11))


def test_splits_one_after_the_other_end_in_the_same_index(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs()
    assert run(dataset, fake_options, splits=["val"]).images == 2
    assert run(dataset, fake_options, splits=["train", "test"]).images == 9
    extract_features(dataset, name="at-once", options=fake_options)
    assert folder_bytes(dataset.features_folder("fake")) == folder_bytes(dataset.features_folder("at-once"))


def test_bad_images_are_recorded_and_retried(
    tmp_path: Path, make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 12}, widths={1: 19, 5: 23})
    images = tmp_path / "dataset" / "images"
    whole = (images / "photo.0002.jpg").read_bytes()
    (images / "photo.0002.jpg").write_bytes(b"")
    (images / "photo.0006.jpg").unlink()
    summary = run(dataset, fake_options)
    assert (summary.done, summary.failed) == (8, 4)
    assert summary.reasons == {
        "ValueError: this width is not liked": 2,
        "empty file": 1,
        "file not found": 1,
    }
    folder = dataset.features_folder("fake")
    with ShardReader.open(folder) as reader:
        assert reader.index.failures().column("image_id").to_pylist() == [1, 2, 5, 6]
    assert run(dataset, fake_options).units_now == 0  # failures are final until a retry is asked for

    (images / "photo.0002.jpg").write_bytes(whole)
    (tmp_path / "well").touch()
    log = tmp_path / "log"
    os.environ["RUN_LOG"] = str(log)
    try:
        recorder = Recorder()
        summary = run(dataset, fake_options, retry_failed=True, view=recorder)
    finally:
        del os.environ["RUN_LOG"]
    assert sorted(recorder.shards("done")) == ["train-00000", "train-00001"]
    notes = [event.text for event in recorder.events if event.kind == "note"]
    assert notes == ["the failed images of 2 shards are tried again; these shards are rewritten"]
    assert len(log.read_text().splitlines()) == 2  # what had rows was taken over, not extracted again
    assert (summary.done, summary.failed, summary.units_before) == (10, 2, 1)

    extract_features(dataset, name="undisturbed", options=fake_options)
    assert folder_bytes(folder) == folder_bytes(dataset.features_folder("undisturbed"))


def test_too_many_errors_stop_the_run_and_a_higher_limit_goes_on(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 12}, widths={0: 19, 4: 19, 8: 19})
    with pytest.raises(TooManyFailuresError, match="2 images failed, --max-errors allows 1"):
        run(dataset, fake_options, max_errors=1, workers=1)
    folder = dataset.features_folder("fake")
    assert not (folder / "index.json").exists()
    summary = run(dataset, fake_options, max_errors=3)
    assert summary.units_before >= 1
    assert summary.failed == 3


def test_an_endless_decode_is_one_failure(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 8}, widths={2: 17, 3: 17})
    summary = run(dataset, dataclasses.replace(fake_options, image_seconds=3.0), workers=1)
    assert (summary.done, summary.reasons) == (6, {"took longer than 3 s": 2})


def test_other_options_under_the_same_name_are_refused(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 2})
    run(dataset, fake_options)
    with pytest.raises(MismatchError, match="dtype 'float32', not 'float16'; choose another --name"):
        run(dataset, dataclasses.replace(fake_options, dtype="float16"))
    with pytest.raises(MismatchError, match="shard_size 4, not 2"):
        run(dataset, dataclasses.replace(fake_options, shard_size=2))


def test_a_changed_model_under_the_same_request_is_refused(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 2})
    run(dataset, fake_options)
    modules = Path(os.environ["FAKE_EXTRACTOR"])
    modules.write_text(modules.read_text().replace("version=1", "version=2"))
    grown = make_photographs({"train": 2}, previous=dataset)
    with pytest.raises(MismatchError, match="another version of 'fake'"):
        run(grown, fake_options)


def test_a_second_driver_is_refused_and_a_dead_one_forgotten(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 2})
    control = control_folder(dataset.features_folder("fake"))
    with (
        folder_lock(control),
        pytest.raises(StorageError, match=rf"process {os.getpid()} on .* is extracting into it"),
    ):
        run(dataset, fake_options)
    (control / "lock").write_text("process 1 on elsewhere\n")
    assert run(dataset, fake_options).complete


def test_a_model_that_cannot_be_built_is_one_clear_error(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 2})
    with pytest.raises(CampError, match="ValueError: no such thing"):
        run(dataset, dataclasses.replace(fake_options, model="broken"))


def test_cuda_that_is_not_there_is_an_error(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    dataset = make_photographs({"train": 2})
    with pytest.raises(InputError, match="finds no CUDA device"):
        run(dataset, dataclasses.replace(fake_options, device="cuda"), workers=1)


def test_options_survive_json(fake_options: ExtractOptions) -> None:
    assert ExtractOptions.from_json(json.loads(json.dumps(fake_options.to_json()))) == fake_options


def test_a_data_set_without_photographs_is_refused(
    make_dataset: Callable[..., Dataset], fake_options: ExtractOptions
) -> None:
    dataset = make_dataset({"train": 2})
    header = {**dataset.header, "image_roots": [None]}
    with pytest.raises(InputError, match="its images have no files; import again with --images DIR"):
        run(dataclasses.replace(dataset, header=header), fake_options)


def test_names() -> None:
    assert default_name("grid:resnet101") == "grid-resnet101"
    assert default_name("detectron2:COCO-Detection/x.yaml") == "detectron2-COCO-Detection-x.yaml"
    assert check_name("vg-r101-c4") == "vg-r101-c4"
    for bad in ("", "../x", ".hidden", "a/b"):
        with pytest.raises(InputError, match="features name"):
            check_name(bad)


def test_no_threads_stay_behind(make_photographs: MakePhotographs, fake_options: ExtractOptions) -> None:
    before = threading.active_count()
    run(make_photographs({"train": 2}), fake_options)
    assert threading.active_count() == before


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cuda", 2)])
def test_decoding_threads_suit_the_device(
    make_photographs: MakePhotographs,
    fake_options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    threads: int,
) -> None:
    monkeypatch.syspath_prepend(str(Path(os.environ["FAKE_EXTRACTOR"]).parent))
    monkeypatch.setattr(extract_worker, "choose_device", lambda wanted: device)
    dataset = make_photographs({"train": 1})
    for given, expected in ((None, threads), (3, 3)):
        options = dataclasses.replace(fake_options, decoders=given)
        worker = ExtractWorker(dataset, name="fake", options=options)
        assert len(worker._decoder._threads) == expected
        worker.close()
