"""A checkpoint that a paper's authors released -> a run that evaluates, searches and explains like our own.

Nothing pickled in the file runs: torch reads it with `weights_only`. The options that the files carry (`opt`:
an EasyDict in CAMP's, an argparse.Namespace in SCAN's and BFAN's) are read as plain values: SCAN's attention
has no tensors, so they alone say which model it is.
"""

from __future__ import annotations

import argparse
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..evaluation.checkpoint import save_checkpoint
from ..evaluation.run_folder import create_run
from ..models.build import model_options
from ..models.camp_checkpoint import KeyReport, camp_from_checkpoint
from ..models.matcher import Matcher
from ..models.scan_checkpoint import bfan_from_checkpoint, scan_from_checkpoint
from ..vocab.interchange import import_vocabulary
from ..vocab.tokenizer import open_tokenizer

KINDS = ("camp", "scan")
MAX_WORDS = {"camp": 47, "scan": 10_000}  # and <start> and <end>; SCAN reads captions whole


SIZES = ("region_dim", "word_dim", "dim")  # the tensors say them


@dataclass(frozen=True)
class ImportedRun:
    """What came out of a released checkpoint."""

    folder: Path
    report: KeyReport
    model: str
    options: Mapping[str, Any]  # of the model
    facts: Mapping[str, Any]  # epoch and best_rsum as the file gives them
    warnings: Sequence[str]


def import_checkpoint(
    path: Path,
    *,
    kind: str,
    vocab: Path,
    out: Path,
    tokenizer: str = "nltk",
    options: Mapping[str, Any] | None = None,
) -> ImportedRun:
    """A released file and the vocabulary that came with it -> a run; its data set is named at use.

    kind "scan" is for SCAN and for BFAN, whose files look alike; `options` of the model go before the file's.
    """
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}, expected one of {', '.join(KINDS)}")
    content = read_released(path)
    parts = content.get("model")
    if not isinstance(parts, Sequence) or not all(isinstance(part, Mapping) for part in parts):
        found = ", ".join(sorted(map(str, content)))
        count = {"camp": "three", "scan": "two"}[kind]
        raise InputError(f"{path}: found {found}, expected 'model' with {count} state dicts; see --kind")
    words = import_vocabulary(
        vocab,
        format="pickle" if vocab.suffix in (".pkl", ".pickle") else "scan-json",
        tokenizer=open_tokenizer(tokenizer),
    )
    name, own = ("camp_official", {}) if kind == "camp" else scan_options(content.get("opt"), path=path)
    own |= dict(options or {})
    model, report = _build(name, _tensors(parts, path), vocab_size=len(words.vocabulary), options=own)
    weights = model.state_dict()
    dim, region_dim = weights["image.fc.weight"].shape
    word_dim = weights["text.embed.tables.0.weight"].shape[1]
    own |= {"region_dim": region_dim, "word_dim": word_dim, "dim": dim}
    facts = {
        key: content[key] for key in ("epoch", "best_rsum") if isinstance(content.get(key), (int, float))
    }
    header = {
        "dataset": None,
        "features": {"name": None, "dim": region_dim, "regions": None},
        "vocab": {
            "name": None,
            "fingerprint": words.vocabulary.fingerprint,
            "size": len(words.vocabulary),
        },
        "model": {"name": name, "options": own},
        "max_words": MAX_WORDS[kind],
        "config": {"imported": {"kind": kind, "file": path.name, **facts}},
    }
    create_run(out, header, vocabulary=words.vocabulary)
    save_checkpoint(out, "best", tensors=weights, state={"imported": path.name, **facts}, step=0)
    return ImportedRun(
        folder=out, report=report, model=name, options=own, facts=facts, warnings=words.warnings
    )


def _build(
    name: str, parts: list[dict[str, Tensor]], *, vocab_size: int, options: Mapping[str, Any]
) -> tuple[Matcher, KeyReport]:
    known = model_options(name)
    if unknown := [key for key in options if key not in known or key in SIZES]:
        allowed = [key for key in known if key not in SIZES]
        raise InputError(
            f"{name} has no option {', '.join(unknown)}, expected {', '.join(allowed) or 'none'}"
        )
    if name == "scan":
        return scan_from_checkpoint(parts, vocab_size=vocab_size, options=options)
    if name == "bfan":
        return bfan_from_checkpoint(parts, vocab_size=vocab_size, options=options)
    return camp_from_checkpoint(parts, vocab_size=vocab_size)


def scan_options(opt: Any, *, path: Path) -> tuple[str, dict[str, Any]]:
    """The `opt` of a SCAN or BFAN file -> the model's name and options; what we cannot do is refused."""
    if opt is None:
        return "scan", {}
    said = dict(vars(opt) if isinstance(opt, argparse.Namespace) else opt)
    wrong = [
        f"{key} is {said[key]!r}, expected {' or '.join(map(repr, expected))}"
        for key, expected in _SCAN_EXPECTED.items()
        if key in said and said[key] not in expected
    ]
    if wrong:
        raise InputError(f"{path}: trained in a way that is not supported: {'; '.join(wrong)}")
    if "focal_type" in said:
        options = {"focus": said["focal_type"]}
    else:
        options = {"direction": said.get("cross_attn", "t2i")}
        options["pooling"] = "lse" if said.get("agg_func", "Mean") == "LogSumExp" else "avg"
        if "lambda_lse" in said:
            options["lse"] = float(said["lambda_lse"])
    if "lambda_softmax" in said:
        options["smoothing"] = float(said["lambda_softmax"])
    return "bfan" if "focal_type" in said else "scan", options


# What the published code could be told, and what of it SCAN's and BFAN's papers use.
_SCAN_EXPECTED: dict[str, tuple[Any, ...]] = {
    "cross_attn": ("t2i", "i2t"),
    "agg_func": ("Mean", "LogSumExp"),
    "raw_feature_norm": ("clipped_l2norm",),
    "precomp_enc_type": ("basic",),
    "focal_type": ("equal", "prob"),
    "num_layers": (1,),
    "bi_gru": (True,),
    "no_imgnorm": (False,),
    "no_txtnorm": (False,),
}


def read_released(path: Path) -> dict[str, Any]:
    """A .pth file -> its dictionary; anything that would run code is refused by name."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    allowed = [(OrderedDict, "easydict.EasyDict"), argparse.Namespace]
    try:
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():  # type: ignore[arg-type]
            warnings.simplefilter("ignore")  # of old pickle protocols and storages
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = (
            str(error).split("GLOBAL ")[-1].split(" was not")[0] if "GLOBAL " in str(error) else "unreadable"
        )
        raise InputError(
            f"{path}: refused, it holds {reason}, expected tensors and plain values alone"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: found {type(content).__name__}, expected a dictionary with 'model'")
    return content


def _tensors(parts: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Tensor]]:
    for part in parts:
        for name, value in part.items():
            if not isinstance(value, Tensor):
                raise InputError(f"{path}: {name} is a {type(value).__name__}, expected a tensor")
    return [dict(part) for part in parts]
