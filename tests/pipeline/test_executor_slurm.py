"""executor_slurm.py: its tasks as plain processes, and on a real single-node Slurm where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from camp.errors import CampError
from camp.manifests.dataset import Dataset
from camp.pipeline import executor_slurm
from camp.pipeline.caption_job import encode_on
from camp.pipeline.executor_slurm import SlurmExecutor
from camp.pipeline.extract_events import Event
from camp.pipeline.extract_job import extract_features, write_script
from camp.pipeline.extract_options import ExtractOptions
from camp.pipeline.live_view import SilentView
from camp.pipeline.slurm_task import finish, run_task
from camp.pipeline.tokens import tokenize_dataset
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import open_tokenizer

MakePhotographs = Callable[..., Dataset]


class Watch(SilentView):
    def __init__(self, action: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self._action = action

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self._action(event)

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_slurm, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(executor_slurm, "LINGER_SECONDS", 30.0)


def test_tasks_stride_over_the_units_and_the_last_step_writes_the_index(
    make_photographs: MakePhotographs, fake_options: ExtractOptions
) -> None:
    dataset = make_photographs({"train": 14, "val": 3}, widths={5: 19})
    extract_features(dataset, name="undisturbed", options=fake_options, workers=1)
    executor = SlurmExecutor(
        partition="gpu", minutes=90, memory_per_worker=4 * 10**9, parameters={"account": "me"}
    )
    script = write_script(dataset, executor=executor, name="fake", options=fake_options, workers=2)
    folder = dataset.features_folder("fake")
    for line in ("--array=0-1", "--partition=gpu", "--time=90", "--mem=4000M", "--account=me", "--requeue"):
        assert f"#SBATCH {line}\n" in script
    assert f"-m camp.pipeline.slurm_task {folder.resolve()}" in script.replace("'", "")
    with pytest.raises(CampError, match="not all units are done; submit the array again"):
        finish(folder)
    assert run_task(folder, 1) == 2
    assert run_task(folder, 0) == 3
    assert run_task(folder, 0) == 0  # a task that comes again finds everything done
    assert finish(folder) == 3
    assert folder_bytes(folder) == folder_bytes(dataset.features_folder("undisturbed"))


def test_the_driver_submits_follows_and_finishes(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="the package 'submitit' is not installed")
    dataset = make_photographs({"train": 12, "val": 3}, widths={2: 19})
    extract_features(dataset, name="undisturbed", options=fake_options, workers=1)
    watch = Watch()
    summary = extract_features(
        dataset,
        name="fake",
        options=fake_options,
        executor=SlurmExecutor(cluster="local"),
        workers=2,
        view=watch,
    )
    assert (summary.done, summary.failed, summary.units) == (14, 1, 4)
    assert watch.count("done") == 4
    assert folder_bytes(dataset.features_folder("fake")) == folder_bytes(
        dataset.features_folder("undisturbed")
    )


def test_tasks_that_get_nowhere_end_in_one_sentence(
    make_photographs: MakePhotographs, fake_options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="the package 'submitit' is not installed")
    monkeypatch.setattr(executor_slurm, "LINGER_SECONDS", 0.0)
    dataset = make_photographs({"train": 2})
    module = Path(os.environ["FAKE_EXTRACTOR"])

    def spoil(event: Event) -> None:
        if event.kind == "ready":
            module.write_text("raise OSError('not on this node')")

    with pytest.raises(
        CampError, match=r"1 units are not done and the Slurm tasks have ended; see their logs"
    ):
        extract_features(
            dataset,
            name="fake",
            options=fake_options,
            executor=SlurmExecutor(cluster="local"),
            view=Watch(spoil),
        )


class Slurm:
    """A real single-node Slurm in a folder, started here and stopped after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool", "run"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        socket = folder / "run" / "munge.socket"
        (folder / "slurm.conf").write_text(
            f"""
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,sched_min_interval=0
KillWait=5
ReturnToService=2
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000
PartitionName=main Nodes=localhost Default=YES PriorityTier=1 GraceTime=15 MaxTime=60
PartitionName=high Nodes=localhost PriorityTier=10 PreemptMode=OFF MaxTime=60
"""
        )
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={socket}",
            f"--pid-file={folder}/run/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        self._until(socket.exists)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D", "-N", "localhost")
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format", "%t"))

    def ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("wb")
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "Slurm does not answer"
            time.sleep(0.2)

    def stop(self) -> None:
        self.ask("scancel", "--user=root")
        self._until(lambda: not self.ask("squeue", "--noheader"))
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(timeout=30)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} on this machine (Debian: slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("a private Slurm is started as root")
    pytest.importorskip("submitit", reason="the package 'submitit' is not installed")
    folder = Path("/tmp") / f"camp-slurm-{os.getpid()}"  # sockets need a short path
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    started = Slurm(folder)
    try:
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder)


