"""Training on a data set's own files: word vectors from the config, and the run that they leave behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from camp.errors import InputError
from camp.evaluation.run_folder import open_run
from camp.evaluation.run_scores import open_run_scores
from camp.manifests.dataset import Dataset
from camp.training.config_file import read_config
from camp.training.run import train_dataset

ADAPT = ["model.name=adapt", "schedule.epochs=2", "data.vectors=toy"]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("use", "tables", "fixed"),
    [("both", 2, 1), ("both-trained", 2, 0), ("given", 1, 1), ("trained", 1, 0), (None, 2, 1)],
)
def test_word_vectors_are_fixed_trained_or_both(
    tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path, use: str | None, tables: int, fixed: int
) -> None:
    settings = [*ADAPT, *([f"model.options.embedding={use}"] if use else [])]
    train_dataset(
        tiny_dataset, read_config(tiny_config, overrides=settings), out=tmp_path / "run", device=CPU
    )
    run = open_run(tmp_path / "run")
    assert run.header["model"]["options"]["word_dim"] == 5
    model = run.load_model(device=CPU)
    embeddings = [p for name, p in model.named_parameters() if ".embed.tables." in name]
    assert len(embeddings) == tables
    assert sum(not table.requires_grad for table in embeddings) == fixed
    # The fixed table is the matrix on disk, so its checkpoint is the same whatever the seed.
    matrix = tiny_dataset.root / "vocab" / "default.toy.npy"
    if fixed:
        [given] = [table for table in embeddings if not table.requires_grad]
        assert np.array_equal(given.detach().numpy(), np.load(matrix))
    assert open_run_scores(run, device=CPU).matrix().shape == (6, 12)


def test_vectors_that_are_not_there(tiny_dataset: Dataset, tiny_config: Path, tmp_path: Path) -> None:
    settings = [*ADAPT, "data.vectors=glove"]
    with pytest.raises(InputError, match=r"default.glove.npy: not found, .* --set data.vectors= --set model"):
        train_dataset(tiny_dataset, read_config(tiny_config, overrides=settings), out=tmp_path / "run")
    config = read_config(tiny_config, overrides=[*settings, "data.vectors="])
    assert train_dataset(tiny_dataset, config, out=tmp_path / "run", device=CPU).reason == "finished"
