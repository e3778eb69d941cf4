"""Moving pictures in: files, animations, sequences of images, cameras and streams behind one interface."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan import sandbox
from ficgan.errors import InputError, UsageError
from ficgan.images import READABLE_SUFFIXES, read_image
from ficgan.video.ffmpeg_source import StreamSource, open_camera
from ficgan.video.media import Raw, VideoInfo, VideoSource, display_name, is_url
from ficgan.video.sandboxed import SandboxedSource

__all__ = ["VideoSource", "is_live", "open_video"]

_CAMERA = re.compile(r"camera:(\d+)")
_PATTERN = re.compile(r"%0?\d*d")


def is_live(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a camera or an address, which can be read only once."""
    text = os.fspath(source)
    return bool(_CAMERA.fullmatch(text)) or is_url(text)


def open_video(
    source: str | os.PathLike[str], *, start: float | None = None, end: float | None = None,
    rate: float | Fraction | None = None,
) -> VideoSource:  # fmt: skip
    """Open a moving picture.

    Args:
        source: a video file; an animated GIF, WebP or PNG; a sequence of images as a pattern (`frames/%05d.png`) or as
            a folder together with `rate`; `camera:0`; an address (`rtsp://…`, `http://…`).
        start, end: the span to read, in seconds after the first frame.
        rate: frames per second of a sequence of images; 25 for a pattern.

    Raises:
        InputError: missing, unreadable, without a video stream, without a frame.
        UsageError: an impossible span or rate.
    """
    for name, value in (("start", start), ("end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} is {value}, and must be a number of seconds from 0 on")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"the span from {start} to {end} s is empty: let the end lie after the start")
    if rate is not None and not 0 < rate < 1e6:
        raise UsageError(f"rate is {rate}, and must be a positive number of frames per second")
    film = SandboxedSource(os.fspath(source), rate) if sandbox.is_on() else open_source(os.fspath(source), rate)
    film.start, film.end, info = start, end, film.info
    if info.duration and (start is not None or end is not None):
        duration = max(0.0, min(info.duration, info.duration if end is None else end) - (start or 0.0))
        frames = None if info.frames is None else round(info.frames * duration / info.duration)
        film.info = replace(info, duration=duration, frames=frames)
    return film


def open_source(text: str, rate: float | Fraction | None) -> VideoSource:
    """Open a moving picture in this process; see `open_video`."""
    if camera := _CAMERA.fullmatch(text):
        return open_camera(int(camera[1]))
    if is_url(text):
        return StreamSource(text, display_name(text))
    path = Path(text)
    if path.is_dir():
        if rate is None:
            raise UsageError(f"{path}: is a folder; to read its images as one film give the rate, in frames per second")
        return SequenceSource(_images_in(path), rate, str(path))
    if not path.exists() and _PATTERN.search(path.name):
        return SequenceSource(_matching(path), rate or 25, text)
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not head:
        raise InputError(f"{path}: is empty; was it copied completely?")
    # Pillow reads animated pictures.
    if head[:6] in (b"GIF87a", b"GIF89a") or head[:8] == b"\x89PNG\r\n\x1a\n" or head[8:12] == b"WEBP":
        return AnimationSource(path)
    return StreamSource(path, str(path))


# -- still images in a row ---------------------------------------------------------------------------------------------

_MILLISECOND = Fraction(1, 1000)
_UNTIMED = 100
"""Milliseconds a frame without a duration is shown for, as browsers do."""
_PIXEL_FORMATS = {"P": "pal8", "L": "gray"}


class AnimationSource(VideoSource):
    """An animated GIF, WebP or PNG; transparent parts are shown on white."""

    def __init__(self, path: Path) -> None:
        try:
            with warnings.catch_warnings(), Image.open(path) as image:
                warnings.simplefilter("ignore")
                animated, count = bool(getattr(image, "is_animated", False)), int(getattr(image, "n_frames", 1))
                size, kind, mode = image.size, str(image.format), image.mode
                image.load()
                transparent = image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255
                durations = _durations(image, count) if kind == "GIF" else None
        except Exception as error:
            raise InputError(f"{path}: damaged, or no picture ({' '.join(str(error).split())})") from error
        if not animated and kind != "GIF":
            raise InputError(f"{path}: is a single picture, not a film; give it as a photo")
        length = Fraction(sum(durations), 1000) if durations else None
        info = VideoInfo(
            *size, _MILLISECOND, count / length if length else None, count, float(length) if length else None,
            _PIXEL_FORMATS.get(mode, "rgb24"), codec=kind.lower(),
            notes=("Transparent parts are shown on white.",) if transparent else (),
        )  # fmt: skip
        super().__init__(str(path), info, path=path)

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


def _durations(image: Image.Image, count: int) -> list[int]:
    """Milliseconds of each frame of a GIF, which reads them without decoding; a damaged one counts as untimed."""
    found = []
    for index in range(count):
        try:
            image.seek(index)
            found.append(_shown(image))
        except Exception:
            found.append(_UNTIMED)
    return found


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

    def __init__(self, files: Sequence[Path], rate: float | Fraction, name: str) -> None:
        if not files:
            raise InputError(f"{name}: there is no image of that name or in that folder")
        exact = Fraction(rate).limit_denominator(100_000)
        shape: tuple[int, ...] = ()
        error: InputError | None = None
        for file in files:  # the first that can be read sets the size
            try:
                shape = read_image(file).rgb.shape
                break
            except InputError as problem:
                error = error or problem
        if not shape:
            raise error or InputError(f"{name}: no image could be read")
        seconds = float(len(files) / exact)
        info = VideoInfo(shape[1], shape[0], 1 / exact, exact, len(files), seconds, "rgb24", codec="images")
        super().__init__(name, info)
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


def _images_in(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if p.suffix.lower() in READABLE_SUFFIXES and p.is_file()), key=_natural)


def _matching(pattern: Path) -> list[Path]:
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
