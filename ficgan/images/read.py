"""Reading still images: what may be read, how large, and into which pixels."""

from __future__ import annotations

import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from ficgan.errors import InputError
from ficgan.images import heif
from ficgan.images.colour import Pixels, colours_of, to_uint8
from ficgan.images.formats import MAX_PIXELS
from ficgan.images.icc import clean_icc
from ficgan.images.photo import Photo, clean_exif, clean_xmp

__all__ = ["PNG_SIGNATURE", "Picture", "as_photo", "png_chunks", "read_image", "swap_red_and_blue"]


_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "HEIF")
_MAGIC = re.compile(rb"\xff\xd8|\x89PNG|RIFF....WEBP|II\*\0|MM\0\*|II\+\0|MM\0\+|BM|GIF8|....ftyp(avif|hei|mif)", re.S)
# What a PNG says of its colours, in so many bytes.
_COLOUR_CHUNKS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"cICP": 4, b"cLLI": 8, b"mDCV": 24}
_HDR10 = ("content_light_level", "mastering_display_colour_volume", "ambient_viewing_environment")
_GAIN_MAPS = (b"ns.adobe.com/hdr-gain-map/", b"urn:iso:std:iso:ts:21496:-1", b"aux:hdrgainmap")
# EXIF's orientation → what turns the image upright: for Pillow; for arrays a transposition, then steps in y and x.
_TURNS = {
    2: (Image.Transpose.FLIP_LEFT_RIGHT, False, 1, -1),
    3: (Image.Transpose.ROTATE_180, False, -1, -1),
    4: (Image.Transpose.FLIP_TOP_BOTTOM, False, -1, 1),
    5: (Image.Transpose.TRANSPOSE, True, 1, 1),
    6: (Image.Transpose.ROTATE_270, True, 1, -1),
    7: (Image.Transpose.TRANSVERSE, True, -1, -1),
    8: (Image.Transpose.ROTATE_90, True, -1, 1),
}
_ORIENTATION, _SUBFILE, _BITS, _PHOTOMETRIC, _PLANAR, _DNG = 0x0112, 0x00FE, 0x0102, 0x0106, 0x011C, 0xC612
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
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
    too_large = f"{path}: more than {max_pixels / 1e6:g} megapixels; raise --max-megapixels or scale it down"
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
            raise InputError(too_large) from None
        except UnidentifiedImageError:
            raise _unidentified(path, data) from None
        except Exception as error:  # a damaged file can raise nearly anything from a decoder
            detail = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{path}: damaged or truncated, or of a kind that cannot be decoded ({detail})") from error


def _read_bytes(path: Path, max_pixels: int) -> bytes:
    limit = max_pixels * 8 + (64 << 20)  # 16-bit RGBA uncompressed, and room for profiles
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        size = path.stat().st_size
        if size > limit:
            raise InputError(f"{path}: {size >> 20} MiB is too large for an image of {max_pixels / 1e6:g} megapixels")
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return data


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


def _decode(path: Path, data: bytes, max_pixels: int) -> Photo:
    if data.startswith(PNG_SIGNATURE):
        _opened(data).verify()  # the checksums: the decoder draws on where those of pixels are wrong
    with _opened(data) as image:
        if image.width * image.height > max_pixels:
            raise Image.DecompressionBombError
        format, notes = str(image.format), _single_picture(path, image, data)
        boxes = heif.properties(data) if format in ("AVIF", "HEIF") else {}
        chunks = {name: content for name, content in png_chunks(data) if _COLOUR_CHUNKS.get(name) == len(content)}
        notes += tuple(_lost(format, boxes, data))
        orientation = _orientation(image)
        options = _coding(image, data, boxes)
        deep = options.pop("deep", False)
        if deep and format == "HEIF":
            pixels, mode = _heif16(path, data)
        else:
            image.load()
            upright: Image.Image = image
            if format == "AVIF" and b"clap" in boxes:  # Pillow shows what it hides
                upright = upright.crop(heif.clean_aperture(boxes[b"clap"][0], image.size))
            if orientation in _TURNS and format != "TIFF":  # Pillow turns TIFF itself
                upright = upright.transpose(_TURNS[orientation][0])
            pixels, mode, note = _pixels16(path, upright, data, orientation) if deep else _pixels(path, upright, image)
            notes += note
        pixels.flags.writeable = False
        icc, cicp, note = colours_of(path, image, data, boxes, chunks)
        exif, xmp = clean_exif(image, (pixels.shape[1], pixels.shape[0])), clean_xmp(image.info.get("xmp"))
        return Photo(path, format, mode, pixels, options, icc, cicp, exif, xmp, tuple(chunks.items()), (*notes, *note))


