"""A path, or a URL with its sha256 -> a verified file on this machine, fetched once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from ..errors import InputError, StorageError
from ..files import publish, storage_errors
from ..progress import ProgressFactory, no_progress

TIMEOUT_SECONDS = 30.0  # without a byte; a slow download may take as long as it needs
_CHUNK_BYTES = 1 << 20

_UNC = "nlp.cs.unc.edu/models"
_MILVLG = "https://awma1-my.sharepoint.com/:u:/g/personal/yuz_l0_tn"
_BUA = "bua-caffe-frcn-r101_with_attributes.pth"
_OTHER_PORT = f"https://vln-r2r.s3.amazonaws.com/{_BUA}"

# Where files that many people look for have been published. The links were never stable: hence several.
MIRRORS: dict[str, tuple[str, ...]] = {
    **{
        name: (
            f"https://{_UNC}/{name}",
            f"http://{_UNC}/{name}",
            f"{_OTHER_PORT} (another port of the same detector, which vg-r101-c4 reads as well)",
        )
        for name in ("faster_rcnn_from_caffe.pkl", "faster_rcnn_from_caffe_attr.pkl")
    },
    _BUA: (_OTHER_PORT, f"{_MILVLG}/EaXvCC3WjtlLvvEfLr3oa8UBLA21tcLh4L8YLbYXl6jgjg?download=1"),
    "bua-caffe-frcn-r101-k36.pth": (f"{_MILVLG}/EUKhQ3hSRv9JrrW64qpNLSIBGoOjEGCkF8zvgBP9gKax-w?download=1",),
}


def cache_folder() -> Path:
    """Where fetched and converted files are kept: CAMP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("CAMP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "camp"


def sha256_file(path: Path) -> str:
    """A file -> its sha256 in hex, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def local_weights(
    source: str | Path, *, sha256: str | None = None, progress: ProgressFactory = no_progress
) -> Path:
    """A file's path, or a URL with its sha256 -> a local file whose checksum has been checked.

    A URL is fetched once into the cache; an interrupted download continues where it stopped.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise InputError(f"--sha256 {sha256!r}: expected 64 hex digits, as 'sha256sum FILE' prints them")
    text = str(source)
    if "://" in text:
        if sha256 is None:
            raise InputError(f"{text}: a URL needs --sha256, so that a damaged or swapped file is noticed")
        return fetch(text, sha256=sha256, progress=progress)
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"{path}: no such weight file{_known_addresses(path.name)}")
    if sha256 is not None:
        _check(path, sha256, source=text)
    return path


def fetch(url: str, *, sha256: str, progress: ProgressFactory = no_progress) -> Path:
    """A URL -> its file in the cache. sha256 may be its first digits, as in torchvision's names."""
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name or "weights"
    sha256 = sha256.lower()
    path = cache_folder() / "weights" / f"{sha256[:16]}-{name}"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path):
            if not path.exists():
                part = path.with_name(f"{path.name}.part")
                _download(url, part, progress=progress)
                _check(part, sha256, source=url, discard=True)
                publish(part, path)
            _check(path, sha256, source=url, discard=True)
    return path


def _download(url: str, part: Path, *, progress: ProgressFactory) -> None:
    """Append what is missing of a URL to a partial file."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "camp-toolkit"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            resumed = getattr(response, "status", 200) == 206
            length = response.headers.get("Content-Length")
            total = int(length) + (have if resumed else 0) if length else None
            with (
                part.open("ab" if resumed else "wb") as stream,
                progress(f"fetching {part.name.removesuffix('.part')}", total, "bytes") as bar,
            ):
                bar.advance(have if resumed else 0)
                while chunk := response.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    bar.advance(len(chunk))
                stream.flush()
                os.fsync(stream.fileno())
            received = part.stat().st_size
            if total is not None and received < total:
                raise StorageError(
                    f"{url}: the connection ended after {received:,} of {total:,} bytes; "
                    "run the same command again to continue"
                )
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, with its connection
        if error.code == 416 and have:  # the range is past the end: everything was here already
            return
        raise _dead(url, f"{error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _dead(url, str(error.reason)) from None
    except ValueError as error:  # an address urllib does not understand
        raise _dead(url, str(error)) from None
    except (TimeoutError, ConnectionError, HTTPException) as error:
        raise StorageError(
            f"{url}: the connection was lost ({error}); run the same command again to continue"
        ) from None


def _dead(url: str, why: str) -> InputError:
    name = Path(urllib.parse.urlsplit(url).path).name
    return InputError(
        f"{url}: cannot be fetched ({why}){_known_addresses(name, but=url)}; "
        "or get the file another way and pass --weights FILE"
    )


def _known_addresses(name: str, *, but: str = "") -> str:
    addresses = [address for address in MIRRORS.get(name, ()) if address != but]
    return f"; it has also been published at {' and '.join(addresses)}" if addresses else ""


def _check(path: Path, expected: str, *, source: str, discard: bool = False) -> None:
    found = sha256_file(path)
    if found.startswith(expected.lower()):
        return
    if discard:
        path.unlink()
        raise InputError(
            f"{source}: sha256 {found}, expected {expected}; the copy was discarded: "
            "check the address and the checksum, then run the command again"
        )
    raise InputError(f"{source}: sha256 {found}, expected {expected}; check the file and the checksum")


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Workers that start together wait for the first one's download."""
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
