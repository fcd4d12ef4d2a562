"""Shards behind a URL are copied once, checked, kept within bounds, and fetched ahead of their turn."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from camp.errors import InputError, StorageError, VerificationError
from camp.files import checksum_bytes
from camp.pipeline.remote_files import RemoteFiles
from camp.pipeline.shard_cache import RemoteFile, ShardCache, StoppedError

MakeWorld = Callable[..., Any]


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A storage in memory, empty."""
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    yield storage
    storage.store.clear()


def put(bucket: Any, name: str, content: bytes) -> RemoteFile:
    bucket.pipe_file(f"/bucket/{name}", content)
    return RemoteFile(name, len(content), checksum_bytes(content))


def sizes(folder: Path) -> dict[str, int]:
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a download goes on meanwhile
            if path.is_file():
                found[path.name] = path.stat().st_size
    return found


def open_cache(folder: Path, max_bytes: int = 250) -> ShardCache:
    return ShardCache(RemoteFiles("memory://bucket"), folder, max_bytes=max_bytes)


def test_a_file_is_fetched_once_and_checked(bucket: Any, tmp_path: Path) -> None:
    file = put(bucket, "a", b"x" * 100)
    cache = open_cache(tmp_path)
    assert cache.fetch(file).read_bytes() == b"x" * 100
    cache.fetch(file)
    assert cache.downloads == 1
    assert open_cache(tmp_path).fetch(file) == tmp_path / "a"  # another process finds it


def test_a_damaged_copy_is_fetched_again(bucket: Any, tmp_path: Path) -> None:
    file = put(bucket, "a", b"x" * 100)
    open_cache(tmp_path).fetch(file)
    for damage in (b"y" * 100, b"x" * 99, b""):
        (tmp_path / "a").write_bytes(damage)
        cache = open_cache(tmp_path)
        assert cache.fetch(file).read_bytes() == b"x" * 100
        assert cache.downloads == 1


def test_the_oldest_copies_make_room_but_never_those_that_are_kept(bucket: Any, tmp_path: Path) -> None:
    files = {name: put(bucket, name, name.encode() * 100) for name in "abcde"}
    cache = open_cache(tmp_path)
    cache.fetch(files["a"])
    cache.fetch(files["b"])
    for name, age in (("a", 100), ("b", 50)):
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    cache.fetch(files["c"])
    assert sizes(tmp_path) == {"b": 100, "c": 100}
    cache.keep = frozenset("b")
    cache.fetch(files["d"])
    assert sizes(tmp_path) == {"b": 100, "d": 100}
    cache.keep = frozenset("bd")
    with pytest.raises(
        InputError, match="100 bytes for e and 300 in all are needed .* may hold 250; give it more"
    ):
        cache.fetch(files["e"])
    assert sizes(tmp_path) == {"b": 100, "d": 100}


@pytest.fixture
def slow_cache(bucket: Any, tmp_path: Path) -> tuple[ShardCache, threading.Event, threading.Event]:
    """A cache whose downloads say that they began and wait until they may go on."""
    cache = open_cache(tmp_path)
    on_its_way, go_on = threading.Event(), threading.Event()
    whole = cache.remote.chunks

    def slowly(name: str) -> Iterator[bytes]:
        on_its_way.set()
        assert go_on.wait(30)
        yield from whole(name)

    cache.remote.chunks = slowly  # type: ignore[method-assign]
    return cache, on_its_way, go_on


# Two caches of one folder stand for two processes: the locks belong to open files, whoever opened them.


