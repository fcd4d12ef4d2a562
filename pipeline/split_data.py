"""A split's features and tokens, joined by id -> what batches and samples are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ..extractors.weights_file import cache_folder
from ..files import fingerprint
from ..manifests.dataset import Dataset
from ..vocab.shelf import open_vocabulary
from .caption_tokens import CaptionTokens
from .feature_rows import FeatureRows, LocalShards, ShardSource
from .host_batch import BatchMaker
from .remote_shards import RemoteShards
from .sample_table import SampleTable
from .tokens import open_tokens


@dataclass(frozen=True)
class SplitData:
    """Everything about a split that does not depend on the order it is read in."""

    dataset: Dataset
    split: str
    rows: FeatureRows
    samples: SampleTable
    tokens: CaptionTokens
    vocab_fingerprint: str
    max_words: int | None

    @classmethod
    def open(
        cls,
        dataset: Dataset,
        *,
        split: str,
        source: ShardSource,
        vocab: str | None,
        dtype: torch.dtype | None,  # that rows are converted to; None keeps the stored type
        max_words: int | None,
        fixed_length: int | None = None,
        images: int | None = None,
    ) -> SplitData:
        vocab_name, vocabulary = open_vocabulary(dataset, vocab)
        tokens = open_tokens(dataset, split, vocab=vocab_name)
        return cls(
            dataset=dataset,
            split=split,
            rows=FeatureRows(source, dtype=dtype),
            samples=SampleTable.join(
                caption_ids=tokens.caption_ids,
                image_ids=tokens.image_ids,
                feature_ids=source.image_ids,
                images=images,
            ),
            tokens=CaptionTokens.of(
                tokens.values,
                tokens.offsets,
                start=vocabulary.specials.start,
                end=vocabulary.specials.end,
                max_words=max_words,
                fixed_length=fixed_length,
            ),
            vocab_fingerprint=vocabulary.fingerprint,
            max_words=max_words,
        )

    @cached_property
    def order_fingerprint(self) -> str:
        return self.samples.fingerprint()

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a batch is made of."""
        return fingerprint(
            [self.split, self.order_fingerprint, self.rows.source.fingerprint, self.vocab_fingerprint]
        )

    @cached_property
    def cut_captions(self) -> int:
        return int(np.count_nonzero(self.tokens.cut[self.samples.captions]))

    def maker(self, *, one_each: bool, region_classes: npt.NDArray[np.int32] | None = None) -> BatchMaker:
        source = self.rows.source
        return BatchMaker(
            self.samples,
            tokens=self.tokens,
            num_regions=source.num_regions,
            regions=source.spec.regions,
            labels=self._labels(),
            region_classes=region_classes,
            one_each=one_each,
        )

    def _labels(self) -> npt.NDArray[np.uint8] | None:
        """(I, L) multi-hot, where the data set has labels."""
        names = self.dataset.label_names
        if not names:
            return None
        table = self.dataset.select_images([self.split])
        image_ids, lists = table["image_id"].to_numpy(), table["labels"].combine_chunks()
        number_of = {int(image): number for number, image in enumerate(self.samples.image_ids)}
        labels = np.zeros((len(self.samples.image_ids), len(names)), np.uint8)
        for image_id, found in zip(image_ids.tolist(), lists.to_pylist(), strict=True):
            if found and (number := number_of.get(image_id)) is not None:
                labels[number, found] = 1
        return labels

    def say_what_is_left_out(self, say: Callable[[str], None]) -> None:
        where, samples = f"{self.dataset.name} {self.split}", self.samples
        if samples.missing_images:
            say(
                f"{where}: {samples.missing_images:,} images with captions have no features and are left "
                f"out; {len(samples.positions):,} are used"
            )
        if self.cut_captions:
            say(
                f"{where}: {self.cut_captions:,} of {len(samples.captions):,} captions are longer than "
                f"{self.max_words} words and are cut"
            )


def open_source(
    dataset: Dataset, features: str | Path, *, cache: Path | None, cache_bytes: int
) -> ShardSource:
    """A name in the data set, a folder, or any URL that fsspec knows -> its shards."""
    if isinstance(features, str) and "://" in features:
        return RemoteShards(features, cache=cache or cache_folder() / "shards", max_bytes=cache_bytes)
    return LocalShards(dataset.features_folder(features) if isinstance(features, str) else features)
