"""A matrix that is kept as it grows: killed, resumed, shared among processes, damaged, in 16 bits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from camp.evaluation import score_store
from camp.evaluation.run_folder import Run
from camp.evaluation.run_scores import RunScores, open_run_scores
from camp.evaluation.score_store import is_long, open_store

CPU = torch.device("cpu")
# Two images a block, so that eight make four of them; the process is killed behind the second.
SMALL_BLOCKS = """
import os, signal, sys
from camp.cli import camp
from camp.evaluation import score_store

score_store.BLOCK_FLOATS, killed, *arguments = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
write = score_store.ScoreStore.write
written = []

def write_and_die(store, path, scores):
    write(store, path, scores)
    written.append(path)
    if len(written) == killed:
        os.kill(os.getpid(), signal.SIGKILL)

score_store.ScoreStore.write = write_and_die
code = camp(arguments, standalone_mode=False)
print("written", len(written), file=sys.stderr)
"""


@pytest.fixture
def camp_scores(world: Any, tmp_path: Path) -> RunScores:
    return open_run_scores(world.run("own", "camp", seed=5, folder=tmp_path / "run"), device=CPU)


def two_images(scores: RunScores) -> int:
    words = int(scores.rows.tokens.lengths[scores.rows.caption_rows].mean())
    return 2 * len(scores.rows.caption_ids) * scores.model.pair_floats(4, words)


def test_a_kept_matrix_is_the_matrix(camp_scores: RunScores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_store, "BLOCK_FLOATS", two_images(camp_scores))
    kept = camp_scores.matrix(keep=True)
    np.testing.assert_allclose(kept, camp_scores.matrix(), atol=1e-6)
    files = sorted(camp_scores.folder.glob("*/rows-*.npy"))
    assert len(files) == 4
    files[1].write_bytes(b"cut")  # damaged, so it is made again; the others are not
    times = [file.stat().st_mtime_ns for file in files]
    np.testing.assert_array_equal(camp_scores.matrix(keep=True), kept)
    again = [file.stat().st_mtime_ns for file in files]
    assert [before == after for before, after in zip(times, again, strict=True)] == [True, False, True, True]


def test_sixteen_bits_and_another_checkpoint_are_other_matrices(world: Any, camp_scores: RunScores) -> None:
    whole = camp_scores.matrix(keep=True)
    half = camp_scores.matrix(keep=True, dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, whole, atol=2e-3)
    run = Run(folder=camp_scores.folder.parent, header={})
    header = json.loads((run.folder / "run.json").read_bytes())
    world.save(Run(folder=run.folder, header=header), seed=6)
    changed = open_run_scores(Run(folder=run.folder, header=header), device=CPU)
    assert not np.allclose(changed.matrix(keep=True), whole)
    assert len(list(camp_scores.folder.iterdir())) == 1  # what is out of date is removed


def test_ranks_share_the_blocks(tmp_path: Path) -> None:
    store = open_store(tmp_path, "test", identity="x", shape=(7, 3), pair_floats=1)
    assert len(store.missing()) == 1
    small = score_store.ScoreStore(store.folder, (7, 3), 2, np.dtype(np.float32))
    parts = [small.missing(rank=rank, world_size=3) for rank in range(3)]
    assert sorted(path.name for part in parts for path, _ in part) == [f"rows-0000{n}.npy" for n in range(4)]
    for part in parts:
        for path, rows in part:
            small.write(path, np.full((rows.stop - rows.start, 3), rows.start, np.float32))
    assert small.missing() == []
    assert small.read()[:, 0].tolist() == [0, 0, 2, 2, 4, 4, 6]


def test_only_long_matrices_are_kept_unasked(camp_scores: RunScores) -> None:
    camp_scores.matrix()
    assert not camp_scores.folder.exists()
    assert is_long((1000, 5000), pair_floats=4 * 1024 + 4 * 36 * 13)
    assert not is_long((1000, 5000), pair_floats=1)


def evaluate(run: Path, block_floats: int, killed: int, *options: str, **environment: str) -> Any:
    command = [sys.executable, "-c", SMALL_BLOCKS, str(block_floats), str(killed), "eval", str(run), "--json"]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_killed_evaluation_goes_on(camp_scores: RunScores, tmp_path: Path) -> None:
    run, floats = camp_scores.folder.parent, two_images(camp_scores)
    options = ["--keep-scores", "--save-scores", str(tmp_path / "resumed.npy")]
    killed = evaluate(run, floats, 2, *options)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert len(list(camp_scores.folder.glob("*/rows-*.npy"))) == 2
    resumed = evaluate(run, floats, 0, *options)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert "written 2" in errors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_store, "BLOCK_FLOATS", floats)
        for path in camp_scores.folder.glob("*/rows-*.npy"):
            path.unlink()
        undisturbed = camp_scores.matrix(keep=True)
    np.testing.assert_array_equal(np.load(tmp_path / "resumed.npy"), undisturbed)


def test_two_processes_measure_what_one_does(camp_scores: RunScores) -> None:
    run, floats = camp_scores.folder.parent, two_images(camp_scores)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    both = [evaluate(run, floats, 0, RANK=rank, LOCAL_RANK=rank, **group) for rank in ("0", "1")]
    found = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], found
    assert ["written 2" in errors for _, errors in found] == [True, True]
    assert found[1][0] == ""
    alone = evaluate(run, floats, 0, "--no-keep-scores")
    expected, errors = alone.communicate()
    assert alone.returncode == 0, errors
    assert json.loads(found[0][0]) == json.loads(expected)
