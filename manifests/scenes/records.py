"""Scenes and captions -> the records of a sample's files: Karpathy's JSON, objects, the card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .facts import Description, Relation
from .geometry import RELATIONS, ZONES
from .grammar import CAPTIONS_PER_IMAGE, Caption
from .oracle import Fairness
from .scene import BACKGROUNDS, BLOCK, COLOURS, KINDS, SIZES, TEXTURES, Scene, Thing, sample_scene

DATASET_NAME = "camp-sample"
SAMPLE_VERSION = 1  # of what is drawn and written: another version draws other pictures for the same seed


def filename(index: int) -> str:
    """A scene's index -> its image's file name."""
    return f"scene_{index:06d}.jpg"


def split_sizes(images: int) -> dict[str, int]:
    """A number of images, 12 or more -> how many of them train, validate and test: about 10 : 1 : 1.

    The boundaries never cut a pair: they lie where a block of scenes, or a pair inside it, ends.
    """
    ends = [n for n in range(1, images) if n % BLOCK in (0, 2, 4)]
    val_end = min(ends[1:], key=lambda n: abs(n - images * 11 / 12))
    train_end = min((n for n in ends if n < val_end), key=lambda n: abs(n - images * 10 / 12))
    return {"train": train_end, "val": val_end - train_end, "test": images - val_end}


def split_of(index: int, sizes: dict[str, int]) -> str:
    """A scene's index -> the split it belongs to."""
    for split, count in sizes.items():
        if index < count:
            return split
        index -= count
    raise AssertionError(index)


def karpathy_image(scene: Scene, captions: Sequence[Caption], *, split: str) -> dict[str, Any]:
    """One entry of Karpathy's `images`."""
    first = scene.index * CAPTIONS_PER_IMAGE
    return {
        "filename": filename(scene.index),
        "imgid": scene.index,
        "sentids": list(range(first, first + len(captions))),
        "split": split,
        "sentences": [
            {"raw": caption.text, "tokens": caption.tokens, "imgid": scene.index, "sentid": first + number}
            for number, caption in enumerate(captions)
        ],
    }


def objects_image(scene: Scene, captions: Sequence[Caption], *, split: str, images: int) -> dict[str, Any]:
    """One entry of objects.json: the scene graph, and what each caption claims of it."""
    has_partner = scene.partner is not None and scene.partner < images
    first = scene.index * CAPTIONS_PER_IMAGE
    return {
        "filename": filename(scene.index),
        "imgid": scene.index,
        "split": split,
        "width": scene.width,
        "height": scene.height,
        "background": scene.background,
        "objects": [_object(thing) for thing in scene.things],
        "partner": filename(scene.partner) if has_partner and scene.partner is not None else None,
        "difference": _difference(scene) if has_partner else None,
        "captions": [
            {"sentid": first + number, "facts": [fact.record() for fact in caption.facts]}
            for number, caption in enumerate(captions)
        ],
    }


def _object(thing: Thing) -> dict[str, Any]:
    return {
        "kind": thing.kind,
        "label": thing.label,
        "colour": thing.colour,
        "texture": thing.texture,
        "size": thing.size,
        "box": list(thing.box),
        "group": thing.group,
    }


def _difference(scene: Scene) -> dict[str, Any]:
    """What differs from the partner, here and there."""
    assert scene.partner is not None
    assert scene.difference is not None
    detail, group, other = scene.difference.detail, scene.difference.group, scene.difference.other
    partner = sample_scene(scene.seed, scene.partner)
    mine, theirs = scene.groups[group], partner.groups[group]
    if detail == "relation":
        assert other is not None
        a, b = (Description(scene.groups[n][0].kind, scene.groups[n][0].colour) for n in (group, other))
        here, there = ([r for r in RELATIONS if Relation(a, r, b).holds(s)] for s in (scene, partner))
        return {"detail": detail, "group": group, "other": other, "here": here, "partner": there}
    if detail == "count":
        return {"detail": detail, "group": group, "here": len(mine), "partner": len(theirs)}
    return {
        "detail": detail,
        "group": group,
        "here": getattr(mine[0], detail),
        "partner": getattr(theirs[0], detail),
    }


