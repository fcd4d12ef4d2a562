"""A data set and a config -> a trained run: opens the parts, checks that they fit, trains."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError, MismatchError
from ..evaluation.gates import gate_means
from ..evaluation.label_metrics import label_metrics
from ..evaluation.recall import evaluate
from ..evaluation.run_folder import Run, create_run, open_run
from ..evaluation.split_labels import split_labels
from ..evaluation.split_scores import SplitRows, open_split, score_split
from ..files import write_atomic
from ..manifests.dataset import Dataset
from ..models.build import build_model, model_options
from ..models.matcher import Matcher
from ..pipeline.loader import FeatureLoader
from ..pipeline.negatives_file import check_origin, read_negatives
from ..pipeline.negatives_join import OfflineNegatives
from ..pipeline.region_picture import only_features
from ..pipeline.shard_reader import ShardReader
from ..progress import ProgressFactory, no_progress
from ..vocab.shelf import open_vocabulary
from ..vocab.vectors import open_vectors, vectors_file
from ..vocab.vocabulary import Vocabulary
from .config import TrainConfig
from .config_file import config_to_toml
from .ranks import Ranks, join_ranks
from .trainer import Trainer, TrainOutcome
from .warm_start import start_from

CONFIG_FILE = "config.toml"


def train_dataset(
    dataset: Dataset,
    config: TrainConfig,
    *,
    out: Path,
    features: str | None = None,
    vocab: str | None = None,
    init: Path | None = None,
    device: torch.device | None = None,
    resume: bool = False,
    progress: ProgressFactory = no_progress,
    say: Callable[[str], None] = lambda text: None,
) -> TrainOutcome:
    """Train on a data set's shards and tokens, from the weights of the run `init` where it is given.

    `resume` goes on with the run in `out`, where there is one.
    """
    device = device or default_device()
    ranks = join_ranks(device)
    try:
        return _train(
            dataset,
            config,
            out=out,
            features=features,
            vocab=vocab,
            init=init,
            device=device,
            resume=resume,
            ranks=ranks,
            progress=progress if ranks.first else no_progress,
            say=say if ranks.first else lambda text: None,
        )
    finally:
        ranks.close()


def _train(
    dataset: Dataset,
    config: TrainConfig,
    *,
    out: Path,
    features: str | None,
    vocab: str | None,
    init: Path | None,
    device: torch.device,
    resume: bool,
    ranks: Ranks,
    progress: ProgressFactory,
    say: Callable[[str], None],
) -> TrainOutcome:
    feature_name = features or only_features(dataset)
    reader = ShardReader.open(dataset.features_folder(feature_name))
    vocab_name, vocabulary = open_vocabulary(dataset, vocab)
    options = {**config.model.options, "region_dim": reader.spec.dim}
    _check_dim(config, reader, feature_name)
    vectors = _vectors(dataset, vocab_name, vocabulary, config.data.vectors)
    if vectors is not None:
        options["word_dim"] = vectors.shape[1]
    options |= _label_options(config, dataset=dataset, reader=reader)
    negatives, mined = _negatives(config, dataset=dataset, reader=reader, vocabulary=vocabulary)
    header = {
        "dataset": {
            "root": os.path.relpath(dataset.root.resolve(), out.resolve()),
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
        },
        "features": {"name": feature_name, "dim": reader.spec.dim, "regions": reader.spec.regions},
        "vocab": {"name": vocab_name, "fingerprint": vocabulary.fingerprint, "size": len(vocabulary)},
        "vectors": None if vectors is None else {"name": config.data.vectors, "dim": vectors.shape[1]},
        "model": {"name": config.model.name, "options": options},
        "max_words": config.data.max_words,
        "init": init and os.path.relpath(init.resolve(), out.resolve()),
        "negatives": mined,
        "config": asdict(config),
    }
    torch.manual_seed(config.run.seed)
    model = build_model(config.model.name, vocab_size=len(vocabulary), vectors=vectors, options=options)
    if init is not None:
        start_from(init, model, vocabulary=vocabulary, say=say)
    model = model.to(device)
    if config.run.compile:
        model.compile_scores()
    loader = FeatureLoader(
        dataset,
        split="train",
        features=feature_name,
        vocab=vocab_name,
        batch_size=config.data.batch_size,
        device=device,
        shuffle=config.data.shuffle,
        seed=config.run.seed,
        epoch_unit=config.data.epoch_unit,
        rank=ranks.rank,
        world_size=ranks.world_size,
        drop_last=True,
        max_words=config.data.max_words,
        negatives=negatives,
        region_classes=reader.small_column("classes") if options.get("region_classes") else None,
        prefetch=config.data.prefetch,
        say=say,
    )
    if not len(loader):
        raise InputError(
            f"{dataset.root}: split 'train' makes no batch of {config.data.batch_size}; lower data.batch_size"
        )
    validation = open_split(
        dataset,
        split=config.validation.split,
        features=reader,
        vocab=vocab_name,
        max_words=config.data.max_words,
        limit=config.validation.images,
    )
    if ranks.first:
        _prepare_folder(out, header, config, vocabulary=vocabulary, resume=resume)
    labels = split_labels(dataset, validation.image_ids) if config.validation.best_by == "map" else None
    _announce(say, device=device, loader=loader, validation=validation, config=config, model=model)
    trainer = Trainer(
        config,
        model=model,
        loader=loader,
        folder=out,
        validate=_validation(validation, device, labels=labels),
        ranks=ranks,
        progress=progress,
        say=say,
    )
    try:
        return trainer.train(resume=resume)
    finally:
        loader.close()


def _check_dim(config: TrainConfig, reader: ShardReader, name: str) -> None:
    wanted = config.model.options.get("region_dim")
    if wanted is not None and wanted != reader.spec.dim:
        raise MismatchError(
            f"features {name!r} are {reader.spec.dim}-d, but model.options.region_dim is {wanted}; "
            "leave that out: it is taken from the features"
        )


def _prepare_folder(
    out: Path, header: dict[str, Any], config: TrainConfig, *, vocabulary: Vocabulary, resume: bool
) -> None:
    if resume and (out / "run.json").exists():
        _check_same(open_run(out), header)
        return
    create_run(out, header, vocabulary=vocabulary)
    write_atomic(out / CONFIG_FILE, config_to_toml(config).encode())


def _check_same(run: Run, header: dict[str, Any]) -> None:
    """A resumed run must be the same run; only its length may change."""
    for part in ("dataset", "features", "vocab", "model", "max_words", "init", "negatives"):
        found, expected = header[part], run.header[part]
        if part == "dataset":
            found, expected = found["fingerprint"], expected["fingerprint"]
        if found != expected:
            raise MismatchError(
                f"{run.folder}: its {part} is {expected}, but now it would be {found}; "
                "resume with what it was started with, or choose another --out"
            )


def _vectors(dataset: Dataset, vocab_name: str, vocabulary: Vocabulary, name: str) -> Tensor | None:
    if not name:
        return None
    path = vectors_file(dataset.vocab_file(vocab_name), name)
    if not path.is_file():
        raise InputError(
            f"{path}: not found, but data.vectors is {name!r}; make it with 'camp-data build-vocab "
            "--vectors', or train without: --set data.vectors= --set model.options.embedding=trained"
        )
    return torch.from_numpy(np.array(open_vectors(path, vocabulary=vocabulary).matrix))


def _label_options(config: TrainConfig, *, dataset: Dataset, reader: ShardReader) -> dict[str, int]:
    """How many labels and region classes there are, for a model that learns from them."""
    known = model_options(config.model.name)
    if "labels" not in known:
        return {}
    if not dataset.label_names:
        raise InputError(
            f"{dataset.root}: has no labels, which {config.model.name} learns from; import it with "
            "--instances FILE, or from a table with a column of labels"
        )
    options = {"labels": len(dataset.label_names)}
    if "region_classes" in known and "classes" in reader.spec.columns:
        options["region_classes"] = int(reader.small_column("classes").max(initial=-1)) + 1
    return options


def _negatives(
    config: TrainConfig, *, dataset: Dataset, reader: ShardReader, vocabulary: Vocabulary
) -> tuple[OfflineNegatives | None, dict[str, Any] | None]:
    """The mined lists that a config names, and where they are from; those of other data are refused."""
    if not config.negatives.file:
        return None, None
    if config.loss.across_ranks:
        raise InputError(
            "loss.across_ranks with negatives.file: mined negatives are not shared among ranks; "
            "leave one of the two out"
        )
    path = Path(config.negatives.file)
    origin = check_origin(
        path,
        dataset=dataset,
        split="train",
        features=reader.index.fingerprint,
        vocab=vocabulary.fingerprint,
        other_inputs=config.negatives.other_inputs,
    )
    lists = replace(
        read_negatives(path), draw=config.negatives.draw, partners=config.negatives.terms != "triplet"
    )
    return lists, origin


def _validation(
    rows: SplitRows, device: torch.device, *, labels: npt.NDArray[np.uint8] | None
) -> Callable[[Matcher], dict[str, Any]]:
    def validate(model: Matcher) -> dict[str, Any]:
        scores = score_split(model, rows, device=device)
        metrics = evaluate(scores, rows.caption_image, bootstrap=0)
        if labels is not None:
            metrics["labels"] = label_metrics(scores, rows.caption_image, labels)
        return {**metrics, "images": len(rows.image_ids), "gates": gate_means(model, rows, device=device)}

    return validate


def default_device() -> torch.device:
    """This process's GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def _announce(
    say: Callable[[str], None],
    *,
    device: torch.device,
    loader: FeatureLoader,
    validation: SplitRows,
    config: TrainConfig,
    model: Matcher,
) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(f"{config.model.name}: {parameters:,} parameters on {device}")
    if config.run.precision != "float32" and device.type != "cuda":
        say(f"note: {config.run.precision} is for CUDA alone; this run computes in float32")
    batches = f"{len(loader):,} batches of {config.data.batch_size}"
    say(f"{batches} an epoch; validation on {len(validation.image_ids):,} images")
    if validation.missing:
        say(f"note: {validation.missing:,} validation images have no features and are left out")
    if validation.cut_captions:
        say(
            f"note: {validation.cut_captions:,} validation captions are longer than "
            f"{config.data.max_words} words and are cut"
        )
