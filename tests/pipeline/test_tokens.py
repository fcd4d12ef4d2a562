"""Token files: the ids of every caption, mapped and not copied, refused where they do not belong."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from camp.errors import InputError, MismatchError, VerificationError
from camp.manifests.dataset import Dataset
from camp.pipeline.tokens import (
    TokenReader,
    check_compatible,
    open_tokens,
    tokenize_dataset,
    tokens_file,
)
from camp.pipeline.vocab_report import describe_vocabularies
from camp.vocab.building import build_vocabulary
from camp.vocab.tokenizer import Tokenizer, open_tokenizer
from camp.vocab.vocabulary import Vocabulary

MakeDataset = Callable[..., Dataset]


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return with_vocabulary(make_dataset())


def with_vocabulary(dataset: Dataset, *, name: str = "default", min_count: int = 2) -> Dataset:
    vocabulary = build_vocabulary(dataset, tokenizer=open_tokenizer("plain"), min_count=min_count)
    vocabulary.save(dataset.vocab_file(name))
    return dataset


def test_ids_are_those_of_the_vocabulary(dataset: Dataset) -> None:
    written = tokenize_dataset(dataset)
    vocabulary = Vocabulary.load(dataset.vocab_file("default"))
    assert list(written) == ["train", "val", "test"]
    for split in dataset.splits:
        reader = open_tokens(dataset, split)
        captions = dataset.select_captions([split])
        assert len(reader) == captions.num_rows
        assert reader.caption_ids.tolist() == captions["caption_id"].to_pylist()
        assert reader.image_ids.tolist() == captions["image_id"].to_pylist()
        for row, text in enumerate(captions["text"].to_pylist()):
            assert reader[row].tolist() == vocabulary.encode_text(text)
        assert reader.lengths.tolist() == [len(reader[row]) for row in range(len(reader))]
        reader.verify()


def test_counts(dataset: Dataset) -> None:
    facts, is_new = tokenize_dataset(dataset)["test"]
    assert is_new
    assert (facts.captions, facts.words, facts.longest, facts.truncated, facts.empty) == (15, 105, 7, 0, 0)
    assert facts.unknown == 15  # each caption's own number was seen once at most
    assert facts.unknown_rate == pytest.approx(1 / 7)


def test_views_are_not_copies(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    before = pa.total_allocated_bytes()
    reader = open_tokens(dataset, "train")
    assert not reader.values.flags.owndata
    assert not reader.values.flags.writeable
    assert reader.offsets.dtype == np.int64
    assert reader.values.dtype == np.int32
    assert reader[-1].base is not None
    assert pa.total_allocated_bytes() - before < 1 << 16


def test_rows_of_captions(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    reader = open_tokens(dataset, "val")
    wanted = reader.caption_ids[[3, 0, 3]]
    assert reader.rows(wanted).tolist() == [3, 0, 3]
    assert reader.rows([]).tolist() == []
    with pytest.raises(InputError, match=r"val.arrow: no caption 0 in split val"):
        reader.rows([int(reader.caption_ids[0]), 0])
    with pytest.raises(IndexError):
        reader[len(reader)]


def test_a_second_run_writes_nothing(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    stamps = [tokens_file(dataset, "default", split).stat().st_mtime_ns for split in dataset.splits]
    again = tokenize_dataset(dataset)
    assert not any(is_new for _, is_new in again.values())
    assert stamps == [tokens_file(dataset, "default", split).stat().st_mtime_ns for split in dataset.splits]
    cut = tokenize_dataset(dataset, max_words=3)
    assert all(is_new for _, is_new in cut.values())
    assert cut["train"][0].truncated == 30
    vocabulary = Vocabulary.load(dataset.vocab_file("default"))
    assert vocabulary.decode(open_tokens(dataset, "train")[0].tolist()) == ["a", "dog", "number"]
    assert open_tokens(dataset, "train").lengths.tolist() == [5] * 30  # start and end stay


def test_files_are_the_same_with_two_processes(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    alone = [tokens_file(dataset, "default", split).read_bytes() for split in dataset.splits]
    for split in dataset.splits:
        tokens_file(dataset, "default", split).unlink()
    tokenize_dataset(dataset, workers=2)
    assert alone == [tokens_file(dataset, "default", split).read_bytes() for split in dataset.splits]


def test_appending_makes_tokens_stale(dataset: Dataset, make_dataset: MakeDataset) -> None:
    tokenize_dataset(dataset)
    grown = make_dataset({"train": 1}, root=dataset.root, previous=dataset)
    with pytest.raises(
        MismatchError, match=f"made for data set {dataset.fingerprint}, this one is {grown.fingerprint}"
    ):
        open_tokens(grown, "train")
    assert tokenize_dataset(grown)["train"][0].captions == 35
    assert len(open_tokens(grown, "train")) == 35


def test_another_vocabulary_under_the_same_name(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    with_vocabulary(dataset, min_count=1)
    with pytest.raises(
        MismatchError, match=r"made with vocabulary .*; run 'camp-data tokenize --vocab default'"
    ):
        open_tokens(dataset, "train")
    tokenize_dataset(dataset)
    open_tokens(dataset, "train")


def test_another_tokenizer_is_refused_at_training_time(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    own = Vocabulary.load(dataset.vocab_file("default"))
    reader = open_tokens(dataset, "train", vocabulary=own)
    check_compatible(own, reader.metadata)
    of_a_run = dataclasses.replace(own, tokenizer=Tokenizer("nltk", punkt=True, version="3.9.1"))
    message = r"tokenized by plain, the vocabulary needs nltk \(punkt_tab present\)"
    with pytest.raises(MismatchError, match=message):
        open_tokens(dataset, "train", vocabulary=of_a_run)
    without_data = dataclasses.replace(own, tokenizer=Tokenizer("nltk", version="3.9.1"))
    by_nltk = dataclasses.replace(reader.metadata, tokenizer=of_a_run.tokenizer.record())
    message = r"x: captions were tokenized by nltk \(punkt_tab present\), .* nltk \(punkt_tab absent\)"
    with pytest.raises(MismatchError, match=message):
        check_compatible(without_data, by_nltk, where="x")
    newer = dataclasses.replace(of_a_run, tokenizer=Tokenizer("nltk", punkt=True, version="9.9"))
    same_words = dataclasses.replace(by_nltk, vocab_fingerprint=newer.fingerprint)
    check_compatible(newer, same_words)  # NLTK's version is recorded, not demanded


def test_no_tokens_and_no_vocabulary(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    with pytest.raises(InputError, match="no vocabulary yet; make one with 'camp-data build-vocab"):
        open_tokens(dataset, "train")
    with_vocabulary(dataset)
    with pytest.raises(InputError, match=r"train.arrow: no tokens yet; run 'camp-data tokenize'"):
        open_tokens(dataset, "train")
    with pytest.raises(InputError, match="no split 'dev'; this data set has train, val, test"):
        open_tokens(dataset, "dev")


def test_damaged_files(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    path = tokens_file(dataset, "default", "train")
    content = path.read_bytes()
    path.write_bytes(content[:-50])
    with pytest.raises(VerificationError, match=r"train.arrow: damaged .*; delete it"):
        TokenReader(path)
    assert tokenize_dataset(dataset)["train"][1]  # written anew
    assert path.read_bytes() == content
    ids = TokenReader(path)[0].tobytes()
    path.write_bytes(content.replace(ids, ids[::-1], 1))
    with pytest.raises(VerificationError, match=r"train.arrow: checksum xxh3:.*, expected xxh3:"):
        TokenReader(path).verify()
    table = pa.table({"a": [1]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(VerificationError, match=r"train.arrow: not a token file"):
        TokenReader(path)


def test_a_split_without_captions(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({"train": 2, "test": 1}, captions_per_image=2)
    dataset.images  # noqa: B018 - read before the captions of test are taken away
    with_vocabulary(dataset, min_count=1)
    empty = dataclasses.replace(dataset)
    object.__setattr__(empty, "captions", dataset.captions.slice(0, 4))
    assert tokenize_dataset(empty)["test"][0].captions == 0
    reader = open_tokens(empty, "test")
    assert len(reader) == 0
    assert reader.rows([]).tolist() == []
    with pytest.raises(InputError, match="no caption 7"):
        reader.rows([7])


KILLED_WRITER = """
import os, sys
from pathlib import Path
from camp.manifests.dataset import Dataset
from camp.pipeline import tokens