def karpathy_bytes(images: Sequence[dict[str, Any]]) -> bytes:
    """Karpathy's JSON, one image a line."""
    return _lines({"dataset": DATASET_NAME}, images)


def objects_bytes(images: Sequence[dict[str, Any]], *, seed: int) -> bytes:
    """objects.json, one image a line."""
    head = {
        "dataset": DATASET_NAME,
        "version": SAMPLE_VERSION,
        "seed": seed,
        "classes": KINDS,
        "colours": COLOURS,
        "textures": TEXTURES,
        "sizes": SIZES,
        "backgrounds": BACKGROUNDS,
        "relations": RELATIONS,
        "zones": ZONES,
    }
    return _lines(head, images)


def _lines(head: dict[str, Any], images: Sequence[dict[str, Any]]) -> bytes:
    rows = ",\n".join(json.dumps(image, separators=(",", ":")) for image in images)
    return f'{json.dumps(head)[:-1]}, "images": [\n{rows}\n]}}\n'.encode()


def card_record(
    karpathy: Sequence[dict[str, Any]],
    objects: Sequence[dict[str, Any]],
    *,
    seed: int,
    sizes: dict[str, int],
    fairness: Fairness,
) -> dict[str, Any]:
    """What the sample is, in numbers."""
    tokens = [word for image in karpathy for caption in image["sentences"] for word in caption["tokens"]]
    captions = sum(len(image["sentences"]) for image in karpathy)
    differences = Counter(image["difference"]["detail"] for image in objects if image["difference"])
    return {
        "dataset": DATASET_NAME,
        "version": SAMPLE_VERSION,
        "seed": seed,
        "images": len(karpathy),
        "splits": sizes,
        "captions": captions,
        "words": len(set(tokens)),
        "mean_caption_length": round(len(tokens) / captions, 1),
        "objects": sum(len(image["objects"]) for image in objects),
        "kinds": len(KINDS),
        "colours": len(COLOURS),
        "backgrounds": len(BACKGROUNDS),
        "images_in_pairs": sum(differences.values()),
        "pairs_by_detail": {detail: count // 2 for detail, count in sorted(differences.items())},
        "oracle_r@1": fairness.record(),
    }


def card_text(card: dict[str, Any]) -> str:
    """The card's numbers -> the card for people, in Markdown."""
    splits = ", ".join(f"{count:,} {split}" for split, count in card["splits"].items())
    pairs = ", ".join(f"{count:,} in {detail}" for detail, count in card["pairs_by_detail"].items())
    knows, kinds = card["oracle_r@1"]["everything"], card["oracle_r@1"]["kinds_only"]
    return f"""# camp-sample

Drawn scenes for trying out text-image matching: no downloads, and the same files for the same seed.

| | |
|---|---|
| images | {card["images"]:,} ({splits}) |
| captions | {card["captions"]:,}, {card["mean_caption_length"]} words each, {card["words"]} different words |
| objects | {card["objects"]:,} of {card["kinds"]} kinds in {card["colours"]} colours |
| near-duplicates | {card["images_in_pairs"]:,} images stand in pairs that differ in one detail: {pairs} |
| seed | {card["seed"]} (version {card["version"]}) |

## How far retrieval can go

Computed from the scene graphs of this sample's test split; R@1 in percent. Ties count against the first
oracle and are left to chance for the second.

| an oracle that knows | caption retrieval | image retrieval |
|---|---|---|
| everything | {knows["caption_retrieval"]} | {knows["image_retrieval"]} |
| only the kinds of objects | {kinds["caption_retrieval"]} | {kinds["image_retrieval"]} |

What lies between the two is earned by matching words with regions: colours, textures, sizes, counts, places.

## Files

- `images/`: the pictures, 208 to 340 pixels a side.
- `karpathy.json`: captions and splits. Partners of a pair share their split.
- `objects.json`: boxes (xyxy, pixels), class labels and properties of every object, the partner of every
  image and what differs, and the facts that every caption claims.
"""
