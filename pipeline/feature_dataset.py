"""A data set's features and tokens -> a plain torch Dataset of captions, for DataLoader and its relatives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import InputError
from ..manifests.dataset import Dataset
from ..schema import Batch
from .feature_rows import LocalShards
from .split_data import SplitData

Sample = dict[str, Tensor]

logger = logging.getLogger(__name__)


class FeatureDataset(torch.utils.data.Dataset[Sample]):
    """Every caption of a split with its image's regions. FeatureLoader gives the same many times faster.

    A sample has regions (R, D), region_mask (R,), boxes (R, 4), tokens (n,), image_id and caption_id, and
    labels (L,) where the data set has some. `collate` makes a Batch of samples. Features are mapped, never
    held: worker processes share them, whether they are forked or spawned.
    """

    def __init__(
        self,
        dataset: Dataset | Path | str,
        *,
        split: str,
        features: str | Path,
        vocab: str | None = None,
        dtype: torch.dtype | None = torch.float32,  # of the regions; None keeps the stored type
        max_words: int | None = 50,  # without <start> and <end>; longer captions are cut, and counted
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
        self._options = {
            "split": split,
            "features": features,
            "vocab": vocab,
            "dtype": dtype,
            "max_words": max_words,
        }
        if isinstance(features, str) and "://" in features:
            raise InputError(
                f"{features}: a Dataset reads in any order, which needs a folder; use FeatureLoader"
            )
        folder = self.dataset.features_folder(features) if isinstance(features, str) else features
        self._data = SplitData.open(
            self.dataset,
            split=split,
            source=LocalShards(folder),
            vocab=vocab,
            dtype=dtype,
            max_words=max_words,
        )
        self._maker = self._data.maker(one_each=True)
        self._data.say_what_is_left_out(say)

    def __reduce__(self) -> tuple[Any, ...]:
        # Maps cannot be sent to a spawned process; it opens them itself, and repeats no warnings.
        return _reopen, (self.dataset.root, self._options)

    def __len__(self) -> int:
        return len(self._data.samples.captions)

    def __getitem__(self, number: int) -> Sample:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        rows, spec = self._data.rows, self._data.rows.spec
        host = self._maker.make(np.array([number % len(self)]))
        regions = torch.zeros((1, spec.regions, spec.dim), dtype=rows.dtype)
        boxes = rows.gather(host.positions, regions)
        parts = host.tensors()
        sample = {
            "regions": regions,
            "boxes": torch.from_numpy(boxes),
            "region_mask": parts["region_mask"],
            "tokens": parts["tokens"],
            "image_id": parts["image_ids"],
            "caption_id": parts["caption_ids"],
            "labels": parts["labels"],
        }
        return {name: value[0] for name, value in sample.items() if value is not None}

    @staticmethod
    def collate(samples: Sequence[Sample]) -> Batch:
        """Samples -> a batch: captions padded to the longest, each image once."""
        row_of: dict[int, int] = {}
        firsts: list[Sample] = []  # the first sample of each image
        for sample in samples:
            image_id = int(sample["image_id"])
            if image_id not in row_of:
                row_of[image_id] = len(firsts)
                firsts.append(sample)
        return Batch(
            regions=torch.stack([sample["regions"] for sample in firsts]),
            region_mask=torch.stack([sample["region_mask"] for sample in firsts]),
            boxes=torch.stack([sample["boxes"] for sample in firsts]),
            tokens=pad_sequence([sample["tokens"] for sample in samples], batch_first=True),
            lengths=torch.tensor([len(sample["tokens"]) for sample in samples]),
            image_ids=torch.stack([sample["image_id"] for sample in firsts]),
            caption_ids=torch.stack([sample["caption_id"] for sample in samples]),
            caption_image=torch.tensor([row_of[int(sample["image_id"])] for sample in samples]),
            labels=torch.stack([sample["labels"] for sample in firsts]) if "labels" in samples[0] else None,
        )


def _reopen(root: Path, options: dict[str, Any]) -> FeatureDataset:
    return FeatureDataset(root, **options, say=lambda text: None)
