"""A run on disk -> its score matrix, ensembles, reranking, gates and explanations, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from camp.errors import InputError, MismatchError
from camp.evaluation.explain_run import explain_run
from camp.evaluation.gates import gate_means
from camp.evaluation.query import QueryEncoder
from camp.evaluation.recall import evaluate
from camp.evaluation.rerank import mean_scores
from camp.evaluation.run_folder import Run, open_run
from camp.evaluation.run_scores import ensemble_scores, open_run_scores, pair_scorer, rerank_runs
from camp.evaluation.split_scores import encode_captions, encode_images

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["base_run", "camp_run"])
def test_the_matrix_is_each_pair_scored_alone(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    scores = open_run_scores(run, device=CPU)
    matrix = scores.matrix()
    encoder = QueryEncoder.open(run, device=CPU)
    texts = dict(zip(*(encoder.dataset.captions[c].to_pylist() for c in ("caption_id", "text")), strict=True))
    assert matrix.shape == (8, 24)
    for row, image_id in enumerate(scores.rows.image_ids):
        for column, caption_id in enumerate(scores.rows.caption_ids):
            image, text = encoder.image_ids([int(image_id)]), encoder.texts([texts[int(caption_id)]])
            with torch.no_grad():
                alone = float(encoder.model.score_pairs(image, text))
            assert matrix[row, column] == pytest.approx(alone, abs=1e-5)
    owner = encoder.dataset.captions["image_id"].to_numpy()[9:]
    assert scores.rows.image_ids[scores.rows.caption_image].tolist() == owner.tolist()


def test_limit_takes_the_first_images(camp_run: Run) -> None:
    few, whole = (open_run_scores(camp_run, device=CPU, limit=n) for n in (3, 0))
    np.testing.assert_allclose(few.matrix(), whole.matrix()[:3, :9], atol=1e-6)


def test_ensemble_is_the_mean_of_the_matrices(base_run: Run, camp_run: Run) -> None:
    members = [open_run_scores(run, device=CPU) for run in (base_run, camp_run)]
    expected = mean_scores([member.matrix() for member in members])
    np.testing.assert_allclose(ensemble_scores(members), expected)
    shorter = open_run_scores(camp_run, device=CPU, limit=3)
    with pytest.raises(MismatchError, match="found 3 images and 9 captions, expected the same 8 and 24"):
        ensemble_scores([members[0], shorter])


def test_reranking_everything_is_the_dear_run_alone(base_run: Run, camp_run: Run) -> None:
    cheap, dear = (open_run_scores(run, device=CPU) for run in (base_run, camp_run))
    small, whole = rerank_runs(cheap, dear, tops=["2", "100%"])
    alone = evaluate(dear.matrix(), dear.rows.caption_image, bootstrap=0)
    for direction in ("caption_retrieval", "image_retrieval"):
        assert whole[direction] == pytest.approx(alone[direction])
    assert whole["pairs"] == 8 * 24
    assert small["pairs"] < 8 * 24
    assert small["seconds"] > 0


def test_pair_scores_do_not_depend_on_the_order_they_are_asked_in(camp_run: Run) -> None:
    scores = open_run_scores(camp_run, device=CPU)
    images = encode_images(scores.model, scores.rows, slice(None), device=CPU)
    captions = encode_captions(scores.model, scores.rows, device=CPU)
    score = pair_scorer(scores.model, images, captions)
    rows, columns = (part.ravel() for part in np.indices((8, 24)))
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = score(rows[order], columns[order])
    np.testing.assert_allclose(shuffled, scores.matrix()[rows[order], columns[order]], atol=1e-6)


def test_gates_are_measured_where_there_are_any(base_run: Run, camp_run: Run) -> None:
    opened = open_run_scores(camp_run, device=CPU)
    gates = gate_means(opened.model, opened.rows, device=CPU)
    assert set(gates) == {"positive", "negative"}
    assert all(0 < value < 1 for value in gates.values())
    without = open_run_scores(base_run, device=CPU)
    assert gate_means(without.model, without.rows, device=CPU) == {}


def test_explanation_is_drawn_with_a_swapped_caption_beside_it(camp_run: Run, tmp_path: Path) -> None:
    out = tmp_path / "why.png"
    shown = explain_run(camp_run, image="4.png", text="a red dog", out=out, device=CPU)
    with Image.open(out) as picture:
        assert picture.size[0] > 500
    assert shown.notes == []
    assert shown.positive.text == "a red dog"
    assert shown.negative.text != shown.positive.text
    attention = shown.positive.region_attention
    assert attention is not None
    np.testing.assert_allclose(attention.sum(axis=1), 1, atol=1e-5)
    facts = shown.to_json()["positive"]
    assert len(facts["word_gate"]) == len(facts["words"])


@pytest.mark.parametrize(("direction", "adapted"), [("t2i", "region"), ("i2t", "word")])
def test_the_fovea_is_an_explanation(world: Any, tmp_path: Path, direction: str, adapted: str) -> None:
    run = world.run("adapt", "adapt", folder=tmp_path / "run", direction=direction)
    shown = explain_run(run, image="4.png", text="a red dog", out=tmp_path / "why.png", device=CPU)
    facts = shown.to_json()["positive"]
    found = facts[f"{adapted}_fovea"]
    assert facts[f"{'word' if adapted == 'region' else 'region'}_fovea"] is None
    boxes = shown.positive.regions.boxes
    assert len(found) == (len(boxes) if adapted == "region" else len(facts["words"]))
    assert max(found) == 1
    assert min(found) > 0
    plain = explain_run(
        world.run("vsepp", "vsepp", folder=tmp_path / "plain"),
        image="4.png",
        text="a red dog",
        out=tmp_path / "plain.png",
        device=CPU,
    )
    assert plain.positive.region_fovea is None
    assert (tmp_path / "why.png").read_bytes() != (tmp_path / "plain.png").read_bytes()


def test_a_missing_photograph_becomes_a_placeholder_with_a_note(base_run: Run, tmp_path: Path) -> None:
    shown = explain_run(base_run, image="9.png", caption_id=127, out=tmp_path / "why.png", device=CPU)
    assert len(shown.notes) == 1
    assert shown.notes[0].startswith("9.png: photograph not shown")
    assert (tmp_path / "why.png").exists()


def test_runs_say_what_does_not_fit(base_run: Run, tmp_path: Path, make_dataset: Any) -> None:
    with pytest.raises(InputError, match="no run.json found, expected a run"):
        open_run(tmp_path)
    other = make_dataset(root=tmp_path / "other")
    with pytest.raises(MismatchError, match=f"fingerprint {other.fingerprint}"):
        base_run.dataset(other.root)
    with pytest.raises(InputError, match="no checkpoint 'last' found, there is best"):
        base_run.load_model(checkpoint="last", device=CPU)
    header = json.loads((base_run.folder / "run.json").read_bytes())
    header["features"]["dim"] = 7
    with pytest.raises(MismatchError, match="6-d features, but .* was trained on 7-d ones"):
        Run(folder=base_run.folder, header=header).features(base_run.dataset())