@pytest.mark.slurm
@pytest.mark.slow
def test_a_real_slurm_with_preemption(
    slurm: Slurm,
    make_photographs: MakePhotographs,
    fake_options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = make_photographs({"train": 40})
    extract_features(dataset, name="undisturbed", options=fake_options, workers=2)
    monkeypatch.setenv("SLOW", "0.3")

    def preempt(event: Event) -> None:
        if event.kind == "done" and watch.count("done") == 2:
            assert slurm.ask(
                "sbatch",
                "--parsable",
                "--partition=high",
                "--exclusive",
                "--output=/dev/null",
                "--wrap",
                "sleep 3",
            )

    watch = Watch(preempt)
    summary = extract_features(
        dataset,
        name="fake",
        options=fake_options,
        executor=SlurmExecutor(partition="main", minutes=30),
        workers=2,
        view=watch,
    )
    assert summary.complete
    assert watch.count("done") == 10
    folder = dataset.features_folder("fake")
    assert folder_bytes(folder) == folder_bytes(dataset.features_folder("undisturbed"))
    logs = "".join(path.read_text() for path in (folder / ".extraction" / "slurm-logs").glob("*.err"))
    assert "preempted" in logs


@pytest.mark.slurm
@pytest.mark.slow
def test_a_killed_driver_finds_its_tasks_again(
    slurm: Slurm,
    make_photographs: MakePhotographs,
    fake_options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = make_photographs({"train": 40})
    extract_features(dataset, name="undisturbed", options=fake_options, workers=2)
    monkeypatch.setenv("SLOW", "0.2")
    script = (
        "import json, sys; from camp.manifests.dataset import Dataset;"
        "from camp.pipeline.executor_slurm import SlurmExecutor;"
        "from camp.pipeline.extract_job import extract_features;"
        "from camp.pipeline.extract_options import ExtractOptions;"
        "options = ExtractOptions.from_json(json.loads(sys.argv[2]));"
        "extract_features(Dataset.open(sys.argv[1]), name='fake', options=options,"
        " executor=SlurmExecutor(minutes=30), workers=2)"
    )
    command = [sys.executable, "-c", script, str(dataset.root), json.dumps(fake_options.to_json())]
    driver = subprocess.Popen(command)
    folder = dataset.features_folder("fake")
    while not list(folder.glob("train-*.json")):
        assert driver.poll() is None
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    array = (folder / ".extraction" / "slurm_array").read_text()
    watch = Watch()
    summary = extract_features(
        dataset, name="fake", options=fake_options, executor=SlurmExecutor(minutes=30), view=watch
    )
    assert summary.complete
    first_note = next(event.text for event in watch.events if event.kind == "note")
    assert first_note.startswith(f"Slurm array {array},")
    assert folder_bytes(folder) == folder_bytes(dataset.features_folder("undisturbed"))


@pytest.mark.slurm
@pytest.mark.slow
def test_a_printed_script_runs_as_it_stands(
    slurm: Slurm, make_photographs: MakePhotographs, fake_options: ExtractOptions, tmp_path: Path
) -> None:
    dataset = make_photographs({"train": 12})
    extract_features(dataset, name="undisturbed", options=fake_options, workers=2)
    script = tmp_path / "extract.sh"
    script.write_text(
        write_script(
            dataset, executor=SlurmExecutor(minutes=10), name="fake", options=fake_options, workers=2
        )
    )
    first = slurm.ask("sbatch", "--parsable", str(script)).strip()
    folder = dataset.features_folder("fake")
    finish_step = f"{sys.executable} -m camp.pipeline.slurm_task {folder} --finish"
    assert slurm.ask(
        "sbatch", "--parsable", f"--dependency=afterany:{first}", "--output=/dev/null", "--wrap", finish_step
    )
    deadline = time.monotonic() + 120
    while not (folder / "index.json").exists():
        assert time.monotonic() < deadline, slurm.ask("squeue")
        time.sleep(0.2)
    assert json.loads((folder / "index.json").read_bytes())["splits"]["train"]["rows"] == 12
    assert folder_bytes(folder) == folder_bytes(dataset.features_folder("undisturbed"))


@pytest.mark.slurm
@pytest.mark.slow
def test_captions_are_encoded_as_in_one_process(slurm: Slurm, make_dataset: Callable[..., Dataset]) -> None:
    dataset = make_dataset({"train": 20, "val": 7})
    tokenizer = open_tokenizer("plain")
    vocabulary = build_vocabulary(dataset, tokenizer=tokenizer, min_count=1)
    vocabulary.save(dataset.vocab_file("default"))
    tokenize_dataset(dataset)
    expected = folder_bytes(dataset.tokens_folder("default"))
    shutil.rmtree(dataset.tokens_folder("default"))
    executor = SlurmExecutor(partition="main", minutes=30)
    tokenize_dataset(dataset, encode=encode_on(executor, dataset, workers=2, unit_size=30))
    assert folder_bytes(dataset.tokens_folder("default")) == expected
