"""Kills, full disks: the next run ends with the bytes of an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from camp.pipeline.feature_index import list_markers

STORES = ("arrow", "hdf5")
KILL_WRITER = Path(__file__).with_name("kill_writer.py")

# A job under a limit on the size of files, or on a small disk; prints the error that a user would read.
JOB = """
import resource, signal, sys
from pathlib import Path
from camp.errors import StorageError

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import kill_writer

if int(sys.argv[4]):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), int(sys.argv[4])))
try:
    kill_writer.job(Path(sys.argv[2]), sys.argv[3])
except StorageError as error:
    print(error)
    sys.exit(9)
"""


def run_job(folder: Path, store: str, *, limit: int = 0) -> tuple[int, str]:
    command = [sys.executable, "-c", JOB, str(KILL_WRITER), str(folder), store, str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout.strip() or run.stderr.strip()


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_killed_at_every_step_and_at_random_instants(tmp_path: Path, store: str) -> None:
    run = subprocess.run(
        [sys.executable, str(KILL_WRITER), str(tmp_path), store, "5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["problems"] == []
    assert min(report["steps"]) > 30


@pytest.mark.parametrize(
    ("store", "limit"),
    [("arrow", 100), ("arrow", 2_000), ("hdf5", 100), ("hdf5", 13_000), ("hdf5", 40_000)],
)
def test_a_limit_on_file_sizes(tmp_path: Path, store: str, limit: int) -> None:
    assert run_job(tmp_path / "undisturbed", store) == (0, "")
    expected = content(tmp_path / "undisturbed")
    folder = tmp_path / "limited"
    code, message = run_job(folder, store, limit=limit)
    assert code == 9, message
    assert message.startswith(str(folder))
    assert "the file size limit is reached; raise it (ulimit -f) and run the same command again" in message
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert run_job(folder, store) == (0, "")
    assert content(folder) == expected


@pytest.mark.parametrize("store", STORES)
def test_a_full_disk(tmp_path: Path, store: str) -> None:
    assert run_job(tmp_path / "undisturbed", store) == (0, "")
    expected = content(tmp_path / "undisturbed")
    size = sum(-(-len(value) // 4096) * 4096 for value in expected.values())
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    # The mount exists inside the shell alone; what is left there is copied out for the second run.
    script = f"""
        mount -t tmpfs -o size={max(4096, size - 12288)} none {disk} || exit 77
        {sys.executable} -c "$JOB" {KILL_WRITER} {disk}/made {store} 0; code=$?
        cp -r {disk}/made {copy}; exit $code
    """
    run = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env={**os.environ, "JOB": JOB},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 9 and ("unshare" in run.stderr or "mount" in run.stderr):
        pytest.skip(f"no small disk can be mounted here: {run.stderr.strip()}")
    assert run.returncode == 9, run.stderr
    assert "no space left on the disk; free some and run the same command again" in run.stdout
    finished = list_markers(copy)
    stamps = {shard: (copy / f"{shard}.json").stat().st_ino for shard in finished}
    assert run_job(copy, store) == (0, "")
    assert content(copy) == expected
    assert all((copy / f"{shard}.json").stat().st_ino == stamp for shard, stamp in stamps.items())