def _lost(format: str, boxes: Mapping[bytes, list[bytes]], data: bytes) -> Iterator[str]:
    """What is not carried over, a sentence each."""
    if _av1(boxes) & 0x40:
        yield "its 10 or 12 bits a channel are read and written as 8"
    if boxes.keys() & ({b"clli", b"mdcv", b"amve", b"cclv"} if format == "AVIF" else {b"cclv"}):
        yield "what it says of its brightest light (HDR10) is left out"
    if any(name in data for name in _GAIN_MAPS) or (boxes and re.search(rb"infe[\2\3].{7,9}tmap", data, re.S)):
        yield "its gain map is left out: bright screens show it as others do"


def _opened(data: bytes) -> Image.Image:
    if data.startswith(b"\xff\xd8"):  # `open` would refuse those whose list of further pictures (MPF) is wrong
        return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    return Image.open(io.BytesIO(data), formats=_known_formats())


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF block says nothing about the orientation
        return 1


def _single_picture(path: Path, image: Image.Image, data: bytes) -> tuple[str, ...]:
    """Refuse files of several pictures. Previews of the one picture are not carried over: a note says so."""
    count = getattr(image, "n_frames", 1)
    previews = 0
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if image.tag_v2.get(_SUBFILE, 0) & 1 or _DNG in image.tag_v2:
            raise InputError(f"{path}: a camera's raw file; develop it to TIFF or JPEG first")
        for page in range(1, count):
            image.seek(page)
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


def _coding(image: Image.Image, data: bytes, boxes: Mapping[bytes, list[bytes]]) -> dict[str, Any]:
    """How the file is coded, as options to save it; `deep` marks more bits a colour than the 8 that Pillow decodes."""
    options: dict[str, Any] = {}
    dpi = image.info.get("dpi")
    if isinstance(dpi, tuple) and len(dpi) == 2 and all(1 < float(value) < 65536 for value in dpi):  # 1: not stated
        options["dpi"] = (float(dpi[0]), float(dpi[1]))
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        options.update(_jpeg_coding(image))
    elif image.format == "WEBP":
        options["lossless"] = _is_lossless_webp(data)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        options["compression"] = str(image.info.get("compression", "raw"))
        bits = image.tag_v2.get(_BITS, (1,))
        options["deep"] = max(bits if isinstance(bits, tuple) else (bits,)) == 16 and not image.mode.startswith("I")
    elif image.format == "PNG":
        header: Mapping[bytes, bytes] = dict(png_chunks(data))
        options["deep"] = header[b"IHDR"][8] == 16 and image.mode != "I;16"
    elif image.format == "AVIF":
        subsampled = {0: "4:4:4", 0x08: "4:2:2", 0x1C: "4:0:0"}
        options["subsampling"] = subsampled.get(_av1(boxes) & 0x1C, "4:2:0")
    elif image.format == "HEIF":
        options |= {name: image.info[name] for name in ("chroma", "bit_depth", *_HDR10) if image.info.get(name)}
        options["deep"] = options["bit_depth"] > 8 and not image.mode.startswith("I")
    return options


