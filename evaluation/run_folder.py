"""A training run on disk: what it was made from, its vocabulary, its checkpoints -> a model that scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import InputError, MismatchError, VerificationError
from ..files import canonical_json, fingerprint, write_atomic
from ..manifests.dataset import Dataset
from ..models.build import build_model
from ..models.matcher import Matcher
from ..pipeline.region_picture import only_features
from ..pipeline.shard_reader import ShardReader
from ..vocab.shelf import vocabulary_names
from ..vocab.vocabulary import Vocabulary
from .checkpoint import load_checkpoint, load_weights

RUN_VERSION = 1
RUN_FILE = "run.json"
VOCAB_FILE = "vocab.json"


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    folder: Path
    header: Mapping[str, Any]

    @property
    def max_words(self) -> int:
        return int(self.header["max_words"])

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder / VOCAB_FILE)

    def dataset(self, root: Path | None = None) -> Dataset:
        """The data set it was trained on, or another copy of it; a different one is refused."""
        if self.header["dataset"] is None:  # an imported checkpoint
            if root is None:
                raise InputError(f"{self.folder}: imported weights know no data set; name one with --dataset")
            return Dataset.open(root)
        dataset = Dataset.open(root or os.path.normpath(self.folder / self.header["dataset"]["root"]))
        expected = self.header["dataset"]["fingerprint"]
        if expected not in dataset.history:  # what was appended since does not matter
            raise MismatchError(
                f"{dataset.root}: fingerprint {dataset.fingerprint}, but {self.folder} was trained on "
                f"{expected} ({self.header['dataset']['name']}); pass the right one with --dataset"
            )
        return dataset

    def features(self, dataset: Dataset) -> ShardReader:
        """The feature set it reads; another dimension is refused."""
        name = self.header["features"]["name"] or only_features(dataset)
        reader = ShardReader.open(dataset.features_folder(name))
        if reader.spec.dim != self.header["features"]["dim"]:
            raise MismatchError(
                f"{dataset.features_folder(name)}: {reader.spec.dim}-d features, but {self.folder} was "
                f"trained on {self.header['features']['dim']}-d ones"
            )
        return reader

    def vocab_name(self, dataset: Dataset) -> str:
        """What the data set calls this run's vocabulary; it must have tokens made with the same words."""
        wanted = self.header["vocab"]["fingerprint"]
        for name in vocabulary_names(dataset):
            if Vocabulary.load(dataset.vocab_file(name)).fingerprint == wanted:
                return name
        raise MismatchError(
            f"{dataset.root}: has vocabularies {', '.join(vocabulary_names(dataset)) or 'none'}, none is "
            f"that of {self.folder}; bring it in with 'camp-data import-vocab'"
        )

    def identity(self, dataset: Dataset, features: ShardReader, *, split: str, checkpoint: str) -> str:
        """A fingerprint of all that a score of this split depends on, the version of the code included."""
        header = json.loads((self.folder / f"{checkpoint}.json").read_bytes())
        return fingerprint(
            {
                "code": __version__,
                "checkpoint": header["checksum"],
                "dataset": dataset.fingerprint,
                "features": features.index.fingerprint,
                "vocab": self.header["vocab"]["fingerprint"],
                "max_words": self.max_words,
                "split": split,
            }
        )

    def build_model(self) -> Matcher:
        """The architecture, with fresh weights; word vectors are zeros, for the checkpoint has them all."""
        vectors, words = self.header.get("vectors"), self.header["vocab"]["size"]
        return build_model(
            self.header["model"]["name"],
            vocab_size=words,
            vectors=torch.zeros(words, vectors["dim"]) if vectors else None,
            options=self.header["model"]["options"],
        )

    def load_model(self, *, checkpoint: str = "best", device: torch.device) -> Matcher:
        """The trained model, ready to score."""
        tensors, _ = load_checkpoint(self.folder, checkpoint)
        if checkpoint == "last":
            tensors = {
                name.removeprefix("model."): tensor
                for name, tensor in tensors.items()
                if name.startswith("model.")
            }
        model = self.build_model()
        load_weights(model, tensors, source=f"{self.folder}: checkpoint {checkpoint!r}")
        return model.to(device).eval()


def create_run(folder: Path, header: Mapping[str, Any], *, vocabulary: Vocabulary) -> Run:
    """A new run folder; one that exists is refused."""
    if (folder / RUN_FILE).exists():
        raise InputError(f"{folder}: a run is there already; go on with --resume or choose another --out")
    vocabulary.save(folder / VOCAB_FILE)
    write_atomic(folder / RUN_FILE, canonical_json({"schema_version": RUN_VERSION, **header}))
    return open_run(folder)


def open_run(folder: Path) -> Run:
    """A folder -> its run, or an error that says what is missing."""
    path = folder / RUN_FILE
    try:
        header = json.loads(path.read_bytes())
        version = header["schema_version"]
    except FileNotFoundError:
        raise InputError(
            f"{folder}: no {RUN_FILE} found, expected a run; make one with 'camp train'"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"{path}: not a run header ({error!r})") from None
    if version != RUN_VERSION:
        raise MismatchError(f"{path}: schema version {version}, expected {RUN_VERSION}")
    return Run(folder=folder, header=header)
