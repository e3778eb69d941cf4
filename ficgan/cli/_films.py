"""Which inputs are films, and what their results are called."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FILM_SUFFIXES", "WRITABLE_FILMS", "film_suffix", "is_address", "is_film"]

WRITABLE_FILMS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif", ".webp"})
FILM_SUFFIXES = WRITABLE_FILMS - {".gif", ".webp"} | {
    ".3g2", ".3gp", ".asf", ".dv", ".flv", ".h264", ".hevc", ".m2ts", ".mjpeg", ".mpe", ".mpeg", ".mpg", ".mts", ".mxf",
    ".ogv", ".qt", ".ts", ".vob", ".wmv", ".y4m", ".apng",
}  # fmt: skip
"""What in a folder counts as a film; GIF, WebP and PNG do where they are animated."""

_ADDRESS = re.compile(r"camera:\d+|[A-Za-z][A-Za-z0-9+.-]+://.*")
_PATTERN = re.compile(r"%0?\d*d")
_ANIMATED = frozenset({".gif", ".webp", ".png", ".apng"})


def is_address(name: str) -> bool:
    """Whether an input is a camera, a stream, or a pattern of numbered images: nothing beside which a result fits."""
    return bool(_ADDRESS.fullmatch(name)) or (bool(_PATTERN.search(Path(name).name)) and not Path(name).exists())


def is_film(path: Path) -> bool:
    """Whether a file is a film rather than a photo: by its suffix, or because it is animated."""
    suffix = path.suffix.lower()
    if suffix in FILM_SUFFIXES:
        return True
    if suffix not in _ANIMATED:
        return False
    import warnings

    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            return bool(getattr(image, "is_animated", False))
    except Exception:  # what cannot be read is refused later, with the reason
        return False


def film_suffix(source: Path) -> str:
    """The suffix a film's result takes: its own where that can be written, otherwise `.mp4`."""
    suffix = source.suffix.lower()
    return source.suffix if suffix in WRITABLE_FILMS else ".webp" if suffix in (".png", ".apng") else ".mp4"
