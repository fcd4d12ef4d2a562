"""A model's name and options -> the model; the rows of CAMP's Table 3 as such names and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ..errors import InputError
from .adapt import Adapt
from .base import Base
from .bfan import Bfan
from .camp_official import CampOfficial
from .camp_paper import CampPaper
from .dscmr import Dscmr
from .labelwise import Labelwise
from .matcher import Matcher
from .scan import Scan
from .vsepp import Vsepp
from .vsrn import Vsrn

MODELS: dict[str, Callable[..., Matcher]] = {
    "camp": CampPaper,
    "camp_official": CampOfficial,
    "base": Base,
    "vsepp": Vsepp,
    "scan": Scan,
    "vsrn": Vsrn,
    "bfan": Bfan,
    "adapt": Adapt,
    "labelwise": Labelwise,
    "dscmr": Dscmr,
}


def build_model(
    name: str, *, vocab_size: int, vectors: Tensor | None = None, options: Mapping[str, Any] | None = None
) -> Matcher:
    """The model called `name`, for a vocabulary and its word vectors; `options` are its further arguments."""
    options = options or {}
    if name not in MODELS:
        raise InputError(f"model {name!r}{_close(name, MODELS)}; expected one of {', '.join(MODELS)}")
    known = model_options(name)
    if unknown := [key for key in options if key not in known]:
        found = ", ".join(f"{key}{_close(key, known)}" for key in unknown)
        raise InputError(f"model {name!r} has no option {found}; its options are {', '.join(known)}")
    return MODELS[name](vocab_size=vocab_size, vectors=vectors, **options)


def model_options(name: str) -> dict[str, Any]:
    """The options of a model and their defaults."""
    parameters = inspect.signature(MODELS[name]).parameters
    return {key: value.default for key, value in parameters.items() if key not in ("vocab_size", "vectors")}


def _close(word: str, words: Mapping[str, Any]) -> str:
    close = get_close_matches(word, words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@dataclass(frozen=True, slots=True)
class Ablation:
    """One row of Table 3: a model, its options, and the loss that trains it."""

    model: str = "camp"
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "bce_hardest"
    loss_options: Mapping[str, Any] = field(default_factory=dict)


TABLE_3: dict[str, Ablation] = {
    "CAMP": Ablation(),
    "Base model": Ablation(model="base", loss="ranking_hardest"),
    "w/o cross-attn": Ablation(options={"messages": "mean"}),
    "w/o fusion": Ablation(options={"fusion": "none", "matching": "cosine"}, loss="ranking_hardest"),
    "Fusion w/o gates": Ablation(options={"gates": False}),
    "Fusion w/o residual": Ablation(options={"residual": False}),
    "w/o attn-based agg": Ablation(options={"aggregation": "mean"}),
    "Concat fusion": Ablation(options={"fusion": "concat"}),
    "Product fusion": Ablation(options={"fusion": "product"}),
    "Joint embedding": Ablation(options={"matching": "cosine"}, loss="ranking_hardest"),
    # The score of Eq. 13 is a probability, so the margin lies between probabilities.
    "MLP+Ranking loss": Ablation(loss="ranking_hardest", loss_options={"of_probabilities": True}),
    "BCE w/o hardest": Ablation(loss="bce_all"),
}
