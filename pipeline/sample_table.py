"""A split's captions and the rows that have features -> the samples of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..files import checksum_bytes, fingerprint

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleTable:
    """Images in the order of their rows on disk, each with its captions one after another."""

    positions: Integers  # (I,) feature row of each image, ascending
    image_ids: Integers  # (I,)
    captions: Integers  # (C,) row of each caption in the token file
    caption_ids: Integers  # (C,)
    caption_image: Integers  # (C,) which of the I images
    first: Integers  # (I + 1,) image i has the captions first[i]..first[i + 1]
    missing_images: int  # have captions, but no features

    @classmethod
    def join(
        cls, *, caption_ids: Integers, image_ids: Integers, feature_ids: Integers, images: int | None = None
    ) -> SampleTable:
        """Captions (their ids, their images' ids) and the image id of every feature row -> samples.

        `images` keeps the first so many images, in the order of their captions.
        """
        if images is not None:
            _, at, inverse = np.unique(image_ids, return_index=True, return_inverse=True)
            rank = np.empty(len(at), np.int64)
            rank[np.argsort(at, kind="stable")] = np.arange(len(at))
            kept = np.flatnonzero(rank[inverse] < images)
        else:
            kept = np.arange(len(image_ids))
        by_id = np.argsort(feature_ids, kind="stable")
        wanted = image_ids[kept]
        place = np.searchsorted(feature_ids, wanted, sorter=by_id)
        place = by_id[np.minimum(place, len(by_id) - 1)] if len(by_id) else np.zeros_like(wanted)
        found = feature_ids[place] == wanted if len(by_id) else np.zeros(len(wanted), bool)
        missing = len(np.unique(wanted[~found]))
        kept, place = kept[found], place[found]
        in_row_order = np.argsort(place, kind="stable")  # captions of an image stay in their order
        captions, place = kept[in_row_order], place[in_row_order]
        positions, first = np.unique(place, return_index=True)
        first = np.append(first, len(captions))
        return cls(
            positions=positions,
            image_ids=feature_ids[positions],
            captions=captions,
            caption_ids=caption_ids[captions],
            caption_image=np.repeat(np.arange(len(positions)), np.diff(first)),
            first=first,
            missing_images=missing,
        )

    def fingerprint(self) -> str:
        """Of the images and captions alone: other features or another vocabulary leave the order as it is."""
        arrays = (self.image_ids, self.caption_ids, self.first)
        return fingerprint([checksum_bytes(np.ascontiguousarray(array).data) for array in arrays])

    def blocks(self, *, block: int, bounds: Integers) -> Integers:
        """(I,) the block each image is in: `block` rows that lie together, never across two shards."""
        shard = np.searchsorted(bounds, self.positions, side="right") - 1
        per_shard = -(-np.diff(bounds) // block)
        before = np.concatenate([[0], np.cumsum(per_shard)])
        number = before[shard] + (self.positions - bounds[shard]) // block
        return np.unique(number, return_inverse=True)[1].astype(np.int64)  # without the other splits' blocks
