"""Source images -> a manifest: ids assigned once, oddities counted, contradictions refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import InputError
from ..schema import CaptionRow, ImageRow
from .dataset import Dataset
from .manifest import Manifest, caption_rows, image_rows, manifest_from_rows
from .source import Findings, SourceCaption, SourceImage


class ManifestBuilder:
    """Collects the rows of one generation; knows the images of the earlier ones."""

    def __init__(self, *, findings: Findings, previous: Dataset | None = None, root: int = 0) -> None:
        self._findings = findings
        self._root = root
        self.images: list[ImageRow] = []
        self._captions: list[CaptionRow] = []
        self._without_captions: list[str] = []
        self._labels: list[Sequence[str] | None] = []
        self._earlier: dict[str, ImageRow] = {}
        self._earlier_texts: dict[int, set[str]] = {}
        self._taken: dict[str, dict[int | str, str]] = {"key": {}, "imgid": {}, "cocoid": {}}
        self._first_image = self._first_caption = 0
        self._known_labels: list[str] = []
        if previous is not None:
            self._known_labels = previous.label_names
            self._first_image = previous.images.num_rows
            self._first_caption = previous.captions.num_rows
            self._earlier = {row.key: row for row in image_rows(previous.images)}
            for caption in caption_rows(previous.captions):
                self._earlier_texts.setdefault(caption.image_id, set()).add(caption.text)
            for row in self._earlier.values():
                self._take(row.key, imgid=row.imgid, cocoid=row.cocoid)

    @property
    def caption_count(self) -> int:
        return len(self._captions)

    def add(self, image: SourceImage) -> None:
        """One more image of the source, or more captions of an image that an earlier generation has."""
        earlier = self._earlier.get(image.key)
        if earlier is not None:
            self._add_to_earlier(earlier, image)
            return
        self._take(image.key, imgid=image.imgid, cocoid=image.cocoid)
        image_id = self._first_image + len(self.images)
        if not self._add_captions(image_id, image.captions, key=image.key, known=set()):
            self._without_captions.append(image.key)
        self._labels.append(image.labels)
        self.images.append(
            ImageRow(
                image_id=image_id,
                key=image.key,
                file=image.file,
                split=image.split,
                width=image.width,
                height=image.height,
                imgid=image.imgid,
                cocoid=image.cocoid,
                root=self._root,
            )
        )

    def _add_to_earlier(self, earlier: ImageRow, image: SourceImage) -> None:
        if image.split != earlier.split:
            raise InputError(
                f"image {image.key!r}: found in split {image.split!r}, but the data set has it in "
                f"{earlier.split!r}; an image never changes its split"
            )
        texts = self._earlier_texts.setdefault(earlier.image_id, set())
        fresh = [caption for caption in image.captions if caption.text.strip() not in texts]
        added = self._add_captions(earlier.image_id, fresh, key=image.key, known=texts)
        kind = "images the data set has already, new captions added" if added else "images already there"
        self._findings.note(kind, image.key)

    def _add_captions(
        self, image_id: int, captions: Sequence[SourceCaption], *, key: str, known: set[str]
    ) -> int:
        added = 0
        for caption in captions:
            text = caption.text.strip()
            if not text:
                self._findings.note("empty captions, left out", key)
                continue
            if text in known:
                self._findings.note("the same caption twice for one image", f"{key}: {text}")
            known.add(text)
            added += 1
            self._captions.append(
                CaptionRow(
                    caption_id=self._first_caption + len(self._captions),
                    image_id=image_id,
                    text=text,
                    sentid=caption.sentid,
                )
            )
        return added

    def _take(self, key: str, *, imgid: int | None, cocoid: int | None) -> None:
        for kind, value in (("key", key), ("imgid", imgid), ("cocoid", cocoid)):
            if value is None:
                continue
            owner = self._taken[kind].get(value)
            if owner is not None:
                raise InputError(
                    f"image {key!r}: {kind} {value!r} is already that of image {owner!r}, "
                    "expected each image once; remove one from the source"
                )
            self._taken[kind][value] = key

    def build(self, sizes: Mapping[int, tuple[int, int]]) -> tuple[Manifest, list[str]]:
        """Measured sizes by image id -> the manifest and the label names, earlier ones first."""
        if self._captions:  # a folder of photographs has none, and that is no oddity
            for key in self._without_captions:
                self._findings.note("images without captions", key)
        names = self._label_names()
        number_of = {name: number for number, name in enumerate(names)}
        images = []
        for row, labels in zip(self.images, self._labels, strict=True):
            width, height = sizes.get(row.image_id, (row.width, row.height))
            numbers = None if labels is None else tuple(sorted(number_of[label] for label in labels))
            images.append(replace(row, width=width, height=height, labels=numbers))
        return manifest_from_rows(images, self._captions), names

    def _label_names(self) -> list[str]:
        found = {label for labels in self._labels if labels for label in labels}
        ordered = self._findings.label_names or sorted(found)
        return list(dict.fromkeys([*self._known_labels, *ordered]))
