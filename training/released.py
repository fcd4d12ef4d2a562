"""A checkpoint that a paper's authors released -> a run that evaluates, searches and explains like our own.

Nothing pickled in the file runs: torch reads it with `weights_only`, and the options class that CAMP's files
carry (`opt`, an EasyDict) is read as a plain dictionary and not used.
"""

from __future__ import annotations

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
from ..models.camp_checkpoint import KeyReport, camp_from_checkpoint
from ..vocab.interchange import import_vocabulary
from ..vocab.tokenizer import open_tokenizer

KINDS = ("camp",)
OFFICIAL_WORDS = 47  # and <start> and <end>


@dataclass(frozen=True)
class ImportedRun:
    """What came out of a released checkpoint."""

    folder: Path
    report: KeyReport
    facts: Mapping[str, Any]  # epoch and best_rsum as the file gives them
    warnings: Sequence[str]


def import_checkpoint(
    path: Path, *, kind: str, vocab: Path, out: Path, tokenizer: str = "nltk"
) -> ImportedRun:
    """A released file and the vocabulary that came with it -> a run; its data set is named at use."""
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}, expected one of {', '.join(KINDS)}")
    content = read_released(path)
    parts = content.get("model")
    if not isinstance(parts, Sequence) or not all(isinstance(part, Mapping) for part in parts):
        found = ", ".join(sorted(map(str, content)))
        raise InputError(f"{path}: found {found}, expected 'model' with three state dicts; see --kind")
    words = import_vocabulary(
        vocab,
        format="pickle" if vocab.suffix in (".pkl", ".pickle") else "scan-json",
        tokenizer=open_tokenizer(tokenizer),
    )
    model, report = camp_from_checkpoint(_tensors(parts, path), vocab_size=len(words.vocabulary))
    weights = model.state_dict()
    dim, region_dim = weights["image.fc.weight"].shape
    word_dim = weights["text.embed.tables.0.weight"].shape[1]
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
        "model": {
            "name": "camp_official",
            "options": {"region_dim": region_dim, "word_dim": word_dim, "dim": dim},
        },
        "max_words": OFFICIAL_WORDS,
        "config": {"imported": {"kind": kind, "file": path.name, **facts}},
    }
    create_run(out, header, vocabulary=words.vocabulary)
    save_checkpoint(out, "best", tensors=weights, state={"imported": path.name, **facts}, step=0)
    return ImportedRun(folder=out, report=report, facts=facts, warnings=words.warnings)


def read_released(path: Path) -> dict[str, Any]:
    """A .pth file -> its dictionary; anything that would run code is refused by name."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    allowed = [(OrderedDict, "easydict.EasyDict")]
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
