"""A seed and a number of images -> a folder with pictures, captions, object boxes and a card.

Every image names its seed and index in a JPEG comment and appears under its name only when it is whole, so a
run that was killed goes on where it stopped. The JSON files come last, the card at the very end.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import (
    canonical_json,
    is_temporary,
    storage_errors,
    sync_directory,
    temporary_name,
    write_atomic,
)
from ...progress import Bar, ProgressFactory, no_progress
from .drawing import render
from .grammar import write_captions
from .oracle import measure_fairness
from .records import (
    DATASET_NAME,
    SAMPLE_VERSION,
    card_record,
    card_text,
    filename,
    karpathy_bytes,
    karpathy_image,
    objects_bytes,
    objects_image,
    split_of,
    split_sizes,
)
from .scene import Scene, draw_scenes, sample_scene

MIN_IMAGES = 12

_JSON_FILES = ("card.json", "karpathy.json", "objects.json")  # removed first, the card before all
_TOP_NAMES = {"images", "card.md", *_JSON_FILES}
_IMAGE_NAME = re.compile(r"scene_\d{6,}\.jpg")
_CHUNK = 25  # images that one worker draws at a time
_FEW = 100  # images that are drawn sooner than a worker has started
_QUALITY = 92


def write_sample(
    folder: Path,
    *,
    images: int = 1200,
    seed: int = 0,
    workers: int | None = None,
    progress: ProgressFactory = no_progress,
) -> dict[str, Any]:
    """A folder -> the same folder with the sample in it; returns the card.

    The bytes depend on the seed and the number of images alone. `workers` is the number of processes; by
    default one for every core.
    """
    if images < MIN_IMAGES:
        raise InputError(f"--images {images}: a sample has at least {MIN_IMAGES} images")
    _check_folder(folder)
    with storage_errors(folder):
        (folder / "images").mkdir(parents=True, exist_ok=True)
        _clear(folder, images=images)
    sizes = split_sizes(images)
    chunks = [(start, min(start + _CHUNK, images)) for start in range(0, images, _CHUNK)]
    with progress("drawing", images, "images") as bar, storage_errors(folder):
        records = _draw(folder, chunks, sizes=sizes, seed=seed, workers=workers, bar=bar)
    karpathy = [record[0] for record in records]
    objects = [record[1] for record in records]
    test = list(draw_scenes(seed, sizes["test"], start=images - sizes["test"]))
    fairness = measure_fairness(test, [write_captions(scene) for scene in test])
    card = card_record(karpathy, objects, seed=seed, sizes=sizes, fairness=fairness)
    sync_directory(folder / "images")
    write_atomic(folder / "objects.json", objects_bytes(objects, seed=seed))
    write_atomic(folder / "karpathy.json", karpathy_bytes(karpathy))
    write_atomic(folder / "card.md", card_text(card).encode())
    write_atomic(folder / "card.json", canonical_json(card))
    return card


_Record = tuple[dict[str, Any], dict[str, Any]]  # of karpathy.json, of objects.json


def _draw(
    folder: Path,
    chunks: list[tuple[int, int]],
    *,
    sizes: dict[str, int],
    seed: int,
    workers: int | None,
    bar: Bar,
) -> list[_Record]:
    """Draw what is not there yet, in this process or in several; the records come in the scenes' order."""
    workers = workers or _cores()
    if workers == 1 or chunks[-1][1] < _FEW:
        records: list[_Record] = []
        for chunk in chunks:
            records += draw_chunk(folder, chunk, sizes=sizes, seed=seed)
            bar.advance(chunk[1] - chunk[0])
        return records
    # Spawned, not forked: a fork copies whatever threads and locks the caller's process holds.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            futures = {
                pool.submit(draw_chunk, folder, chunk, sizes=sizes, seed=seed): chunk for chunk in chunks
            }
            drawn: dict[tuple[int, int], list[_Record]] = {}
            for future in as_completed(futures):
                chunk = futures[future]
                drawn[chunk] = future.result()
                bar.advance(chunk[1] - chunk[0])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [record for chunk in chunks for record in drawn[chunk]]


def _cores() -> int:
    """The cores this process may use; macOS knows only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    """A worker leaves Ctrl-C to its parent, and goes when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def draw_chunk(folder: Path, chunk: tuple[int, int], *, sizes: dict[str, int], seed: int) -> list[_Record]:
    """The scenes of a range -> their images on disk, and their records."""
    records, images = [], sum(sizes.values())
    for index in range(*chunk):
        scene = sample_scene(seed, index)
        path = folder / "images" / filename(index)
        if not _is_whole(path, scene):
            _write_image(path, scene)
        captions, split = write_captions(scene), split_of(index, sizes)
        records.append(
            (
                karpathy_image(scene, captions, split=split),
                objects_image(scene, captions, split=split, images=images),
            )
        )
    return records


def _write_image(path: Path, scene: Scene) -> None:
    stream = io.BytesIO()
    render(scene).save(stream, "JPEG", quality=_QUALITY, subsampling=0, comment=_comment(scene))
    # Not synced one by one: a picture that a power cut damages is found by its ending and drawn again.
    temporary = temporary_name(path)
    try:
        temporary.write_bytes(stream.getvalue())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _comment(scene: Scene) -> bytes:
    return f"{DATASET_NAME} version {SAMPLE_VERSION} seed {scene.seed} scene {scene.index};".encode()


def _is_whole(path: Path, scene: Scene) -> bool:
    """Whether the file is this scene's image, from its comment to the end-of-image marker."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return _comment(scene) in content[:256] and content.endswith(b"\xff\xd9")


def _check_folder(folder: Path) -> None:
    """Refuse to mix a sample with anything else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the sample")
    advice = "give an empty folder or one that holds an earlier sample"
    for path in sorted(folder.iterdir()):
        if path.name not in _TOP_NAMES and not is_temporary(path):
            raise InputError(f"{folder} holds '{path.name}', which no sample writes; {advice}")
    if (folder / "images").exists():
        for path in sorted((folder / "images").iterdir()):
            if not _IMAGE_NAME.fullmatch(path.name) and not is_temporary(path):
                raise InputError(f"{folder} holds 'images/{path.name}', which no sample writes; {advice}")
    for name in _JSON_FILES:
        path = folder / name
        if path.exists() and _dataset_name(path) != DATASET_NAME:
            raise InputError(f"{path} is not of a sample; {advice}")


def _dataset_name(path: Path) -> object:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return None
    return content.get("dataset") if isinstance(content, dict) else None


def _clear(folder: Path, *, images: int) -> None:
    """Take away what an earlier sample of another seed or size left; its card goes first."""
    for name in (*_JSON_FILES, "card.md"):
        (folder / name).unlink(missing_ok=True)
    wanted = {filename(index) for index in range(images)}
    for path in [*folder.iterdir(), *(folder / "images").iterdir()]:
        if is_temporary(path) or (path.parent.name == "images" and path.name not in wanted):
            path.unlink()
