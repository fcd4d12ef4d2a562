"""Every kind of file that turns up among photographs: right pixels, or one stable reason."""

from __future__ import annotations

import io
import pickle
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from camp.errors import InputError
from camp.extractors import photograph as decoding
from camp.extractors.extractor import Photograph
from camp.extractors.photograph import PhotographError, read_photograph

WIDTH, HEIGHT = 40, 30


def gradient(width: int = WIDTH, height: int = HEIGHT) -> npt.NDArray[np.uint8]:
    x = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    y = np.linspace(255, 0, height)[:, None].repeat(width, 1)
    return np.stack([x, y, (x + y) / 2], axis=2).astype(np.uint8)


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def jpeg(pixels: npt.NDArray[np.uint8] | None = None, **options: Any) -> bytes:
    return encode(Image.fromarray(gradient() if pixels is None else pixels), "JPEG", quality=95, **options)


def reason_of(data: bytes, **options: Any) -> str:
    with pytest.raises(PhotographError) as caught:
        read_photograph(data, **options)
    return caught.value.reason


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_keep_every_pixel(format: str) -> None:
    found = read_photograph(encode(Image.fromarray(gradient()), format))
    assert np.array_equal(found.pixels, gradient())
    assert (found.width, found.height) == (WIDTH, HEIGHT)
    assert found.pixels.flags.c_contiguous


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_lossy_formats_come_close(format: str) -> None:
    found = read_photograph(encode(Image.fromarray(gradient()), format, quality=95))
    assert np.abs(found.pixels.astype(int) - gradient()).mean() < 4


def test_a_jpeg_equals_pillows_own_decoding() -> None:
    data = jpeg()
    assert np.array_equal(read_photograph(data).pixels, np.asarray(Image.open(io.BytesIO(data))))


def test_grey_and_bilevel_become_three_equal_channels() -> None:
    grey = Image.fromarray(gradient()).convert("L")
    for data in (encode(grey, "JPEG", quality=95), encode(grey.convert("1"), "PNG")):
        pixels = read_photograph(data).pixels
        assert pixels.shape == (HEIGHT, WIDTH, 3)
        assert (pixels == pixels[:, :, :1]).all()


def test_cmyk_keeps_its_colours() -> None:
    red = np.full((HEIGHT, WIDTH, 3), (220, 30, 30), np.uint8)
    found = read_photograph(encode(Image.fromarray(red).convert("CMYK"), "JPEG", quality=95))
    assert np.abs(found.pixels.astype(int) - red).max() < 12


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled_not_clipped(format: str) -> None:
    values = np.linspace(0, 65535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
    found = read_photograph(encode(Image.fromarray(values), format)).pixels
    assert np.abs(found[:, :, 0].astype(float) - values / 257).max() <= 0.51
    assert (found == found[:, :, :1]).all()


def test_sixteen_bit_colour_is_scaled() -> None:
    values = gradient().astype(np.uint16) * 257
    found = read_photograph(sixteen_bit_rgb_png(values)).pixels
    assert np.abs(found.astype(int) - gradient()).max() <= 1


def sixteen_bit_rgb_png(values: npt.NDArray[np.uint16]) -> bytes:
    """Pillow does not write these."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png_of(rows, width=width, height=height)


def png_of(rows: bytes, *, width: int, height: int) -> bytes:
    """The bytes of 16-bit colour rows, too few of them if need be -> a PNG file of that size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_thirty_two_bit_pixels_are_refused() -> None:
    integers = Image.fromarray(np.full((4, 4), 1_000_000, np.int32))
    floats = Image.fromarray(np.full((4, 4), 0.5, np.float32))
    for image in (integers, floats):
        assert reason_of(encode(image, "TIFF")) == decoding.UNSUPPORTED_PIXELS


def test_transparency_lies_over_white() -> None:
    layer = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    layer[:, : WIDTH // 2] = (200, 0, 0, 255)  # the right half is transparent black
    layer[0, 0] = (0, 0, 0, 128)
    pixels = read_photograph(encode(Image.fromarray(layer), "PNG")).pixels
    assert (pixels[5, 3] == (200, 0, 0)).all()
    assert (pixels[5, WIDTH - 1] == 255).all()
    assert (pixels[0, 0] == 127).all()


@pytest.mark.parametrize("transparency", [0, b"\x00\xff\x80"])
def test_palette_with_alpha(transparency: int | bytes) -> None:
    image = Image.new("P", (WIDTH, HEIGHT), 1)
    image.putpalette([10, 20, 30, 40, 160, 80, 0, 0, 0])
    image.paste(0, (0, 0, 10, HEIGHT))
    pixels = read_photograph(encode(image, "PNG", transparency=transparency)).pixels
    assert (pixels[5, 5] == 255).all()
    assert (pixels[5, 20] == (40, 160, 80)).all()


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_an_animation_gives_its_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    data = encode(frames[0], format, save_all=True, append_images=frames[1:], duration=40)
    pixels = read_photograph(data).pixels
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert pixels[5, 5, 0] > 240
    assert pixels[5, 5, 1:].max() < 10


@pytest.mark.parametrize("format", ["JPEG", "TIFF", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_stands_the_picture_up(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = Image.fromarray(gradient())
    stored_as = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transposition that undoes each
    stored = upright.transpose(Image.Transpose(stored_as[orientation])) if orientation > 1 else upright
    data = encode(stored, format, exif=exif, **({"quality": 95} if format == "JPEG" else {}))
    found = read_photograph(data)
    assert (found.width, found.height) == (WIDTH, HEIGHT)
    assert np.abs(found.pixels.astype(int) - gradient()).mean() < 4
    if format != "TIFF":
        as_stored = read_photograph(data, exif=False)
        assert (as_stored.width, as_stored.height) == stored.size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_leaves_the_picture_as_it_is() -> None:
    data = jpeg(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05garbage")
    assert np.array_equal(read_photograph(data).pixels, np.asarray(Image.open(io.BytesIO(jpeg()))))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1)])
def test_extreme_shapes_are_photographs_too(width: int, height: int) -> None:
    found = read_photograph(jpeg(gradient(width, height)))
    assert (found.width, found.height) == (width, height)


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: ImageFile.ImageFile) -> None:
        raise AssertionError("decoded")

    data = png_of(b"", width=20_000, height=20_000)
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    with pytest.raises(PhotographError, match="too many pixels: 20000x20000, at most 100,000,000"):
        read_photograph(data)


def test_the_limit_is_inclusive_and_pillows_own_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow alone would refuse
    assert read_photograph(jpeg(), max_pixels=WIDTH * HEIGHT).width == WIDTH
    assert reason_of(jpeg(), max_pixels=WIDTH * HEIGHT - 1) == decoding.TOO_LARGE


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_ends_early_is_refused(format: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), format)
    assert reason_of(data[: int(share * len(data))]) in (decoding.TRUNCATED, decoding.CORRUPT)


def test_a_truncated_jpeg_is_called_so() -> None:
    data = jpeg(gradient(200, 200))
    assert reason_of(data[: len(data) // 2]) == decoding.TRUNCATED


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", decoding.EMPTY),
        (b"\0" * 4096, decoding.UNKNOWN_FORMAT),
        (b"A text file called photo.jpg.\n" * 10, decoding.UNKNOWN_FORMAT),
        (b"<html><body>404</body></html>", decoding.UNKNOWN_FORMAT),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", decoding.UNKNOWN_FORMAT),
        (b"\xff\xd8\xff\xe0", decoding.CORRUPT),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 30, decoding.CORRUPT),
    ],
)
def test_what_is_no_image_says_why(data: bytes, reason: str) -> None:
    found = reason_of(data)
    assert found == reason or {found, reason} <= {decoding.CORRUPT, decoding.TRUNCATED}


