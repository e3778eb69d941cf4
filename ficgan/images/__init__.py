"""Still images in and out: orientation applied, depth, alpha, colours and quality kept, metadata left behind.

Here are the kinds of photos and films, by their names and first bytes; this loads neither NumPy nor Pillow.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

# Largest photo that is decoded, pixels.
MAX_PIXELS = 100_000_000

# Suffix → format that can be written here.
FORMAT_OF = dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), "JPEG")
FORMAT_OF |= {".png": "PNG", ".apng": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
if find_spec("PIL._avif"):
    FORMAT_OF[".avif"] = "AVIF"
if find_spec("pillow_heif"):
    FORMAT_OF |= dict.fromkeys((".heic", ".heif", ".hif"), "HEIF")
WRITABLE_SUFFIXES = frozenset(FORMAT_OF)
# What in a folder counts as a still image; files named one by one are judged by their content.
READABLE_SUFFIXES = WRITABLE_SUFFIXES | {".bmp", ".dib", ".gif", ".avif", ".heic", ".heif", ".hif"}
# What in a folder is named as a picture that is not read, since it may show faces.
_UNREAD = (
    ".3fr .arw .cr2 .cr3 .crw .dng .erf .fff .iiq .kdc .mos .mrw .nef .nrw .orf .pef .raf .raw .rw2 .rwl .sr2 .srf "
    ".srw .x3f .exr .j2k .jp2 .jpf .jpx .jxl .jxr .pdf .pgm .pnm .ppm .psb .psd .tga .wdp .xcf"
)
UNREAD_SUFFIXES = frozenset(_UNREAD.split())
WRITABLE_FILMS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".gif"})
# What in a folder counts as a film; GIF, WebP and PNG do where they are animated.
_READ_FILMS = (
    ".avi .3g2 .3gp .apng .asf .dv .flv .h264 .hevc .m2ts .mjpeg .mpe .mpeg .mpg .mts .mxf .ogv .qt .ts .vob .wmv .y4m"
)
FILM_SUFFIXES = (WRITABLE_FILMS - {".gif"}) | frozenset(_READ_FILMS.split())

# Sources of films that are no file: cameras and addresses.
CAMERA = re.compile(r"camera:(\d+)")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|pipe:")

_PHOTO = re.compile(rb"\xff\xd8\xff|II\*\0|MM\0\*|BM.{4}\0{4}|.{4}ftyp(avif|hei|mif1)", re.S)
_PERHAPS_ANIMATED = re.compile(rb"\x89PNG|GIF8|RIFF.{4}WEBP", re.S)
_FILM = re.compile(
    rb"\x1aE\xdf\xa3|RIFF.{4}AVI |FLV\x01|OggS|\0\0\x01[\xb3\xba]|0&\xb2u\x8ef|G.{187}G|"
    rb".{4}(moov|mdat|wide|ftyp(?!avif|hei|hev|mif1|msf1))",
    re.S,
)


def is_url(source: str) -> bool:
    """Whether a source or target is an address (`rtsp://…`, `pipe:`), not a file of this machine."""
    return bool(_ADDRESS.match(source))


def display_name(source: str) -> str:
    """A source as it may stand in a message: addresses without user, password and query."""
    if not is_url(source) or source.startswith("pipe:"):
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def output_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix a result takes: the source's own, `.png` where its format cannot be written (BMP, GIF …)."""
    suffix = Path(path).suffix
    return ".png" if not suffix or suffix.lower() in READABLE_SUFFIXES - WRITABLE_SUFFIXES else suffix


def film_suffix(source: Path) -> str:
    """The suffix a film's result takes: its own where that can be written, otherwise `.mp4`."""
    return source.suffix if source.suffix.lower() in WRITABLE_FILMS else ".mp4"


def unread(name: str | os.PathLike[str]) -> str:
    """Why a file in a folder is not read although its name is that of a picture; "" for all others."""
    suffix = Path(name).suffix.lower()
    return f"{name}: {suffix} files are not read; convert it to JPEG, PNG or TIFF" if suffix in UNREAD_SUFFIXES else ""


def disguised(name: str | os.PathLike[str], file: BinaryIO, *, film: bool) -> str:
    """Why a file is not what its name says, a photo or a film; "" where its first bytes do not tell.

    A photo would make a film of one frame, which no check looks at.
    """
    path, head = Path(name), file.read(189)
    if film and path.suffix.lower() != ".mjpeg":
        if _PHOTO.match(head) or (_PERHAPS_ANIMATED.match(head) and not is_animated(file)):
            return f"{name}: is a photo with the name of a film; rename it, for example to {path.stem}.jpg"
    elif not film and _FILM.match(head):
        return f"{name}: is a film with the name of a photo; rename it, for example to {path.stem}.mp4"
    return ""


def is_film(path: Path) -> bool:
    """Whether a file's name is a film's, or a picture's that is animated."""
    suffix = path.suffix.lower()
    return suffix in FILM_SUFFIXES or (suffix in (".gif", ".webp", ".png") and is_animated(path))


def is_animated(file: str | os.PathLike[str] | BinaryIO) -> bool:
    """Whether a picture has several frames, which follow each other; False for what cannot be read."""
    import warnings

    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(file) as image:
            warnings.simplefilter("ignore")
            return bool(getattr(image, "is_animated", False))
    except Exception:  # what cannot be read is refused later, with the reason
        return False
