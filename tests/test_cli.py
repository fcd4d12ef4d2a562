"""The command line contract: exit codes, one-line errors, hints, JSON, interruption, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from camp.progress import PlainBar


def run(*arguments: str, program: str = "camp_data", **environment: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; from camp.cli import {program}; {program}()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"image": "a.jpg", "caption": "A dog ."}\n')
    return path


def test_results_on_stdout_logs_on_stderr(source: Path, tmp_path: Path) -> None:
    result = run("import", str(source), "--format", "table", "--out", str(tmp_path / "d"), "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["splits"] == {"all": {"images": 1, "captions": 1}}
    assert "importing captions.jsonl: 1 images" in result.stderr
    info = run("info", str(tmp_path / "d"), "--json")
    assert json.loads(info.stdout)["splits"]["all"]["images"] == 1
    assert "captions per image" in run("info", str(tmp_path / "d")).stdout


def test_an_error_is_one_line_without_traceback(tmp_path: Path) -> None:
    result = run("info", str(tmp_path / "absent"))
    assert result.returncode == 1
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line == (
        f"error: {tmp_path}/absent: no dataset.json found, expected a data set; "
        "make one with 'camp-data import'"
    )


@pytest.mark.parametrize("place", ["before", "behind", "environment"])
def test_debug_shows_the_traceback(tmp_path: Path, place: str) -> None:
    arguments = ["info", str(tmp_path / "absent")]
    if place == "before":
        result = run("--debug", *arguments)
    elif place == "behind":
        result = run(*arguments, "--debug")
    else:
        result = run(*arguments, CAMP_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_wrong_names_get_a_hint() -> None:
    result = run("inport")
    assert result.returncode == 2
    assert "No such command 'inport'. Did you mean 'import'?" in result.stderr
    result = run("import", "x", "--fromat", "table")
    assert result.returncode == 2
    assert "--format" in result.stderr


def test_options_come_from_the_environment(source: Path, tmp_path: Path) -> None:
    result = run("import", str(source), CAMP_IMPORT_FORMAT="table", CAMP_IMPORT_OUT=str(tmp_path / "d"))
    assert result.returncode == 0
    assert (tmp_path / "d" / "dataset.json").is_file()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_code_and_a_way_on(tmp_path: Path, number: int, code: int) -> None:
    pipe = tmp_path / "captions.json"  # a FIFO: reading it waits until somebody writes
    os.mkfifo(pipe)
    script = "import sys; from camp.cli import camp_data; camp_data()"
    arguments = ["import", str(pipe), "--format", "karpathy", "--out", str(tmp_path / "d")]
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with pipe.open("w"):  # returns once the child has opened it for reading
        for _ in range(20):
            # A signal that arrives just before a blocking read is seen only after it: press again.
            child.send_signal(number)
            try:
                _, errors = child.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                continue
    assert child.returncode == code
    assert "run the same command again to go on" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "d").exists()


def test_a_closed_pipe_ends_quietly(source: Path, tmp_path: Path) -> None:
    run("import", str(source), "--format", "table", "--out", str(tmp_path / "d"))
    script = "import sys; from camp.cli import camp_data; camp_data()"
    command = f"'{sys.executable}' -c '{script}' info '{tmp_path}/d' | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""


def test_shell_completion_lists_commands() -> None:
    script = "from camp.cli import camp_data; camp_data(prog_name='camp-data')"
    environment = {
        **os.environ,
        "_CAMP_DATA_COMPLETE": "bash_complete",
        "COMP_WORDS": "camp-data im",
        "COMP_CWORD": "1",
    }
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert "plain,import" in result.stdout.splitlines()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_progress_tells_rate_and_time_left() -> None:
    from io import StringIO

    clock, stream = Clock(), StringIO()
    bar = PlainBar("extracting", 1000, "images", stream=stream, clock=clock)
    clock.now = 4.0
    bar.advance(10)
    assert stream.getvalue() == ""  # a log is not flooded
    clock.now = 10.0
    bar.note("2 failed")
    bar.advance(190)
    clock.now = 50.0
    bar.advance(800)
    bar.close()
    assert stream.getvalue().splitlines() == [
        "extracting: 200/1,000 (20%) images, 20 images/s, 0:40 left · 2 failed",
        "extracting: 1,000/1,000 (100%) images, 20 images/s · 2 failed",
        "extracting: 1,000/1,000 (100%) images, 20 images/s · 2 failed, took 0:50",
    ]
