"""A text, or an image of the data set or on disk -> its encoding by a run's model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError, MismatchError
from ..extractors.build import build_extractor, find_module
from ..extractors.extractor import Extractor, RegionPolicy
from ..extractors.photograph import MAX_PIXELS, read_photograph
from ..manifests.dataset import Dataset
from ..models.encoded import Encoded
from ..models.matcher import Matcher
from ..pipeline.region_picture import find_image
from ..pipeline.shard_reader import ShardReader
from ..schema import Regions
from ..vocab.vocabulary import Vocabulary
from .run_folder import Run

_COMMON = ("weights", "class_names", "attribute_names")  # recorded by their content, not by their file


@dataclass(frozen=True)
class QueryEncoder:
    """A run's model with what it needs to read texts and images that nobody has prepared."""

    run: Run
    model: Matcher
    dataset: Dataset
    features: ShardReader
    vocabulary: Vocabulary
    device: torch.device
    weights: str | None = None  # of the extractor, where the package ships none

    @classmethod
    def open(
        cls,
        run: Run,
        *,
        dataset: Path | None = None,
        checkpoint: str = "best",
        device: torch.device,
        weights: str | None = None,
    ) -> QueryEncoder:
        opened = run.dataset(dataset)
        return cls(
            run=run,
            model=run.load_model(checkpoint=checkpoint, device=device),
            dataset=opened,
            features=run.features(opened),
            vocabulary=run.vocabulary(),
            device=device,
            weights=weights,
        )

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Encoded:
        """Texts, tokenized as the run's captions were -> their encodings, in order."""
        ids = [self._ids(text) for text in texts]
        lengths = torch.tensor([len(row) for row in ids])
        padded = torch.zeros(len(ids), int(lengths.max()), dtype=torch.int64)
        for number, row in enumerate(ids):
            padded[number, : len(row)] = torch.tensor(row)
        return self.model.encode_text(padded.to(self.device), lengths.to(self.device))

    def _ids(self, text: str) -> list[int]:
        specials = self.vocabulary.specials
        ids = self.vocabulary.encode_text(text)
        around = (specials.start is not None) + (specials.end is not None)
        if len(ids) <= around:
            raise InputError(f"text {text!r}: no word found, expected at least one")
        if len(ids) > (limit := self.run.max_words + around):
            ids = ids[:limit] if specials.end is None else [*ids[: limit - 1], specials.end]
        return ids

    @torch.no_grad()
    def regions(self, images: Sequence[Regions]) -> Encoded:
        """Regions of several images -> their encodings, in order."""
        most = max(len(image.features) for image in images)
        features = torch.zeros(len(images), most, self.features.spec.dim)
        boxes = torch.zeros(len(images), most, 4)
        mask = torch.zeros(len(images), most, dtype=torch.bool)
        for row, image in enumerate(images):
            count = len(image.features)
            features[row, :count] = torch.from_numpy(np.array(image.features, np.float32))
            boxes[row, :count] = torch.from_numpy(np.array(image.boxes, np.float32))
            mask[row, :count] = True
        return self.model.encode_image(*(part.to(self.device) for part in (features, mask, boxes)))

    def image_ids(self, ids: Sequence[int]) -> Encoded:
        """Images of the data set, by id."""
        return self.regions([self.features.by_id(number) for number in ids])

    def find(self, image: str) -> tuple[str, Regions]:
        """A key of the data set or an image file -> its name and regions."""
        if Path(image).is_file():
            return Path(image).name, self.extract(Path(image))
        row = find_image(self.dataset, image)
        if row.image_id not in self.features:
            raise InputError(f"{self.dataset.root}: {row.key!r} has no features; see 'camp-data info'")
        return row.key, self.features.by_id(row.image_id)

    def extract(self, path: Path) -> Regions:
        """An image file -> regions, by the extractor that made the run's features, in their precision."""
        decoding = self.features.index.provenance.get("decoding", {})
        photograph = read_photograph(
            path.read_bytes(),
            max_pixels=decoding.get("max_pixels", MAX_PIXELS),
            exif=decoding.get("exif", True),
        )
        prepared = self._extractor.prepare(photograph)
        regions = self._extractor.extract([prepared], [(photograph.width, photograph.height)])[0]
        return Regions(
            boxes=regions.boxes,
            features=regions.features.astype(self.features.spec.dtype),
            width=regions.width,
            height=regions.height,
        )

    @cached_property
    def _extractor(self) -> Extractor:
        return extractor_of(
            self.features.index.provenance,
            regions=self.features.spec.regions,
            weights=self.weights,
            source=self.features.index.folder,
        )


def extractor_of(
    provenance: Mapping[str, Any], *, regions: int, weights: str | None, source: Path
) -> Extractor:
    """What a feature set's index says of its extractor -> that extractor; another one is refused."""
    config = provenance.get("extractor")
    if not isinstance(config, Mapping) or "model" not in config:
        raise InputError(
            f"{source}: imported features, their extractor is not here; "
            "expected an image of the data set, by its key"
        )
    module, _ = find_module(config["model"])
    own = inspect.signature(import_module(f"..extractors.{module}", __package__).build).parameters
    settings = {
        # torchvision keeps a list of sizes to draw from, which has one entry here
        name: value[0] if isinstance(value, list) else value
        for name, value in config.items()
        if name in own and name not in _COMMON
    }
    extractor = build_extractor(config["model"], weights=weights, policy=_policy(config, regions), **settings)
    found = json.loads(json.dumps(dict(extractor.config)))
    if differing := [name for name in sorted({*found, *config}) if found.get(name) != config.get(name)]:
        name = differing[0]
        raise MismatchError(
            f"{source}: made with {name} {config.get(name)!r}, but {config['model']} has {found.get(name)!r} "
            "here; give the weights it was made with (--weights), or an image of the data set by its key"
        )
    return extractor


def _policy(config: Mapping[str, Any], regions: int) -> RegionPolicy:
    """Detectors record their whole policy or the parts they use; a grid has as many cells as rows."""
    recorded = config.get("regions", [regions, regions])
    if isinstance(recorded, Mapping):
        return RegionPolicy(**recorded)
    chosen = {name: config[name] for name in ("select", "boxes") if name in config}
    return RegionPolicy(min_regions=recorded[0], max_regions=recorded[1], with_labels=True, **chosen)