def die(*_, **__):
    os.kill(os.getpid(), 9)

write = tokens._write_split
def write_one_then_die(path, *arguments, **options):
    result = write(path, *arguments, **options)
    tokens.pa.ipc.new_file = die
    return result
tokens._write_split = write_one_then_die
tokens.tokenize_dataset(Dataset.open(sys.argv[1]))
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")
def test_killed_between_two_splits(dataset: Dataset) -> None:
    result = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(dataset.root)], cwd="/")
    assert result.returncode == -9
    folder = dataset.tokens_folder("default")
    assert [path.name for path in folder.glob("*.arrow")] == ["train.arrow"]
    resumed = tokenize_dataset(dataset)
    assert {split: is_new for split, (_, is_new) in resumed.items()} == {
        "train": False,
        "val": True,
        "test": True,
    }
    for split in dataset.splits:
        open_tokens(dataset, split).verify()


def test_describe_vocabularies(dataset: Dataset) -> None:
    tokenize_dataset(dataset)
    with_vocabulary(dataset, name="fresh")
    Path(dataset.vocab_file("broken")).write_text("{}")
    broken, default, fresh = describe_vocabularies(dataset)
    assert (broken["name"], default["name"], fresh["name"]) == ("broken", "default", "fresh")
    assert "no schema_version found" in broken["error"]
    assert default["splits"]["test"]["unknown_rate"] == pytest.approx(1 / 7)
    assert default["vectors"] == []
    assert "no tokens yet" in fresh["splits"]["train"]["error"]
