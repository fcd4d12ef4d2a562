"""The vocabulary commands from the shell's side, and every command of docs/vocabulary.md."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nltk
import numpy as np
import pytest
from click.testing import CliRunner, Result

from camp.cli import camp_data
from camp.manifests.dataset import Dataset
from camp.vocab.interchange import export_vocabulary
from camp.vocab.vocabulary import Vocabulary

MakeDataset = Callable[..., Dataset]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "vocabulary.md"
pytestmark = pytest.mark.usefixtures("no_punkt")


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(camp_data, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def report(*arguments: object) -> dict[str, Any]:
    return dict(json.loads(run(*arguments, "--json").stdout))


def test_on_a_data_set(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    result = run("build-vocab", dataset.root, "--min-count", 2)
    assert (
        "default.json: 11 words of 47, from 320 tokens in 40 captions (12.50% too rare); new" in result.stdout
    )
    assert "tokens test: 15 captions, 12.50% of words unknown, longest 8, 0 over 50 words" in result.stdout
    assert result.stderr.count("NLTK's punkt_tab data is not found") == 1
    again = run("build-vocab", dataset.root, "--min-count", 2)
    assert "; unchanged" in again.stdout
    assert again.stdout.count("; up to date") == 3
    vocabulary = Vocabulary.load(dataset.vocab_file("default"))
    assert vocabulary.source == {
        "kind": "dataset",
        "name": "tiny",
        "fingerprint": dataset.fingerprint,
        "splits": ["train", "val"],
    }
    assert vocabulary.tokenizer.record()["punkt"] == "absent"


def test_test_captions_do_not_leak_unasked(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    without = report("build-vocab", dataset.root, "--min-count", 1)
    assert without["source"]["splits"] == ["train", "val"]
    result = run(
        "build-vocab", dataset.root, "--min-count", 1, "--splits", "train,val,test", "--name", "leaky"
    )
    assert "warning: words of the test captions are counted in" in result.stderr
    leaky = report(
        "build-vocab", dataset.root, "--min-count", 1, "--splits", "train,test", "--name", "leaky2"
    )
    assert leaky["statistics"]["captions"] == 45


@pytest.mark.parametrize(("counts", "expected"), [({"all": 2}, ["all"]), ({"val": 1, "test": 1}, ["val"])])
def test_default_splits_are_those_that_exist(
    make_dataset: MakeDataset, counts: dict[str, int], expected: list[str]
) -> None:
    dataset = make_dataset(counts)
    assert report("build-vocab", dataset.root, "--tokenizer", "plain")["source"]["splits"] == expected


def test_splits_that_cannot_be(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({"test": 2})
    result = run("build-vocab", dataset.root, code=1)
    assert (
        "no train or val split to count words in, only test; name the splits with --splits" in result.stderr
    )
    result = run("build-vocab", dataset.root, "--splits", "dev", code=1)
    assert "no split 'dev'; this data set has test" in result.stderr


def test_no_captions(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({"train": 2}, captions_per_image=0)
    result = run("build-vocab", dataset.root, code=1)
    assert "no captions in train; a vocabulary needs some" in result.stderr


def test_on_caption_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("A dog .\nA cat ")
    Path("b.txt").write_text("a dog\n")
    result = run("build-vocab", "a.txt", "b.txt", "--min-count", 2)
    assert result.stdout.startswith("vocab.json: 6 words of 4, from 7 tokens in 3 captions")
    vocabulary = Vocabulary.load(Path("vocab.json"))
    assert vocabulary.words[4:] == ("a", "dog")
    assert [file["name"] for file in vocabulary.source["files"]] == ["a.txt", "b.txt"]
    run("build-vocab", "a.txt", "--name", "mine")
    assert Path("mine.json").is_file()
    run("build-vocab", "a.txt", "--out", "deep/er/v.json")
    assert Path("deep/er/v.json").is_file()
    result = run("build-vocab", "a.txt", "--out", "b.txt", code=1)
    assert "b.txt: exists and is not a vocabulary" in result.stderr
    assert Path("b.txt").read_text() == "a dog\n"
    Path("empty.txt").touch()
    assert "empty.txt: empty, expected one caption per line" in run("build-vocab", "empty.txt", code=1).stderr


def test_vectors_and_exports(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    (tmp_path / "glove.txt").write_text("Dog 1 2\na 3 4\n")
    facts = report(
        "build-vocab", dataset.root, "--min-count", 9, "--vectors", tmp_path / "glove.txt",
        "--export", "scan-json", tmp_path / "scan.json", "--export", "pickle", tmp_path / "v.pkl",
    )  # fmt: skip
    matrix = np.load(dataset.root / "vocab" / "default.glove.npy")
    vocabulary = Vocabulary.load(dataset.vocab_file("default"))
    assert matrix[vocabulary.index["dog"]].tolist() == [1, 2]
    assert facts["vectors"]["coverage"]["types_found"] == 2
    assert facts["vectors"]["coverage"]["other_case"] == 1
    assert [export["format"] for export in facts["exports"]] == ["scan-json", "pickle"]
    result = run("build-vocab", dataset.root, "--min-count", 9, "--vectors", tmp_path / "glove.txt")
    assert "dimension 2, 2 of 7 words (28.57% of tokens), 1 in another case" in result.stdout
    assert "without a vector: ., grass, number, on, runs" in result.stdout
    for kind, file in (("scan-json", "scan.json"), ("pickle", "v.pkl")):
        imported = report(
            "import-vocab", dataset.root, tmp_path / file, "--format", kind,
            "--vectors", tmp_path / "glove.txt",
        )  # fmt: skip
        np.testing.assert_array_equal(np.load(imported["vectors"]["file"]), matrix)
        assert imported["fingerprint"] == facts["fingerprint"]
        assert imported["tokens"]["train"]["unknown_rate"] == facts["tokens"]["train"]["unknown_rate"]


def test_a_torchtext_vocabulary_brings_its_vectors(make_dataset: MakeDataset, tmp_path: Path) -> None:
    pytest.importorskip("torchtext", reason="needs the torchtext extra")
    dataset = make_dataset()
    (tmp_path / "glove.txt").write_text("dog 1 2\na 3 4\n")
    run(
        "build-vocab", dataset.root, "--vectors", tmp_path / "glove.txt",
        "--export", "torchtext", tmp_path / "v.pt",
    )  # fmt: skip
    run("import-vocab", dataset.root, tmp_path / "v.pt", "--format", "torchtext", "--name", "tt")
    ours = np.load(dataset.root / "vocab" / "default.glove.npy")
    np.testing.assert_array_equal(np.load(dataset.root / "vocab" / "tt.torchtext.npy"), ours)


def test_import_warns_and_refuses(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    (tmp_path / "v.json").write_text(
        '{"word2idx": {"<unk>": 0, "b\'a\'": 1}, "idx2word": {"0": "<unk>", "1": "b\'a\'"}}'
    )
    result = run("import-vocab", dataset.root, tmp_path / "v.json", "--format", "scan-json", "--name", "odd")
    assert "warning: " in result.stderr
    assert "1 words look like b'a'" in result.stderr
    (tmp_path / "v.pkl").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    result = run("import-vocab", dataset.root, tmp_path / "v.pkl", "--format", "pickle", code=1)
    assert "the pickle contains posix.system, expected" in result.stderr


def test_tokenize_chooses_the_vocabulary(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    assert "no vocabulary yet" in run("tokenize", dataset.root, code=1).stderr
    run("build-vocab", dataset.root, "--name", "one")
    assert report("tokenize", dataset.root)["vocab"] == "one"
    run("build-vocab", dataset.root, "--name", "two")
    result = run("tokenize", dataset.root, code=1)
    assert "several vocabularies (one, two); choose one with --vocab" in result.stderr
    run("build-vocab", dataset.root)
    assert report("tokenize", dataset.root)["vocab"] == "default"
    result = run("tokenize", dataset.root, "--vocab", "two", "--max-words", 3)
    assert "tokens train: 30 captions" in result.stdout
    assert "30 cut to 3 words" in result.stdout
    result = run("tokenize", dataset.root, "--vocab", "three", code=1)
    assert "no vocabulary 'three', there are default, one, two" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a data set or caption files"),
        (("{dataset}", "--out", "x"), "--out is for caption files"),
        (("{file}", "--splits", "train"), "--splits is for a data set"),
        (("{file}", "--max-words", "3"), "--max-words is for a data set"),
        (("{dataset}", "{file}"), "is a folder: give one data set"),
    ],
)
def test_usage(make_dataset: MakeDataset, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "caps.txt").write_text("a dog\n")
    places = {"dataset": make_dataset().root, "file": tmp_path / "caps.txt"}
    result = run("build-vocab", *(argument.format(**places) for argument in arguments), code=2)
    assert message in result.stderr


def test_mistakes_are_found_before_counting(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset()
    for arguments, message in (
        (("--vectors", tmp_path / "no.txt"), "no.txt: no such file of word vectors"),
        (("--name", "a/b"), "vocabulary name 'a/b': expected letters, digits, '-' and '_' alone"),
    ):
        result = run("build-vocab", dataset.root, *arguments, code=1)
        assert message in result.stderr
        assert "counting" not in result.stderr
    assert "no dataset.json found" in run("build-vocab", tmp_path, code=1).stderr


def commands_of_the_page() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page(
    make_dataset: MakeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchtext", reason="needs the torchtext extra")
    monkeypatch.chdir(tmp_path)
    make_dataset(root=tmp_path / "flickr30k")
    for name in ("train_caps.txt", "dev_caps.txt"):
        Path(name).write_text("a dog runs on grass .\n" * 5)
    Path("glove.6B.300d.txt").write_text("dog " + " ".join(["0.5"] * 300) + "\n")
    monkeypatch.setattr("camp.vocab.tokenizer.download_punkt", lambda: None)
    ran = 0
    for line in commands_of_the_page():
        program, *arguments = shlex.split(line)
        assert program == "camp-data"
        if arguments[0] == "import-vocab" and not Path("vocab.pt").exists():
            vocabulary = Vocabulary.load(Path("vocab.json"))
            export_vocabulary(vocabulary, Path("f30k_precomp_vocab.json"), format="scan-json")
            export_vocabulary(vocabulary, Path("f30k_precomp_vocab.pkl"), format="pickle")
            export_vocabulary(vocabulary, Path("vocab.pt"), format="torchtext")
        run(*arguments)
        ran += 1
    assert ran == 8
    assert Path("flickr30k/vocab/default.glove.6B.300d.npy").is_file()
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})


def test_the_page_s_download_reaches_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nltk, "download", lambda name, quiet: False)
    assert "punkt_tab could not be downloaded" in run("build-vocab", "--download", code=1).stderr
