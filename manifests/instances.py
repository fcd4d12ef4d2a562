"""Object annotations (COCO's instances_*.json, a sample's objects.json) -> the labels of every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InputError
from .json_stream import members
from .source import Findings, SourceOptions, optional_int, require, text_field


@dataclass
class InstanceLabels:
    """Names of the classes that are seen in each image, by COCO id or by file name."""

    by_id: dict[int, list[str]] = field(default_factory=dict)
    by_file: dict[str, list[str]] = field(default_factory=dict)

    def of(self, *, cocoid: int | None, file: str) -> list[str]:
        """An image's labels; none where nothing was seen in it."""
        if cocoid is not None and cocoid in self.by_id:
            return self.by_id[cocoid]
        return self.by_file.get(PurePosixPath(file).name, [])


def read_instances(options: SourceOptions, findings: Findings) -> InstanceLabels | None:
    """The files of --instances; label names are in the order of category ids, or of the sample's classes."""
    if not options.instances:
        return None
    names: dict[int, str] = {}
    present: dict[int, set[int]] = {}
    labels = InstanceLabels()
    classes: list[str] = []
    for path in options.instances:
        before = len(names), len(present), len(labels.by_file)
        for key, index, value in members(path, streamed=("categories", "annotations", "images")):
            where = f"{path}: {key}[{index}]"
            if key == "classes" and isinstance(value, list):
                classes += [name for name in value if isinstance(name, str)]
            elif index is None:
                continue
            elif key == "categories":
                require(isinstance(value, dict), where, value, "an object")
                names[required_int(value, "id", where)] = text_field(value, "name", where)
            elif key == "annotations":
                require(isinstance(value, dict), where, value, "an object")
                image = present.setdefault(required_int(value, "image_id", where), set())
                image.add(required_int(value, "category_id", where))
            elif key == "images" and isinstance(value, dict) and "objects" in value:
                file = text_field(value, "filename", where, expected="a file name")
                labels.by_file[PurePosixPath(file).name] = _kinds(value["objects"], where)
        if (len(names), len(present), len(labels.by_file)) == before:
            raise InputError(
                f"{path}: no 'annotations' and no 'objects' found, expected COCO's instances_*.json or a "
                "sample's objects.json"
            )
    found = {name for kinds in labels.by_file.values() for name in kinds}
    ordered = [names[number] for number in sorted(names)] + (classes or sorted(found))
    findings.label_names = list(dict.fromkeys(ordered))
    unknown = sorted(set().union(*present.values()) - names.keys()) if present else []
    if unknown:
        raise InputError(f"{options.instances[0]}: category {unknown[0]} has no name in 'categories'")
    labels.by_id = {cocoid: [names[number] for number in sorted(seen)] for cocoid, seen in present.items()}
    return labels


def _kinds(objects: Any, where: str) -> list[str]:
    require(isinstance(objects, list), f"{where}.objects", objects, "a list")
    kinds = []
    for number, thing in enumerate(objects):
        require(isinstance(thing, dict), f"{where}.objects[{number}]", thing, "an object")
        kinds.append(text_field(thing, "kind", f"{where}.objects[{number}]"))
    return list(dict.fromkeys(kinds))


def required_int(record: Mapping[str, Any], name: str, where: str) -> int:
    """An integer field that must be there."""
    value = optional_int(record, name, where)
    require(value is not None, f"{where}.{name}", value, "a whole number")
    assert value is not None
    return value


def check_used(path: Path, labels: InstanceLabels | None, *, images: int, labelled: int) -> None:
    """Refuse annotations that belong to other images."""
    if labels is not None and images and not labelled:
        raise InputError(
            f"{path}: none of its {images:,} images is in the files of --instances; they are of other images"
        )
