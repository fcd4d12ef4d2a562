"""The one interface of every model: encode each modality once, score pairs, and say why.

A model keeps what it runs once per image in `self.image`, once per caption in `self.text`, on both of them in
`self.shared` and once per batch in `self.aux`; everything else runs once per pair, must be deterministic (no
dropout, no batch statistics: the two passes of training score the same pair twice) and must not let one pair
see another.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..schema import Batch
from .encoded import Encoded

ONCE_PER_BATCH = ("image", "text", "shared", "aux")


class Matcher(nn.Module):
    """Regions and words -> scores."""

    scores_are_logits: bool = False
    """True where a score is the logit of a probability: train with BCE on it, show its sigmoid to people."""

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        """(n, R, D) features, (n, R) true where real (default: all), (n, R, 4) boxes -> n encoded images."""
        raise NotImplementedError

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        """(n, N) word ids, padded behind each length (n,) -> n encoded captions."""
        raise NotImplementedError

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        """Every image with every caption -> (nI, nT). Nothing is tiled here: see tiles.score_matrix."""
        raise NotImplementedError

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """The i-th image with the i-th caption -> (n,)."""
        raise NotImplementedError

    def aux_losses(self, batch: Batch, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        """Further losses on the encodings (captioning, labels, masking), by name; none by default."""
        return {}

    def predict_labels(self, encoded: Encoded) -> Tensor | None:
        """n encoded images or captions -> (n, L), higher where a label is likelier; None by default."""
        return None

    def explain(self, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        """What the i-th pair attended to. Keys that a model may give, padding included but with weight 0:

        region_attention (n, N, R)  the regions that each word read     region_gate (n, R, d or 1)
        word_attention (n, R, N)    the words that each region read     word_gate (n, N, d or 1)
        region_weight (n, R)        each region's share of the image    word_weight (n, N)
        region_fovea (n, R)         0 to 1 for the strongest region     word_fovea (n, N)
        """
        return {}

    def compile_scores(self) -> None:
        """Compile what runs per pair, for the shapes that change from tile to tile."""
        for name in ("score_block", "score_pairs"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=True))

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        """About how many numbers scoring one pair keeps in memory at once, or autograd keeps of it."""
        raise NotImplementedError
