"""Texts and images -> answers from an index on disk, plain and re-scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.errors import InputError, MismatchError
from camp.evaluation.query import QueryEncoder, extractor_of
from camp.evaluation.run_folder import Run
from camp.evaluation.run_scores import open_run_scores
from camp.evaluation.search import Search, score_texts
from camp.evaluation.search_index import open_index
from camp.extractors.build import build_extractor
from camp.extractors.extractor import RegionPolicy
from camp.progress import no_progress

CPU = torch.device("cpu")


def opened(run: Run) -> QueryEncoder:
    return QueryEncoder.open(run, device=CPU)


@pytest.mark.parametrize("name", ["base_run", "camp_run"])
def test_a_caption_finds_what_the_score_matrix_says(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    scores = open_run_scores(run, device=CPU)
    matrix = scores.matrix()
    search = Search(opened(run))
    assert search.indexed == (name == "base_run")
    captions = search.encoder.dataset.captions
    for column in (0, 7, 23):
        caption_id = int(scores.rows.caption_ids[column])
        text = captions["text"][captions["caption_id"].to_pylist().index(caption_id)].as_py()
        answer = search.images(text, top=3)
        expected = scores.rows.image_ids[np.argsort(-matrix[:, column], kind="stable")[:3]]
        assert [hit.image_id for hit in answer.hits] == expected.tolist()
        assert answer.searched == 8
    regions = search.encoder.find("5.png")[1]
    found = search.captions(regions, top=4)
    row = scores.rows.image_ids.tolist().index(5)
    best = np.argsort(-matrix[row], kind="stable")[:4]
    assert [hit.caption_id for hit in found.hits] == scores.rows.caption_ids[best].tolist()
    assert all(hit.text for hit in found.hits)


def test_reranking_gives_the_second_run_s_order(base_run: Run, camp_run: Run) -> None:
    search = Search(opened(base_run), rerank=opened(camp_run))
    alone = Search(opened(camp_run))
    text = "a red dog"
    answer, expected = search.images(text, top=5), alone.images(text, top=5)
    assert answer.rescored == 8  # all of them: fewer than a hundred
    assert [hit.image_id for hit in answer.hits] == [hit.image_id for hit in expected.hits]
    assert [hit.score for hit in answer.hits] == pytest.approx([hit.score for hit in expected.hits], abs=1e-5)
    regions = search.encoder.find("6.png")[1]
    again, plain = search.captions(regions, top=5), alone.captions(regions, top=5)
    assert [hit.caption_id for hit in again.hits] == [hit.caption_id for hit in plain.hits]
    assert all(0 < hit.score < 1 for hit in again.hits)  # CAMP's scores are shown as probabilities


def test_the_index_is_made_once_and_again_when_something_changes(world: Any, tmp_path: Path) -> None:
    run = world.run("indexed", "base", seed=3, folder=tmp_path / "run")
    made: list[str] = []

    def count(label: str, total: int | None, unit: str) -> Any:
        made.append(label)
        return no_progress(label, total, unit)

    first = open_index(opened(run), split="test", progress=count)
    second = open_index(opened(run), split="test", progress=count)
    assert made == ["indexing"]
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.image_vectors, second.image_vectors)
    world.save(run, seed=4)  # another checkpoint
    third = open_index(opened(run), split="test", progress=count)
    assert made == ["indexing"] * 2
    assert third is not None
    assert not np.allclose(third.image_vectors, second.image_vectors)
    (run.folder / "index" / "test-best" / "image_ids.npy").write_bytes(b"cut")  # damaged
    assert open_index(opened(run), split="test", progress=count) is not None
    assert made == ["indexing"] * 3


def test_scores_of_texts_are_the_matrix_s(camp_run: Run) -> None:
    scores = open_run_scores(camp_run, device=CPU)
    encoder = opened(camp_run)
    captions = encoder.dataset.captions
    texts = captions["text"].to_pylist()[9:14]
    found = score_texts(encoder, encoder.find("3.png")[1], texts)
    expected = torch.from_numpy(scores.matrix()[0, :5]).sigmoid()
    assert found == pytest.approx(expected.tolist(), abs=1e-5)


def test_bad_queries_are_told(base_run: Run, world: Any) -> None:
    encoder = opened(base_run)
    with pytest.raises(InputError, match="no word found"):
        encoder.texts([""])
    with pytest.raises(InputError, match="no image '99.png'"):
        encoder.find("99.png")
    with pytest.raises(InputError, match="imported features, their extractor is not here"):
        encoder.find(str(world.photographs / "4.png"))


def test_long_texts_are_cut_as_captions_are(base_run: Run) -> None:
    encoder = opened(base_run)
    long = encoder.texts(["red " * 80])
    assert long.mask.shape[1] == base_run.max_words + 2  # <start> and <end>


def test_the_recorded_extractor_is_built_again_and_another_refused(tmp_path: Path) -> None:
    made = build_extractor("scenes-tiny", policy=RegionPolicy(min_regions=8, max_regions=8))
    recorded = json.loads(json.dumps(dict(made.config)))
    again = extractor_of({"extractor": recorded}, regions=8, weights=None, source=tmp_path)
    assert dict(again.config) == dict(made.config)
    recorded["weights"] = "sha256:0"
    with pytest.raises(MismatchError, match="made with weights 'sha256:0'"):
        extractor_of({"extractor": recorded}, regions=8, weights=None, source=tmp_path)