def _av1(boxes: Mapping[bytes, list[bytes]]) -> int:
    """Bits of an AVIF: more than 8 a channel 0x40, grey 0x10, chroma halved in x 0x08, in y 0x04."""
    return boxes.get(b"av1C", [b"\0\0\x0c"])[0][2]


def _jpeg_coding(image: JpegImagePlugin.JpegImageFile) -> dict[str, Any]:
    options: dict[str, Any] = {"qtables": dict(image.quantization)}
    if image.layers == 3:
        # Pillow writes 4:4:4, 4:2:2 and 4:2:0; anything rarer keeps all of its chroma
        options["subsampling"] = max(JpegImagePlugin.get_sampling(image), 0)
        if image.info.get("adobe_transform") == 0:
            options["keep_rgb"] = True
    if image.info.get("progressive") or image.info.get("progression"):
        options["progressive"] = True
    return options


def _is_lossless_webp(data: bytes) -> bool:
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name in (b"VP8L", b"VP8 "):
            return name == b"VP8L"
        at += 8 + size + size % 2
    return False


def _pixels(path: Path, upright: Image.Image, source: Image.Image) -> tuple[Pixels, str, tuple[str, ...]]:
    mode = upright.mode
    if mode.startswith("I;16"):
        pixels = np.array(upright).astype(np.uint16)  # also from big-endian
        if isinstance(source, TiffImagePlugin.TiffImageFile):
            bits = source.tag_v2.get(_BITS, (16,))
            if bits == (12,):
                pixels <<= 4
            if source.tag_v2.get(_PHOTOMETRIC) == 0:  # white is zero
                pixels = 65535 - pixels
        if isinstance(key := source.info.get("transparency"), int):  # of a PNG: the grey that stands for nothing
            return np.dstack([pixels, np.where(pixels == key, 0, 65535).astype(np.uint16)]), "LA", ()
        return pixels, "L", ()
    if mode in ("I", "F", "LAB", "HSV"):
        raise InputError(f"{path}: pixels of type {mode} (32-bit, float or L*a*b*); convert it to 8 or 16 bits RGB")
    clear = upright.has_transparency_data  # alpha, or a palette entry or colour that stands for it
    if mode in ("1", "L", "LA", "La"):
        target = "LA" if clear else "L"
    else:
        target = "CMYK" if mode == "CMYK" else "RGBA" if clear else "RGB"
    return np.array(upright if mode == target else upright.convert(target)), target, ()


def _pixels16(path: Path, upright: Image.Image, data: bytes, orientation: int) -> tuple[Pixels, str, tuple[str, ...]]:
    if isinstance(upright, TiffImagePlugin.TiffImageFile) and upright.tag_v2.get(_PLANAR, 1) == 2:
        raise InputError(f"{path}: 16-bit colour in separate planes, which is not decoded; save it interleaved")
    eight, mode, _ = _pixels(path, upright, upright)
    deep = _decode16(data, eight.astype(np.uint8, copy=False), orientation) if mode in ("RGB", "RGBA") else None
    if deep is None:
        return eight, mode, ("16-bit values of this layout cannot be read; kept with 8 bits",)
    return deep, mode, ()


def _heif16(path: Path, data: bytes) -> tuple[Pixels, str]:
    """The 10 or 12 bits of a HEIC in the upper ones of 16."""
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]

    deep = pillow_heif.open_heif(data, convert_hdr_to_8bit=False)
    mode = deep.mode.removesuffix(";16")
    if mode not in ("RGB", "RGBA"):
        raise InputError(f"{path}: pixels of type {deep.mode}; convert it to 8 or 16 bits RGB")
    return np.array(deep), mode


