"""Still images read, upright and in their own depth, and refused where they hold what is not read."""

from __future__ import annotations

import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from ficgan.arrays import quiet_opencv
from ficgan.errors import InputError, reason
from ficgan.files import unreadable
from ficgan.images import MAX_PIXELS
from ficgan.images.photo import (
    CodePoints,
    Photo,
    Pixels,
    adobe_rgb,
    clean_exif,
    clean_icc,
    clean_xmp,
    named_icc,
    space_of,
    to_rgb,
    to_uint8,
)

_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "HEIF")
_GAIN_MAPS = (b"ns.adobe.com/hdr-gain-map/", b"urn:iso:std:iso:ts:21496:-1", b"aux:hdrgainmap")
_SUBFILE, _BITS, _PHOTOMETRIC, _PLANAR, _DNG = 0x00FE, 0x0102, 0x0106, 0x011C, 0xC612
_limit_lock = threading.Lock()


def read_image(path: str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS, data: bytes | None = None) -> Photo:
    """Read one still image, upright, in its own depth.

    Args:
        path: JPEG, PNG, WebP, TIFF, BMP or GIF; AVIF where Pillow can, HEIC with pillow-heif.
        max_pixels: larger images are refused from their header, before anything is decoded.
        data: the file, where it is at hand; `path` is then only its name.

    Raises:
        InputError: missing, unreadable, empty, damaged, truncated, too large, not an image, or more than one picture.
    """
    path = Path(path)
    data = _read_bytes(path, max_pixels) if data is None else data
    if not data:
        raise InputError(f"{path}: empty file")
    with _limit_lock, warnings.catch_warnings(), _limits(max_pixels):
        warnings.simplefilter("ignore")  # Pillow warns of odd EXIF and the like; what matters becomes an InputError
        try:
            return _decode(path, data, max_pixels)
        except (InputError, MemoryError):
            raise
        except Image.DecompressionBombError:
            why = f"more than {max_pixels / 1e6:g} megapixels; raise --max-megapixels or scale it down"
        except UnidentifiedImageError:
            why = "damaged or truncated, or no JPEG, PNG, WebP, TIFF, BMP, GIF, HEIC or AVIF"
            if re.match(rb"....ftyp(hei|hev|mif1|msf1)", data, re.S) and "HEIF" not in Image.OPEN:
                why = "HEIC is read with pip install 'ficgan[heif]'; or convert the file to JPEG"
        except Exception as error:  # a damaged file can raise nearly anything from a decoder
            why = f"damaged or truncated, or of a kind that cannot be decoded ({reason(error)})"
            raise InputError(f"{path}: {why}") from error
    raise InputError(f"{path}: {why}")


def _read_bytes(path: Path, max_pixels: int) -> bytes:
    if why := unreadable(path):
        raise InputError(f"{path}: {why}")
    size = path.stat().st_size
    if size > max_pixels * 8 + (64 << 20):  # 16-bit RGBA uncompressed, and room for profiles
        raise InputError(f"{path}: {size >> 20} MiB is too large for an image of {max_pixels / 1e6:g} megapixels")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error


@contextmanager
def _limits(max_pixels: int) -> Iterator[None]:
    """Pillow refuses, some formats before they allocate, what has more than twice `MAX_IMAGE_PIXELS`.

    It takes a PNG with a text or profile above `MAX_TEXT_CHUNK` (1 MiB) for damaged. All texts together have 64 MiB.
    """
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK
    Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK = before


@cache
def _known_formats() -> list[str]:
    """Those of our formats that this Pillow, and pillow-heif where it is installed, can open."""
    for name in ("Bmp", "Gif", "Jpeg", "Png", "Tiff", "WebP", "Avif"):  # Image.init() would load forty more
        with suppress(ImportError):
            import_module(f"PIL.{name}ImagePlugin")
    with suppress(ImportError):
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]

        pillow_heif.register_heif_opener()
    return [name for name in _FORMATS if name in Image.OPEN]


def _opened(data: bytes) -> Image.Image:
    if data.startswith(b"\xff\xd8"):  # `open` would refuse those whose list of further pictures (MPF) is wrong
        return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    return Image.open(io.BytesIO(data), formats=_known_formats())