def test_the_error_is_input_and_survives_a_process_boundary() -> None:
    error = PhotographError(decoding.TOO_LARGE, "9x9")
    assert isinstance(error, InputError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, str(again)) == (decoding.TOO_LARGE, "too many pixels: 9x9")


@settings(max_examples=150)
@given(
    source=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"]),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=12),
    cut=st.integers(0, 2000),
)
def test_damaged_bytes_give_a_photograph_or_a_reason(
    source: str, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(_SOURCES[source])
    for place, value in changes:
        data[place % len(data)] = value
    outcome = outcome_of(bytes(data[: max(cut, 20)]))
    if isinstance(outcome, PhotographError):
        assert outcome.reason in _REASONS
    else:
        assert outcome.pixels.dtype == np.uint8
        assert outcome.pixels.shape == (outcome.height, outcome.width, 3)


def outcome_of(data: bytes) -> Photograph | PhotographError:
    try:
        return read_photograph(data, max_pixels=1_000_000)
    except PhotographError as error:
        return error


_SOURCES = {
    source: encode(Image.fromarray(gradient(24, 18)), source)
    for source in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
}
_REASONS = {
    decoding.UNKNOWN_FORMAT,
    decoding.TOO_LARGE,
    decoding.TRUNCATED,
    decoding.CORRUPT,
    decoding.UNSUPPORTED_PIXELS,
}


def test_threads_do_not_disturb_each_other_or_pillow() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    good, bad = jpeg(gradient(300, 200)), jpeg(gradient(300, 200))[:3000]
    wrong: list[str] = []

    def work(read: Callable[[], None]) -> None:
        for _ in range(20):
            read()

    def read_good() -> None:
        if read_photograph(good).width != 300:
            wrong.append("good")

    def read_bad() -> None:
        if reason_of(bad) != decoding.TRUNCATED:
            wrong.append("bad")

    threads = [threading.Thread(target=work, args=(read,)) for read in (read_good, read_bad, read_good)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    after = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    assert after == before


def test_real_photographs_equal_pillows_decoding(shared_data: Path) -> None:
    paths = sorted((shared_data / "bottomup" / "images").glob("*.jpg"))
    assert paths
    for path in paths[:4]:
        found = read_photograph(path.read_bytes())
        assert np.array_equal(found.pixels, np.asarray(Image.open(path).convert("RGB")))