def _decode16(data: bytes, eight: NDArray[np.uint8], orientation: int) -> NDArray[np.uint16] | None:
    """The 16-bit values behind an 8-bit decode; None where OpenCV reads the file differently.

    OpenCV turns some files upright by itself, depending on version and format. The 8-bit decode tells which it did.

    `eight` [H,W,3 or 4] is the upright image as Pillow decodes it (the high bytes).
    """
    import cv2

    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    finally:
        cv2.utils.logging.setLogLevel(level)
    if bgr is None or bgr.dtype != np.uint16 or bgr.ndim != 3 or bgr.shape[2] != eight.shape[2]:
        return None
    deep = np.ascontiguousarray(swap_red_and_blue(bgr))
    _, transposed, step_y, step_x = _TURNS.get(orientation, (None, False, 1, 1))
    turned = (deep.swapaxes(0, 1) if transposed else deep)[::step_y, ::step_x]
    for candidate in (deep, turned):  # of a PNG with a transparent colour Pillow does not tell the alpha
        high, wanted = candidate[..., :3], eight[..., :3]
        if candidate.shape == eight.shape and (
            np.array_equal(high >> 8, wanted) or np.array_equal(to_uint8(high), wanted)
        ):
            return np.ascontiguousarray(candidate)
    return None


def swap_red_and_blue(pixels: NDArray[Any]) -> NDArray[Any]:
    """RGB(A) to BGR(A) and back."""
    return pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of every chunk of a PNG up to its image data; nothing for other files."""
    if not data.startswith(PNG_SIGNATURE):
        return
    at = len(PNG_SIGNATURE)
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">L4s", data, at)
        if name == b"IDAT":
            return
        yield name, data[at + 8 : at + 8 + length]
        at += length + 12


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


def _unidentified(path: Path, data: bytes) -> InputError:
    if re.match(rb"....ftyp(hei|hev|mif1|msf1)", data, re.S) and "HEIF" not in Image.OPEN:
        return InputError(f"{path}: HEIC is read with pip install 'ficgan[heif]'; or convert the file to JPEG")
    if re.match(rb"....ftypavi[fs]", data, re.S) and "AVIF" not in Image.OPEN:
        return InputError(f"{path}: this Pillow reads no AVIF; upgrade it, or convert the file to PNG")
    if _MAGIC.match(data):
        return InputError(f"{path}: damaged or truncated image")
    return InputError(f"{path}: not an image that ficgan reads (JPEG, PNG, WebP, TIFF, BMP, GIF, HEIC, AVIF)")


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
            image.seek(0)  # as Pillow does: whoever has just written it is at its end
        image = image.read()
    if isinstance(image, bytes | bytearray | memoryview):
        return read_image("image", data=bytes(image))
    icc = None
    if not isinstance(image, np.ndarray):
        icc = clean_icc(getattr(image, "info", {}).get("icc_profile") or b"")
        image = _from_pil(image)
    mode = _MODES.get(image.shape[2:]) if image.ndim in (2, 3) else None
    if mode is None or image.dtype not in (np.uint8, np.uint16):
        raise InputError(
            "An image must be an array H×W×3 (RGB), H×W×4 (RGBA) or H×W (grey) of uint8 or uint16, a PIL image, a "
            f"path or a file's bytes, got {image.dtype} {image.shape}: convert it first."
        )
    if image.size == 0:
        raise InputError(f"The image is empty ({image.shape[1]}×{image.shape[0]} pixels).")
    if bgr and mode != "L":
        image = np.ascontiguousarray(image[..., [2, 1, 0, 3][: image.shape[2]]])
    return Photo(Path("image"), "PNG", mode, image, icc=icc)


def _from_pil(image: Any) -> NDArray[Any]:
    if not isinstance(image, Image.Image):
        raise InputError(f"An image must be an array, a PIL image, a path or bytes, got {type(image).__name__}.")
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        return np.array(upright).astype(np.uint16)
    if upright.mode in ("I", "F"):
        raise InputError(f"A PIL image of mode {upright.mode} has no fixed range: convert it to 8 or 16 bits first.")
    grey = upright.mode in ("1", "L")
    return np.array(upright.convert("RGBA" if upright.has_transparency_data else "L" if grey else "RGB"))