def _decode(path: Path, data: bytes, max_pixels: int) -> Photo:
    if data.startswith(b"\x89PNG"):
        _opened(data).verify()  # the checksums: the decoder draws on where those of pixels are wrong
    with _opened(data) as image:
        if image.width * image.height > max_pixels:
            raise Image.DecompressionBombError
        format, notes = str(image.format), _further_pictures(path, image, data)
        if any(name in data for name in _GAIN_MAPS) or (format == "AVIF" and b"\0\0tmap" in data[:65536]):
            notes += ("its gain map is left out: bright screens show it as others do",)
        points = _code_points(path, image, data)
        options, deep, note = _coding(image, data)
        notes += note
        image.load()
        with suppress(ArithmeticError, LookupError, OSError, SyntaxError, TypeError, ValueError, struct.error):
            # A damaged EXIF block says nothing. Too little memory would leave the photo as it lies.
            ImageOps.exif_transpose(image, in_place=True)
        pixels, mode = _pixels(path, image, image)
        if deep and mode in ("RGB", "RGBA"):
            pixels, note = _pixels16(path, image, pixels, data)
            notes += note
        pixels, mode, icc, note = _colours(path, image, pixels, mode, points)
        pixels.flags.writeable = False
        exif, xmp = clean_exif(image, (pixels.shape[1], pixels.shape[0])), clean_xmp(image.info.get("xmp"))
        return Photo(path, format, mode, pixels, options, icc, exif, xmp, notes + note)


def _further_pictures(path: Path, image: Image.Image, data: bytes) -> tuple[str, ...]:
    """Refuse files of several pictures. Previews of the one picture are not carried over: a note says so."""
    count = getattr(image, "n_frames", 1)
    previews = 0
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.tag_v2.get(_SUBFILE, 0) & 1 or _DNG in image.tag_v2:
            raise InputError(f"{path}: a camera's raw file; develop it to TIFF or JPEG first")
        for number in range(1, count):
            image.seek(number)
            previews += image.tag_v2.get(_SUBFILE, 0) & 1
        image.seek(0)
    elif isinstance(image, JpegImagePlugin.JpegImageFile):
        with suppress(Exception):  # a list that makes no sense names no picture
            for entry in (image._getmp() or {}).get(0xB002, [])[1:]:
                if data.startswith(b"\xff\xd8", entry["DataOffset"] + image.info["mpoffset"]):  # it is there
                    count += 1  # "undefined" is what gain maps and depth maps call themselves
                    previews += entry["Attribute"]["MPType"].startswith(("Large Thumbnail", "Undefined"))
    if count - previews > 1:
        raise InputError(f"{path}: holds {count - previews} pictures (pages or frames); save each as a file of its own")
    return (f"{previews} embedded preview{'s' * (previews > 1)} or map left out",) if previews else ()


def _coding(image: Image.Image, data: bytes) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """Options to save it so; whether it has 16 bits a colour, of which Pillow decodes 8; notes."""
    options: dict[str, Any] = {}
    bits = 8
    dpi = image.info.get("dpi")
    if isinstance(dpi, tuple) and len(dpi) == 2 and all(1 < float(value) < 65536 for value in dpi):  # 1: not stated
        options["dpi"] = (float(dpi[0]), float(dpi[1]))
    if isinstance(image, JpegImagePlugin.JpegImageFile) and image.layers in (1, 3):
        options |= {"qtables": dict(image.quantization), "progressive": "progressive" in image.info}
        if image.layers == 3:
            # Pillow writes 4:4:4, 4:2:2 and 4:2:0; anything rarer keeps all of its chroma
            options["subsampling"] = max(JpegImagePlugin.get_sampling(image), 0)
            options["keep_rgb"] = image.info.get("adobe_transform") == 0
    elif image.format == "WEBP":
        options["lossless"] = _is_lossless_webp(data)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        found = image.tag_v2.get(_BITS, (1,))
        bits = max(found if isinstance(found, tuple) else (found,))
    elif image.format == "PNG":
        bits = data[24]
    elif image.format == "AVIF":
        pixel_format = _av1(data)[0]
        options["subsampling"] = ":".join(pixel_format[3:6]) if pixel_format.startswith("yuv4") else "4:2:0"
        bits = 10 if re.search("1[02][bl]e$", pixel_format) else 8
    elif image.format == "HEIF":
        options["chroma"], bits = image.info.get("chroma", 420), image.info.get("bit_depth", 8)
    if image.format in ("AVIF", "HEIF") and bits > 8:
        return options, False, (f"its {bits} bits a channel are read and written as 8",)
    return options, bits == 16 and not image.mode.startswith("I"), ()


