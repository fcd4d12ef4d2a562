"""Weight files by path or URL: verified, fetched once, continued where a download stopped."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from camp.errors import InputError, StorageError
from camp.extractors import weights_file
from camp.extractors.build import build_extractor
from camp.extractors.weights_file import fetch, local_weights

CONTENT = bytes(range(256)) * 12_000  # 3 MB: several pieces
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    url: str
    ranges: bool = True  # whether it can continue
    cut_after: int | None = None  # ends the connection there
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if self.path != "/model.pth":
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start >= len(CONTENT):
                self.send_error(416)
                return
            body = CONTENT[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut_after])

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(url=f"http://127.0.0.1:{listener.server_port}/model.pth")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAMP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_url_is_fetched_once(server: Server, cache: Path) -> None:
    first = local_weights(server.url, sha256=SHA256)
    assert first.read_bytes() == CONTENT
    assert first.is_relative_to(cache)
    assert first.name.endswith("model.pth")
    assert local_weights(server.url, sha256=SHA256.upper()) == first
    assert server.asked == [None]


def test_a_cut_download_continues_where_it_stopped(server: Server) -> None:
    server.cut_after = 1_000_000
    with pytest.raises(StorageError, match=r"1,000,000 of 3,072,000 bytes; run the same command again"):
        local_weights(server.url, sha256=SHA256)
    server.cut_after = None
    assert local_weights(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000000-"]


def test_a_server_that_cannot_continue_starts_again(server: Server) -> None:
    server.cut_after = 1_000_000
    with pytest.raises(StorageError):
        local_weights(server.url, sha256=SHA256)
    server.cut_after, server.ranges = None, False
    assert local_weights(server.url, sha256=SHA256).read_bytes() == CONTENT


def test_killed_between_the_last_byte_and_the_rename(server: Server, cache: Path) -> None:
    part = cache / "weights" / f"{SHA256[:16]}-model.pth.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert local_weights(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_another_checksum_discards_the_copy(server: Server, cache: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(InputError, match=f"sha256 {SHA256}, expected {wrong}; the copy was discarded"):
        local_weights(server.url, sha256=wrong)
    assert [
        path.name for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock")
    ] == []


def test_a_cached_file_that_rotted_is_noticed(server: Server) -> None:
    path = local_weights(server.url, sha256=SHA256)
    path.write_bytes(b"rot")
    with pytest.raises(InputError, match="the copy was discarded"):
        local_weights(server.url, sha256=SHA256)
    assert local_weights(server.url, sha256=SHA256).read_bytes() == CONTENT


def test_a_dead_link_says_how_to_go_on(server: Server) -> None:
    dead = server.url.replace("model.pth", "faster_rcnn_from_caffe.pkl")
    with pytest.raises(InputError) as caught:
        local_weights(dead, sha256=SHA256)
    message = str(caught.value)
    assert "404 Not Found" in message
    assert "also been published at https://nlp.cs.unc.edu/models/faster_rcnn_from_caffe.pkl" in message
    assert "pass --weights FILE" in message


def test_nobody_listening(server: Server) -> None:
    with pytest.raises(InputError, match=r"cannot be fetched .*; or get the file another way"):
        local_weights("http://127.0.0.1:1/model.pth", sha256=SHA256)
    with pytest.raises(InputError, match="cannot be fetched"):
        local_weights("nonsense://model.pth", sha256=SHA256)


def test_a_url_needs_its_checksum(server: Server) -> None:
    with pytest.raises(InputError, match="a URL needs --sha256"):
        local_weights(server.url)
    with pytest.raises(InputError, match="expected 64 hex digits"):
        local_weights(server.url, sha256="abc")
    assert server.asked == []


def test_paths_are_used_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "own.pth"
    path.write_bytes(CONTENT)
    assert local_weights(path) == path
    assert local_weights(str(path), sha256=SHA256) == path
    with pytest.raises(InputError, match="check the file and the checksum"):
        local_weights(path, sha256="1" * 64)
    assert path.exists()  # a file of the user's is never removed
    with pytest.raises(InputError, match=r"gone\.pth: no such weight file"):
        local_weights(tmp_path / "gone.pth")


def test_workers_that_start_together_fetch_once(server: Server) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(local_weights(server.url, sha256=SHA256)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert server.asked == [None]


def test_a_prefix_is_enough_where_the_name_carries_it(server: Server) -> None:
    assert fetch(server.url, sha256=SHA256[:8]).read_bytes() == CONTENT


def test_torchvisions_own_weights_go_the_same_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unreachable(url: str, *, sha256: str) -> Path:
        asked.append(sha256)
        raise weights_file._dead(url, "no network")

    monkeypatch.setattr("camp.extractors.torchvision_weights.fetch", unreachable)
    with pytest.raises(
        InputError, match=r"resnet18-f37072fd\.pth: cannot be fetched \(no network\).*--weights FILE"
    ):
        build_extractor("grid:resnet18", weights="DEFAULT")
    assert asked == ["f37072fd"]


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CAMP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights_file.cache_folder() == tmp_path / "camp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights_file.cache_folder() == Path.home() / ".cache" / "camp"
