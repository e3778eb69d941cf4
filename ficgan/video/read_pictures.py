"""Films that are still images in a row: animated GIF, WebP and PNG, and sequences of image files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan.errors import InputError
from ficgan.images import READABLE_SUFFIXES, read_image
from ficgan.video.media import VideoInfo
from ficgan.video.read import Raw, VideoSource

__all__ = ["AnimationSource", "SequenceSource", "images_in", "is_animation", "matching"]

_MILLISECOND = Fraction(1, 1000)
_UNTIMED = 100
"""Milliseconds a frame without a duration is shown for, as browsers do."""
_PIXEL_FORMATS = {"P": "pal8", "L": "gray"}


def is_animation(head: bytes) -> bool:
    """Whether a file's first bytes are those of GIF, WebP or PNG, which Pillow reads."""
    return head[:6] in (b"GIF87a", b"GIF89a") or head[:8] == b"\x89PNG\r\n\x1a\n" or head[8:12] == b"WEBP"


class AnimationSource(VideoSource):
    """An animated GIF, WebP or PNG; transparent parts are shown on white."""

    def __init__(self, path: Path, *, start: float | None = None, end: float | None = None) -> None:
        try:
            with warnings.catch_warnings(), Image.open(path) as image:
                warnings.simplefilter("ignore")
                animated, count = bool(getattr(image, "is_animated", False)), int(getattr(image, "n_frames", 1))
                size, kind, mode = image.size, str(image.format), image.mode
                image.load()
                transparent = image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255
                durations = self._durations(image, count) if kind == "GIF" else None
        except Exception as error:
            raise InputError(f"{path}: damaged, or no picture ({' '.join(str(error).split())})") from error
        if not animated and kind != "GIF":
            raise InputError(f"{path}: is a single picture, not a film; give it as a photo")
        length = Fraction(sum(durations), 1000) if durations else None
        info = VideoInfo(
            *size,
            time_base=_MILLISECOND,
            rate=count / length if length else None,
            frames=count,
            duration=float(length) if length else None,
            pixel_format=_PIXEL_FORMATS.get(mode, "rgb24"),
            codec=kind.lower(),
            notes=("Transparent parts are shown on white.",) if transparent else (),
        )
        super().__init__(str(path), info, path=path, start=start, end=end)

    @staticmethod
    def _durations(image: Image.Image, count: int) -> list[int]:
        """Milliseconds of each frame of a GIF, which reads them without decoding; what is damaged counts as untimed."""
        found = []
        for index in range(count):
            try:
                image.seek(index)
                found.append(_shown(image))
            except Exception:
                found.append(_UNTIMED)
        return found

    def _pictures(self) -> Iterator[Raw]:
        assert self.path is not None
        pts, count = 0, self.info.frames or 0
        with warnings.catch_warnings(), Image.open(self.path) as image:
            warnings.simplefilter("ignore")
            index = 0
            while True:
                try:
                    image.seek(index)
                    picture = _on_white(image)
                    duration = _shown(image)
                except EOFError:
                    if index >= (getattr(image, "n_frames", index) or index):
                        return
                    break
                except Exception:
                    break
                yield Raw(pts, duration, lambda picture=picture: picture)  # type: ignore[misc]
                pts, index = pts + duration, index + 1
        self._damage.append(f"{self.name}: cut off or damaged at {pts / 1000:.2f} s, after {index} of {count} frames.")


def _shown(image: Image.Image) -> int:
    return max(1, round(float(image.info.get("duration") or 0))) if image.info.get("duration") else _UNTIMED


def _on_white(image: Image.Image) -> NDArray[np.uint8]:
    if not image.has_transparency_data:
        return np.asarray(image.convert("RGB"))
    picture = image.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    return np.asarray(Image.alpha_composite(white, picture).convert("RGB"))


class SequenceSource(VideoSource):
    """Image files as the frames of a film; their own orientation, depth and profile are taken into account."""

    def __init__(
        self, files: Sequence[Path], rate: float | Fraction, name: str, *, start: float | None = None,
        end: float | None = None,
    ) -> None:  # fmt: skip
        if not files:
            raise InputError(f"{name}: there is no image of that name or in that folder")
        exact = Fraction(rate).limit_denominator(100_000)
        size: tuple[int, int] | None = None
        error: InputError | None = None
        for file in files:  # the first that can be read sets the size
            try:
                height, width = read_image(file).rgb.shape[:2]
                size = width, height
                break
            except InputError as problem:
                error = error or problem
        if size is None:
            raise error or InputError(f"{name}: no image could be read")
        info = VideoInfo(
            size[0], size[1], 1 / exact, exact, len(files), float(len(files) / exact), "rgb24", codec="images"
        )
        super().__init__(name, info, start=start, end=end)
        self._files = tuple(files)

    def _pictures(self) -> Iterator[Raw]:
        lost = 0
        for number, file in enumerate(self._files):
            try:
                picture = read_image(file).rgb
            except InputError:
                lost += 1
                continue
            yield Raw(number, 1, lambda picture=picture: picture)  # type: ignore[misc]
        if lost:
            self._damage.append(f"{self.name}: {lost} of {len(self._files)} images could not be read and are left out.")


def images_in(folder: Path) -> list[Path]:
    """The images of a folder, numbers in their names counted as numbers."""
    return sorted((p for p in folder.iterdir() if p.suffix.lower() in READABLE_SUFFIXES and p.is_file()), key=_natural)


def matching(pattern: Path) -> list[Path]:
    """The images that a pattern like `frames/%05d.png` means, by rising number."""
    if not pattern.parent.is_dir():
        return []
    place = re.search(r"%(0?)(\d*)d", pattern.name)
    assert place is not None
    digits = rf"(\d{{{place[2] or 1},}})"
    name = re.compile(re.escape(pattern.name[: place.start()]) + digits + re.escape(pattern.name[place.end() :]))
    found = [(int(match[1]), path) for path in pattern.parent.iterdir() if (match := name.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