def _is_lossless_webp(data: bytes) -> bool:
    at = 12
    while at + 8 <= len(data) and data[at : at + 4] not in (b"VP8L", b"VP8 "):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return data[at : at + 4] == b"VP8L"


def _av1(data: bytes) -> tuple[str, CodePoints]:
    """Pixel format, primaries and transfer of an AVIF, as its stream states them; nothing where FFmpeg cannot tell."""
    import av

    with suppress(av.FFmpegError, IndexError), av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0].codec_context
        return stream.pix_fmt or "", (int(stream.color_primaries), int(stream.color_trc))
    return "", (2, 2)


# -- pixels


def _pixels(path: Path, upright: Image.Image, source: Image.Image) -> tuple[Pixels, str]:
    mode = upright.mode
    if mode.startswith("I;16"):
        pixels = np.array(upright).astype(np.uint16)  # also from big-endian
        if isinstance(source, TiffImagePlugin.TiffImageFile):
            if source.tag_v2.get(_BITS, (16,)) != (16,):
                raise InputError(f"{path}: pixels of 12 bits; convert it to 8 or 16 bits")
            if source.tag_v2.get(_PHOTOMETRIC) == 0:  # white is zero
                pixels = 65535 - pixels
        return pixels, "L"
    if mode in ("I", "F", "LAB", "HSV"):
        raise InputError(f"{path}: pixels of type {mode} (32-bit, float or L*a*b*); convert it to 8 or 16 bits RGB")
    clear = upright.has_transparency_data  # alpha, or a palette entry or colour that stands for it
    if mode in ("1", "L", "LA", "La"):
        target = "LA" if clear else "L"
    else:
        target = "CMYK" if mode == "CMYK" else "RGBA" if clear else "RGB"
    return np.array(upright if mode == target else upright.convert(target)), target


def _pixels16(path: Path, image: Image.Image, eight: Pixels, data: bytes) -> tuple[Pixels, tuple[str, ...]]:
    """The 16-bit values behind an upright 8-bit decode [H,W,3 or 4] by Pillow, and notes."""
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PLANAR, 1) == 2:
        raise InputError(f"{path}: 16-bit colour in separate planes, which is not decoded; save it interleaved")
    bgr = None
    with quiet_opencv(), suppress(cv2.error):
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if bgr is not None and bgr.dtype == np.uint16 and bgr.shape[2:] == eight.shape[2:]:
        deep, wanted = swap_red_and_blue(bgr), eight[..., :3]  # Pillow may not tell the alpha of a transparent colour
        # OpenCV turns some files upright by itself: the position that is like the 8-bit decode is taken.
        for picture, up, across in product((deep, deep.swapaxes(0, 1)), (1, -1), (1, -1)):
            turned = picture[::up, ::across]
            if any(np.array_equal(high, wanted) for high in (turned[..., :3] >> 8, to_uint8(turned[..., :3]))):
                return np.ascontiguousarray(turned), ()
    return eight, ("16-bit values of this layout cannot be read; kept with 8 bits",)


def swap_red_and_blue(pixels: NDArray[Any]) -> NDArray[Any]:
    """RGB(A) to BGR(A) and back."""
    return np.ascontiguousarray(pixels[..., [2, 1, 0, 3][: pixels.shape[2]]])


# -- colours


