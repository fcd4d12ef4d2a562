"""executor_ray.py on a real Ray cluster of two nodes: one leaves, another comes, workers die."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from camp.errors import CampError, InputError
from camp.manifests.dataset import Dataset
from camp.pipeline.caption_job import count_on, encode_on
from camp.pipeline.executor_ray import RayExecutor
from camp.pipeline.extract_events import Event
from camp.pipeline.extract_job import extract_features
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.live_view import SilentView
from camp.pipeline.tokens import tokenize_dataset, tokens_file
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer

ray: Any = pytest.importorskip("ray", reason="the package 'ray' is not installed")

MakePhotographs = Callable[..., Dataset]

pytestmark = [
    pytest.mark.slow,
    # Ray's own: sockets and processes it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray"),
]


class Cluster:
    """Two nodes of one core each, and the means to mistreat them."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self._cluster: Any = RayCluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.nodes: list[Any] = []

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=1))

    def remove(self) -> None:
        self._cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def shutdown(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nodes inherit PYTHONPATH when they start, before any test has its own folder."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def cluster(modules: Path) -> Iterator[Cluster]:
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "WELL": str(modules / "well"),
        "SLOW": "0.05",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "3",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
        made = Cluster()
        made.add()
        made.add()
        ray.init(address=made.address, log_to_driver=False)
        yield made
        made.shutdown()


class Watch(SilentView):
    def __init__(self, action: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self._action = action

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self._action(event)

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)


@pytest.fixture
def options(fake_options: ExtractOptions, modules: Path) -> ExtractOptions:
    source = Path(os.environ["FAKE_EXTRACTOR"])
    (modules / "fake_extractor.py").write_text(source.read_text())
    return fake_options


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_node_leaves_ungracefully_and_another_joins(
    cluster: Cluster, make_photographs: MakePhotographs, options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 60, "val": 4})
    extract_features(dataset, name="undisturbed", options=options, workers=1)

    def mistreat(event: Event) -> None:
        if event.kind == "done" and watch.count("done") == 3:
            cluster.remove()
            cluster.add()

    watch = Watch(mistreat)
    summary = extract_features(
        dataset, name="fake", options=options, executor=RayExecutor(), workers=2, view=watch
    )
    assert summary.complete
    assert watch.count("ready") >= 3
    assert watch.count("lost") == 1
    assert not watch.count("quarantined")
    expected = folder_bytes(dataset.features_folder("undisturbed"))
    assert folder_bytes(dataset.features_folder("fake")) == expected


def test_poison_images_and_failures_are_accounted_for(
    cluster: Cluster, make_photographs: MakePhotographs, options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 12}, widths={5: 13, 9: 19})
    watch = Watch()
    summary = extract_features(dataset, name="fake", options=options, executor=RayExecutor(), view=watch)
    assert (summary.done, summary.failed) == (10, 2)
    assert summary.reasons == {"worker died": 1, "ValueError: this width is not liked": 1}
    assert watch.count("lost") == 4
    again = extract_features(dataset, name="fake", options=options, executor=RayExecutor())
    assert (again.units_before, again.units_now) == (3, 0)


def test_progress_arrives_while_a_unit_runs(
    cluster: Cluster, make_photographs: MakePhotographs, options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 60})
    watch = Watch()
    extract_features(
        dataset,
        name="fake",
        options=dataclasses.replace(options, shard_size=60),
        executor=RayExecutor(),
        view=watch,
    )
    assert sum(event.images for event in watch.events if event.kind == "progress") > 0


def test_errors_are_sentences(
    cluster: Cluster, make_photographs: MakePhotographs, options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 2})
    with pytest.raises(CampError, match="ValueError: no such thing"):
        extract_features(
            dataset,
            name="fake",
            options=dataclasses.replace(options, model="broken"),
            executor=RayExecutor(),
        )


def test_no_cluster_is_a_sentence_too(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def nobody(**given: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore text.")

    monkeypatch.setattr(ray, "init", nobody)
    dataset = make_photographs({"train": 2})
    with pytest.raises(InputError, match=r"--ray-address auto: .*running Ray instance\.\); start one with"):
        extract_features(dataset, name="fake", options=fake_options, executor=RayExecutor())


def test_captions_are_counted_and_encoded_as_in_one_process(
    cluster: Cluster, make_dataset: Callable[..., Dataset]
) -> None:
    dataset = make_dataset({"train": 20, "val": 7})
    tokenizer = open_tokenizer("plain")
    vocabulary = build_vocabulary(dataset, tokenizer=tokenizer, min_count=1)
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    expected = {split: tokens_file(dataset, "default", split).read_bytes() for split in dataset.splits}
    executor = RayExecutor(address=cluster.address)

    def count(splits: Any) -> Any:
        return count_on(executor, dataset, splits, tokenizer=tokenizer, unit_size=30)

    counted = build_vocabulary(dataset, tokenizer=tokenizer, min_count=1, count=count)
    assert counted == vocabulary
    for split in dataset.splits:
        tokens_file(dataset, "default", split).unlink()
    tokenize_dataset(dataset, encode=encode_on(executor, dataset, unit_size=30))
    assert {
        split: tokens_file(dataset, "default", split).read_bytes() for split in dataset.splits
    } == expected