def test_of_two_that_want_a_file_one_fetches_it(bucket: Any, tmp_path: Path, slow_cache: Any) -> None:
    file = put(bucket, "a", b"x" * 200)
    first, on_its_way, go_on = slow_cache
    second = open_cache(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(first.fetch, file)
        assert on_its_way.wait(30)
        waiting = pool.submit(second.fetch, file)
        go_on.set()
        assert fetched.result() == waiting.result() == tmp_path / "a"
    assert (first.downloads, second.downloads) == (1, 0)


def test_room_that_somebody_is_filling_is_waited_for(bucket: Any, tmp_path: Path, slow_cache: Any) -> None:
    file, other = put(bucket, "a", b"x" * 200), put(bucket, "b", b"y" * 200)
    first, on_its_way, go_on = slow_cache
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(first.fetch, file)
        assert on_its_way.wait(30)
        assert sum(sizes(tmp_path).values()) == 200  # its room is taken before it is there
        waiting = pool.submit(open_cache(tmp_path).fetch, other)
        go_on.set()
        fetched.result()
        assert waiting.result().read_bytes() == b"y" * 200
    assert sizes(tmp_path) == {"b": 200}


def test_who_waits_for_another_can_be_stopped(bucket: Any, tmp_path: Path, slow_cache: Any) -> None:
    file = put(bucket, "a", b"x" * 200)
    first, on_its_way, go_on = slow_cache
    second = open_cache(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(first.fetch, file)
        assert on_its_way.wait(30)
        waiting = pool.submit(second.fetch, file)
        second.stop()
        with pytest.raises(StoppedError):
            waiting.result()
        go_on.set()
        fetched.result()


def test_wrong_bytes_from_afar_are_an_error_that_names_the_file(bucket: Any, tmp_path: Path) -> None:
    file = put(bucket, "a", b"x" * 100)
    bucket.pipe_file("/bucket/a", b"x" * 90 + b"y" * 10)
    with pytest.raises(
        VerificationError, match=r"memory://bucket/a: 100 bytes with checksum .* upload it again"
    ):
        open_cache(tmp_path).fetch(file)
    assert sizes(tmp_path) == {}
    bucket.rm_file("/bucket/a")
    with pytest.raises(StorageError, match="memory://bucket/a: missing; upload it again"):
        open_cache(tmp_path).fetch(file)


def test_a_connection_that_breaks_is_tried_again(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(bucket, "a", b"x" * 100)
    cache = open_cache(tmp_path)
    whole = cache.remote.chunks
    breaks = itertools.count()

    def chunks(name: str) -> Iterator[bytes]:
        for chunk in whole(name):
            yield chunk[:40]
            if next(breaks) < 2:
                raise StorageError("the line is dead")
            yield chunk[40:]

    monkeypatch.setattr(cache.remote, "chunks", chunks)
    assert cache.fetch(file).read_bytes() == b"x" * 100
    assert sizes(tmp_path) == {"a": 100}


@pytest.fixture
def remote_world(make_world: MakeWorld, bucket: Any) -> Any:
    """Four shards of eight images, and a copy of them behind a URL."""
    world = make_world(counts={"train": 32}, shard_size=8)
    for path in world.dataset.features_folder("made").iterdir():
        bucket.pipe_file(f"/bucket/features/{path.name}", path.read_bytes())
    return world


URL = "memory://bucket/features"


@pytest.mark.parametrize("shuffle", ["full", "none", "window(100, 1)", "window(4, 2)"])
def test_a_remote_loader_yields_what_a_local_one_does(
    remote_world: Any, tmp_path: Path, shuffle: str
) -> None:
    local = [batch.caption_ids.tolist() for batch in remote_world.loader(shuffle=shuffle)]
    loader = remote_world.loader(features=URL, cache=tmp_path, shuffle=shuffle, threads=2)
    assert loader.fingerprint == remote_world.loader().fingerprint
    found = []
    for batch in loader:
        remote_world.check(batch)
        found.append(batch.caption_ids.tolist())
    assert found == local
    again = remote_world.loader(features=URL, cache=tmp_path, shuffle=shuffle)
    assert [batch.caption_ids.tolist() for batch in again] == local
    assert again._rows.source.cache.downloads == 0


@pytest.mark.parametrize("shuffle", ["none", "window(100, 1)"])
def test_a_small_cache_holds_what_two_or_three_windows_need(
    remote_world: Any, tmp_path: Path, shuffle: str
) -> None:
    size = (remote_world.dataset.features_folder("made") / "train-00000.arrow").stat().st_size
    room = int(3.2 * size)
    loader = remote_world.loader(
        features=URL, cache=tmp_path, cache_bytes=room, shuffle=shuffle, batch_size=2, prefetch=1
    )
    shards = loader._rows.source.cache.folder
    for epoch in range(2):
        loader.set_epoch(epoch)
        found = []
        for batch in loader:
            remote_world.check(batch)
            found += batch.image_ids.tolist()
            assert sum(sizes(shards).values()) <= room
        assert sorted(found) == list(range(10, 42))
        assert len(loader._rows._open) <= 3
    assert 4 <= loader._rows.source.cache.downloads <= 8


def test_an_order_that_needs_more_than_the_cache_holds_says_so_at_once(
    remote_world: Any, tmp_path: Path
) -> None:
    size = (remote_world.dataset.features_folder("made") / "train-00000.arrow").stat().st_size
    loader = remote_world.loader(features=URL, cache=tmp_path, cache_bytes=2 * size)
    with pytest.raises(InputError, match=r"4 shards of .* bytes are needed at the same time.*window"):
        next(iter(loader))


def test_a_shard_that_cannot_be_fetched_is_named(remote_world: Any, bucket: Any, tmp_path: Path) -> None:
    loader = remote_world.loader(features=URL, cache=tmp_path)
    bucket.pipe_file("/bucket/features/train-00002.arrow", b"nonsense")
    with pytest.raises(VerificationError, match="train-00002.arrow: shorter than its index says"):
        remote_world.loader(features=URL, cache=tmp_path / "other")
    with pytest.raises((VerificationError, StorageError), match="memory://bucket/features/train-00002.arrow"):
        list(loader)


def test_leaving_while_a_download_hangs_ends_all_threads(
    remote_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = remote_world.loader(features=URL, cache=tmp_path, shuffle="none", threads=2)
    cache = loader._rows.source.cache
    whole, asked = cache.remote.chunks, threading.Event()

    def endless(name: str) -> Iterator[bytes]:
        if name == "train-00000.arrow":
            yield from whole(name)
            return
        while True:
            asked.set()
            yield b""

    with monkeypatch.context() as patch:
        patch.setattr(cache.remote, "chunks", endless)
        batches = iter(loader)
        next(batches)
        assert asked.wait(30)
        batches.close()
    assert list(sizes(cache.folder)) == ["train-00000.arrow"]
    assert len(list(loader)) == 7  # it goes on where it was left


def test_a_loader_whose_download_was_given_up_can_be_iterated_again(
    remote_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = remote_world.loader(features=URL, cache=tmp_path)
    files = loader._rows.source.cache.remote
    with monkeypatch.context() as patch:
        patch.setattr(files, "chunks", lambda name: iter([b"short"]))
        with pytest.raises(VerificationError, match="5 bytes with checksum"):
            next(iter(loader))
    assert len([remote_world.check(batch) for batch in loader]) == 8


def test_a_copy_that_another_process_removes_in_between_is_fetched_again(
    remote_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = remote_world.loader(features=URL, cache=tmp_path, shuffle="none")
    cache = loader._rows.source.cache
    fetch, removed = cache.fetch, itertools.count()

    def fetch_and_lose(file: RemoteFile) -> Path:
        path: Path = fetch(file)
        if next(removed) == 0:
            path.unlink()
        return path

    monkeypatch.setattr(cache, "fetch", fetch_and_lose)
    for batch in loader:
        remote_world.check(batch)
        for path in cache.folder.glob("*.arrow"):
            path.unlink()  # what is mapped stays readable
    assert cache.downloads == 5


def test_two_ranks_share_a_small_cache(remote_world: Any, tmp_path: Path) -> None:
    folder = remote_world.dataset.features_folder("made")
    room = int(3.2 * (folder / "train-00000.arrow").stat().st_size)

    def images(rank: int) -> list[int]:
        options = {"cache": tmp_path, "cache_bytes": room, "shuffle": "window(100, 1)", "prefetch": 1}
        seen = []
        with remote_world.loader(features=URL, rank=rank, world_size=2, **options) as loader:
            for epoch in range(3):
                loader.set_epoch(epoch)
                for batch in loader:
                    remote_world.check(batch)
                    seen += batch.image_ids.tolist()
        return seen

    with ThreadPoolExecutor(2) as pool:
        seen = [image for part in pool.map(images, range(2)) for image in part]
    assert sorted(seen) == sorted(3 * list(range(10, 42)))
    assert sum(sizes(next(tmp_path.iterdir()) / "shards").values()) <= room


FETCH_ALL = """
import sys
from pathlib import Path
from camp.pipeline.remote_files import RemoteFiles
from camp.pipeline.shard_cache import RemoteFile, ShardCache
url, folder, *files = sys.argv[1:]
cache = ShardCache(RemoteFiles(url), Path(folder), max_bytes=250)
for _ in range(20):
    for file in files:
        name, size, checksum = file.split()
        path = cache.fetch(RemoteFile(name, int(size), checksum))
        try:
            assert path.read_bytes() == name.encode() * 100
        except FileNotFoundError:
            pass  # the other one has just made room with it
print(cache.downloads)
"""


def test_two_processes_share_a_small_cache(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    files = []
    for name in "abcd":
        (tmp_path / "there" / name).write_bytes(name.encode() * 100)
        files.append(f"{name} 100 {checksum_bytes(name.encode() * 100)}")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH_ALL, f"file://{tmp_path}/there", str(tmp_path / "here"), *order],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in (files, files[::-1])
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert int(out) <= 80
    assert sum(sizes(tmp_path / "here").values()) <= 250


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # botocore's own
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_s3(s3_bucket: str, make_world: MakeWorld, tmp_path: Path) -> None:
    import s3fs

    world = make_world(counts={"train": 32}, shard_size=8)
    system = s3fs.S3FileSystem()
    folder = world.dataset.features_folder("made")
    for path in folder.iterdir():
        system.put_file(str(path), f"pictures/made/{path.name}")
    url = f"{s3_bucket}/made"
    local = [batch.image_ids.tolist() for batch in world.loader()]
    with world.loader(features=url, cache=tmp_path) as loader:
        found = []
        for batch in loader:
            world.check(batch)
            found.append(batch.image_ids.tolist())
    assert found == local
    damaged = bytearray((folder / "train-00001.arrow").read_bytes())
    damaged[-2000] ^= 1
    system.pipe_file("pictures/made/train-00001.arrow", bytes(damaged))
    assert len(list(world.loader(features=url, cache=tmp_path))) == 8  # the good copy is here
    with pytest.raises(VerificationError, match="s3://pictures/made/train-00001.arrow: .* upload it again"):
        list(world.loader(features=url, cache=tmp_path / "new"))


def test_a_url_without_features(bucket: Any, make_world: MakeWorld, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="memory://bucket/none: no index.json found, expected a data set's features"
    ):
        make_world().loader(features="memory://bucket/none/", cache=tmp_path)
    with pytest.raises(StorageError, match="nowhere://x"):
        make_world().loader(features="nowhere://x", cache=tmp_path)
