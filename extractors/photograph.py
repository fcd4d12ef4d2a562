"""The bytes of an image file -> an upright 8-bit RGB photograph, or the reason why not.

What is decided here, so that every extractor sees the same pixels:
- the content decides the format, never the file's name; only the formats below are tried (some of Pillow's
  others start programs or read further files);
- a file that ends early is refused: half a photograph gives features that look right and are not;
- transparency is laid over white, animations give their first frame, 16-bit grey is scaled to 8 bits,
  CMYK is converted without a colour profile, embedded profiles are ignored (as OpenCV does).
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import InputError
from .extractor import Photograph

MAX_PIXELS = 100_000_000  # 300 MB once decoded; the largest cameras and scans of prints stay below

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

EMPTY = "empty file"
UNKNOWN_FORMAT = "not an image"
TOO_LARGE = "too many pixels"
TRUNCATED = "truncated image"
CORRUPT = "corrupt image"
UNSUPPORTED_PIXELS = "unsupported pixel type"

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PhotographError(InputError):
    """An image that cannot be used. `reason` is one of the constants above; the message may add a detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail

    def __reduce__(self) -> tuple[type[PhotographError], tuple[str, str]]:
        return PhotographError, (self.reason, self.detail)  # worker processes send it home


def read_photograph(data: bytes, *, max_pixels: int = MAX_PIXELS, exif: bool = True) -> Photograph:
    """An image file's bytes -> a Photograph; PhotographError says why not.

    The size is checked from the header, before any pixel is decoded. Nothing global is touched, so it may
    run in many threads. exif=False leaves the picture as stored (TIFF files come upright in any case).
    """
    if not data:
        raise PhotographError(EMPTY)
    with _open(data) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise PhotographError(TOO_LARGE, f"{width}x{height}, at most {max_pixels:,}")
        if width < 1 or height < 1:
            raise PhotographError(CORRUPT, f"{width}x{height}")
        try:
            image.load()
            upright = _UPRIGHT.get(_orientation(image)) if exif else None
            pixels = _rgb(image)
        except PhotographError:
            raise
        except Exception as error:  # decoders of untrusted bytes raise nearly anything
            raise _undecodable(error) from error
    if upright is not None:
        pixels = np.asarray(Image.fromarray(pixels).transpose(upright))
    return Photograph(pixels=np.ascontiguousarray(pixels))


def _open(data: bytes) -> Image.Image:
    """Image.open without its global pixel limit, which would warn or raise by settings that are not ours."""
    Image.init()
    failed: Exception | None = None
    for name in FORMATS:
        if name not in Image.OPEN:  # this build of Pillow lacks the codec
            continue
        factory, accept = Image.OPEN[name]
        claimed = accept(data[:16]) if accept else True
        if not claimed or isinstance(claimed, str):  # a string says which library is missing
            continue
        try:
            return factory(io.BytesIO(data), "")
        except Exception as error:
            failed = failed or error
    if failed is None:
        raise PhotographError(UNKNOWN_FORMAT)
    raise _undecodable(failed) from failed


def _undecodable(error: Exception) -> PhotographError:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return PhotographError(TOO_LARGE)
    if isinstance(error, MemoryError):
        return PhotographError(TOO_LARGE, "out of memory")
    ended_early = isinstance(error, (EOFError, struct.error)) or "truncated" in str(error).lower()
    return PhotographError(TRUNCATED if ended_early else CORRUPT)


def _orientation(image: Image.Image) -> int:
    """Read after loading: formats that turn the picture themselves have removed the tag by then."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata does not make the picture unusable
        return 1


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    """A loaded image of any mode -> (height, width, 3)."""
    if image.mode.startswith("I"):
        return _sixteen_bit(image)
    if image.mode == "F":
        raise PhotographError(UNSUPPORTED_PIXELS, "floating point")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _sixteen_bit(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Pillow's own conversion clips at 255 and turns such photographs white."""
    grey: npt.NDArray[Any] = np.asarray(image)
    if grey.min() < 0 or grey.max() > 65535:
        raise PhotographError(UNSUPPORTED_PIXELS, "32-bit integers")
    scaled = np.rint(grey / np.float32(257)).astype(np.uint8)  # 65535 = 255 x 257
    return np.repeat(scaled[:, :, None], 3, axis=2)
