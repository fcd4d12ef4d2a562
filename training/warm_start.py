"""A run and a fresh model -> the model with those of the run's weights that it has too.

CAMP's fusion says little as long as regions and words do not lie in one space: the authors train the encoders
first, then everything. Here that is two runs: the base model, and CAMP started from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import MismatchError
from ..evaluation.run_folder import open_run
from ..models.matcher import Matcher
from ..vocab.vocabulary import Vocabulary


def start_from(
    run: Path, model: Matcher, *, vocabulary: Vocabulary, say: Callable[[str], None] = lambda text: None
) -> None:
    """Copy the best weights of `run` that `model` has by the same name and shape; all others stay fresh."""
    source = open_run(run)
    expected = source.header["vocab"]["fingerprint"]
    if expected != vocabulary.fingerprint:
        raise MismatchError(
            f"{run}: trained with vocabulary {expected}, this one is {vocabulary.fingerprint}: its rows of "
            "word vectors mean other words; choose the same with --vocab"
        )
    weights = source.load_model(device=torch.device("cpu")).state_dict()
    own = model.state_dict()
    taken = {
        name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape
    }
    if not taken:
        raise MismatchError(
            f"{run}: none of the weights of its {source.header['model']['name']} has the name and shape of "
            "one of this model; do both have the same dim?"
        )
    model.load_state_dict({**own, **taken})
    fresh = sorted({name.partition(".")[0] for name in own if name not in taken})
    say(f"{len(taken)} of {len(own)} weights from {run}; fresh: {', '.join(fresh) or 'none'}")