def _code_points(path: Path, image: Image.Image, data: bytes) -> CodePoints | None:
    """The colours that a file names by their numbers in H.273; None where a profile or nothing tells them."""
    if image.format == "PNG":
        found = re.search(rb"\0\0\0\x04cICP(..)", data[:4096], re.S)
        return (found[1][0], found[1][1]) if found else None
    if image.format == "AVIF":
        if b"clap" in data[:65536]:
            raise InputError(f"{path}: hides a part of its picture (clean aperture); save it cropped")
        return None if image.info.get("icc_profile") else _av1(data)[1]
    names = image.info.get("nclx_profile") if not image.info.get("icc_profile") else None
    return (names["color_primaries"], names["transfer_characteristics"]) if names else None


def _colours(
    path: Path, image: Image.Image, pixels: Pixels, mode: str, points: CodePoints | None
) -> tuple[Pixels, str, bytes | None, tuple[str, ...]]:
    """Pixels, mode, profile and notes; colours of which no new face could be made become sRGB."""
    if points is not None:
        try:
            return pixels, mode, named_icc(points), ()
        except ValueError as error:
            raise InputError(f"{path}: {error} are not read; convert it to sRGB") from None
    given = image.info.get("icc_profile") or b""
    icc, notes = clean_icc(given) if given else None, tuple[str, ...]()
    try:
        space = space_of(icc or given or None)
    except ValueError:
        icc, space, notes = None, None, ("its colour profile is damaged and left out",)
    if space is not None and space.mode != {"LA": "L", "RGBA": "RGB"}.get(mode, mode):
        icc = space = None
    if mode == "CMYK":
        note = "its CMYK colours become sRGB"
        inks = to_uint8(pixels)
        colours = space.to_srgb(inks) if space else np.asarray(Image.fromarray(inks, "CMYK").convert("RGB"))
    elif space is not None and (icc is None or space.back is None):
        note = "its colours, of a profile with tables, become sRGB"
        colours = to_rgb(pixels, mode, space)
    else:
        return pixels, mode, adobe_rgb() if not given and _is_adobe_rgb(image) else icc, notes
    alpha = [to_uint8(pixels[..., -1])] if mode in ("LA", "RGBA") else []
    return np.dstack([colours, *alpha]), "RGBA" if alpha else "RGB", None, (*notes, note)


def _is_adobe_rgb(image: Image.Image) -> bool:
    """Whether EXIF says so, by the rule for cameras (DCF 2.0, optional file) or as some do."""
    try:
        exif = image.getexif()
        return exif.get_ifd(0xA005).get(1) == "R03" or exif.get_ifd(0x8769).get(0xA001) == 2
    except Exception:  # a damaged EXIF block says nothing
        return False


# -- pictures in memory

Picture: TypeAlias = NDArray[Any] | Image.Image | str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
_MODES = {(): "L", (3,): "RGB", (4,): "RGBA"}


def as_photo(image: Any, *, bgr: bool = False) -> Photo:
    """A photo of what was given; its pixels are those of the array, not a copy.

    Args:
        image: array [H,W], [H,W,3] or [H,W,4], uint8 or uint16; a PIL image, turned upright; or a photo's file: its
            path, its bytes, or an open one, such as `io.BytesIO`, which is read from its beginning.
        bgr: an array's channels are in the order of OpenCV.
    """
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    if hasattr(image, "read") and not isinstance(image, Image.Image):
        if image.seekable():
            image.seek(0)  # as Pillow does
        image = image.read()
    if isinstance(image, bytes | bytearray | memoryview):
        return read_image("image", data=bytes(image))
    icc = None
    if isinstance(image, Image.Image):
        pixels, mode = _pixels(Path("image"), ImageOps.exif_transpose(image), image)
        image, mode, icc, _ = _colours(Path("image"), image, pixels, mode, None)
        image = image[..., [0, 0, 0, 1]] if mode == "LA" else image
    array = isinstance(image, np.ndarray) and image.dtype in (np.uint8, np.uint16) and image.ndim > 1 and image.size
    mode = _MODES.get(image.shape[2:], "") if array else ""
    if not mode:
        given = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(
            "An image must be an array H×W×3 (RGB), H×W×4 (RGBA) or H×W (grey) of uint8 or uint16, a PIL image, a "
            f"path or a file's bytes, got {given}: convert it first."
        )
    if bgr and mode != "L":
        image = swap_red_and_blue(image)
    return Photo(Path("image"), "PNG", mode, image, icc=icc)
