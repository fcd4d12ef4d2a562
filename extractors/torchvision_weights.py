"""A torchvision model's name and --weights -> the model with its weights, and what identifies them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck

from ..errors import InputError
from .state_dict import load_state, read_state
from .weights_file import fetch, local_weights, sha256_file


def torchvision_model(
    name: str,
    *,
    family: str,
    known: Sequence[str],
    weights: str | None,
    sha256: str | None,
    build: Callable[[Mapping[str, Tensor]], nn.Module],
    ignore: tuple[str, ...] = (),
) -> tuple[nn.Module, str, Any | None]:
    """A name that torchvision knows -> (model in evaluation mode, weights' identity, torchvision's entry).

    `build` makes the empty model for a state dict (empty for random weights); entries of the file whose names
    start with one of `ignore` belong to parts that are not used.
    """
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; there are {', '.join(sorted(known))}"
        raise InputError(f"{family}:{name}: not among torchvision's models{hint}")
    if weights is None:
        raise InputError(
            f"{family}:{name} needs weights: --weights FILE (a torchvision state dict), --weights URL with "
            "--sha256, or --weights DEFAULT to fetch torchvision's own"
        )
    if match := re.fullmatch(r"random:(\d+)", weights):  # for tests and benchmarks only
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(match[1]))
            return _tame(build({})).eval(), weights, None
    entry = _hub_entry(name, weights)
    if entry is None:
        path = local_weights(weights, sha256=sha256)
    else:
        path = fetch(entry.url, sha256=_published_prefix(entry.url))
    state = {key: value for key, value in read_state(path).items() if not key.startswith(ignore)}
    model = build(state)
    load_state(model, state, source=f"{path.name} for {family}:{name}")
    digest = sha256_file(path)
    return model.eval(), f"sha256:{digest}", _published_as(name, digest)


def _tame(model: nn.Module) -> nn.Module:
    """Random residual blocks double the signal each; a hundred layers of them overflow float16."""
    for block in model.modules():
        if isinstance(block, (BasicBlock, Bottleneck)):
            last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
            nn.init.constant_(last.weight, 0.2)
    return model


def _hub_entry(name: str, weights: str) -> Any | None:
    """DEFAULT, or a name such as IMAGENET1K_V2 -> torchvision's entry; anything else is a file or URL."""
    published = models.get_model_weights(name)
    entries = {"DEFAULT": published.DEFAULT, **published.__members__} if len(published) else {}
    if weights in entries:
        return entries[weights]
    if re.fullmatch(r"[A-Z0-9_]+", weights):
        raise InputError(
            f"--weights {weights}: torchvision publishes {', '.join(entries) or 'no weights'} for {name}; "
            "or pass --weights FILE"
        )
    return None


def _published_as(name: str, digest: str) -> Any | None:
    """A file's sha256 -> torchvision's entry for it, however the file came here."""
    for entry in models.get_model_weights(name):
        if digest.startswith(_published_prefix(entry.url)):
            return entry
    return None


def _published_prefix(url: str) -> str:
    """torchvision puts the first digits of the sha256 into the file's name."""
    match = re.search(r"-([0-9a-f]{8,})\.", url)
    assert match, url
    return match[1]
