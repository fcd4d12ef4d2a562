"""Label-wise semantic sharing: one transformer reads regions and words alike, and names the labels of both.

Yang et al., "Rethinking Label-Wise Cross-Modal Retrieval from A Semantic Sharing Perspective", IJCAI 2021.
The retrieval vector is the prediction itself: instances that show the same things lie together without any
loss that pulls them. Sizes are those of the released code.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..schema import Batch
from .attention import masked_mean
from .dscmr import batch_labels
from .encoded import Encoded, word_mask
from .encoders import RegionEncoder, WordEncoder, unit
from .matcher import Matcher
from .transformer import Transformer

HIDDEN_SHARE = 0.15  # of the words and regions that must be guessed
_BOX_NUMBERS = 5  # corners and area


class RegionInput(nn.Module):
    """Region features (n, R, D) and boxes (n, R, 4) -> (n, R, d): what is there, and where."""

    def __init__(self, *, region_dim: int, dim: int) -> None:
        super().__init__()
        self.features = RegionEncoder(region_dim=region_dim, dim=dim)
        self.boxes = nn.Linear(_BOX_NUMBERS, dim)

    def forward(self, regions: Tensor, mask: Tensor, boxes: Tensor | None) -> Tensor:
        found: Tensor = self.features(regions)
        if boxes is None:
            return found
        real = boxes.to(found.dtype).masked_fill(~mask.unsqueeze(-1), 0)
        # The image's size is not in the batch; the farthest corners of its regions stand for it.
        extent = real[..., 2:].amax(dim=1, keepdim=True).clamp_min(1e-6)  # (n, 1, 2)
        corners = real / torch.cat([extent, extent], dim=-1)
        area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
        placed: Tensor = self.boxes(torch.cat([corners, area.unsqueeze(-1)], dim=-1))
        return found + placed


class Labelwise(Matcher):
    """mask_weight is λ of the guessed words and regions; consistency is η of the loss that pulls pairs.

    share: one transformer for both; False trains two (the row Independent).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        region_dim: int = 2048,
        word_dim: int = 300,
        dim: int = 1024,
        vectors: Tensor | None = None,
        labels: int = 80,
        region_classes: int = 0,
        layers: int = 6,
        heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.1,
        mask_weight: float = 0.01,
        consistency: float = 0.0,
        share: bool = True,
    ) -> None:
        super().__init__()
        self.labels, self.mask_weight, self.consistency = labels, mask_weight, consistency
        self.region_classes = region_classes
        self.image = RegionInput(region_dim=region_dim, dim=dim)
        self.text = WordEncoder(vocab_size=vocab_size, word_dim=word_dim, dim=dim, vectors=vectors)
        self.shared = nn.ModuleList(
            Transformer(dim, layers=layers, heads=heads, feedforward=feedforward, dropout=dropout)
            for _ in range(1 if share else 2)
        )
        self.label_head = nn.Linear(dim, labels)
        self.aux = nn.ModuleDict()
        if mask_weight:
            self.aux["words"] = nn.Linear(dim, vocab_size)
            if region_classes:
                self.aux["regions"] = nn.Linear(dim, region_classes)

    def encode_image(
        self, regions: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        mask = (
            torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device) if mask is None else mask
        )
        return self._encoded(self._read_regions(regions, mask, boxes), mask)

    def encode_text(self, ids: Tensor, lengths: Tensor) -> Encoded:
        hidden = self._read_words(ids, lengths)
        return self._encoded(hidden, word_mask(lengths.to(hidden.device), hidden.shape[1]))

    def _read_regions(self, regions: Tensor, mask: Tensor, boxes: Tensor | None) -> Tensor:
        read: Tensor = self.shared[0](self.image(regions, mask, boxes), mask)
        return read

    def _read_words(self, ids: Tensor, lengths: Tensor) -> Tensor:
        words = self.text(ids, lengths)  # (n, N, d)
        mask = word_mask(lengths.to(words.device), words.shape[1])
        read: Tensor = self.shared[-1](words, mask)
        return read

    def _encoded(self, hidden: Tensor, mask: Tensor) -> Encoded:
        each = unit(self.label_head(hidden).sigmoid())  # p = l2(σ(W h)) of every region or word
        guess = masked_mean(each, mask)  # ŷ (n, L)
        return Encoded(
            local=hidden.new_empty(*mask.shape, 0), mask=mask, glob=unit(guess), pooled={"labels": guess}
        )

    def predict_labels(self, encoded: Encoded) -> Tensor:
        return encoded.pooled["labels"]

    def aux_losses(self, batch: Batch, images: Encoded, texts: Encoded) -> Mapping[str, Tensor]:
        if not self.training:
            return {}
        y = batch_labels(batch, self.labels).to(images.glob.dtype)  # (I, L)
        guesses = images.pooled["labels"], texts.pooled["labels"]
        of_images = F.softplus(-(guesses[0] * y).sum(dim=1)).mean()  # log(1 + exp(-ŷ·y))
        of_texts = F.softplus(-(guesses[1] * y[batch.caption_image]).sum(dim=1)).mean()
        losses = {"labels": of_images + of_texts}
        if self.consistency:
            apart = (guesses[0][batch.caption_image] - guesses[1]).norm(dim=1).mean()
            losses["consistency"] = self.consistency * apart
        if "words" in self.aux:
            losses["words"] = self.mask_weight * self._guess_words(batch)
        if "regions" in self.aux and batch.region_classes is not None:
            losses["regions"] = self.mask_weight * self._guess_regions(batch, batch.region_classes)
        return losses

    def _guess_words(self, batch: Batch) -> Tensor:
        """Cross-entropy of words that were hidden; 0 is padding and never a word, here it says 'guess'."""
        ids = batch.tokens[:, : int(batch.lengths.max())]
        hide = _hide(word_mask(batch.lengths.to(ids.device), ids.shape[1]))
        hidden = self._read_words(ids.masked_fill(hide, 0), batch.lengths)[hide]
        return F.cross_entropy(self.aux["words"](hidden), ids[hide])

    def _guess_regions(self, batch: Batch, classes: Tensor) -> Tensor:
        """Cross-entropy of the detector's classes of regions whose features were hidden."""
        known = batch.region_mask & (classes >= 0) & (classes < self.region_classes)
        hide = _hide(known)
        regions = batch.regions.masked_fill(hide.unsqueeze(-1), 0)
        hidden = self._read_regions(regions, batch.region_mask, batch.boxes)[hide]
        if not len(hidden):
            return hidden.sum() * 0
        return F.cross_entropy(self.aux["regions"](hidden), classes[hide])

    def score_block(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.glob @ texts.glob.mT

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.glob * texts.glob).sum(dim=-1)

    def pair_floats(self, regions: int, words: int, *, gradient: bool = False) -> int:
        return 1


def _hide(real: Tensor) -> Tensor:
    """(n, L) true where real -> true for some of these, at least one of all."""
    lots = torch.rand(real.shape, device=real.device).masked_fill(~real, 2.0)
    hide = lots < HIDDEN_SHARE
    hide.view(-1)[lots.view(-1).argmin()] |= bool(real.any())
    return hide
