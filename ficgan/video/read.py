"""Moving pictures in: files, animations, sequences of images, cameras and streams behind one interface."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.video.libav import display_name, is_url
from ficgan.video.media import Frame, VideoInfo

__all__ = ["Raw", "VideoSource", "is_live", "open_video"]

_CAMERA = re.compile(r"camera:(\d+)")
_PATTERN = re.compile(r"%0?\d*d")
_JUMP = Fraction(1)
"""Seconds: times that fall back by more are a new start of the clock, by less a fault of single frames."""
_ROUNDED = Fraction(2, 1000)
"""Seconds: containers state lengths in milliseconds."""


@dataclass(frozen=True, eq=False)
class Raw:
    """A picture as a reader found it, not yet converted."""

    pts: int | None
    duration: int | None
    rgb: Callable[[], NDArray[np.uint8]]
    """Makes the upright H×W×3 picture."""


class VideoSource(ABC):
    """A moving picture to read; use it as a context manager.

    Args:
        name: For messages.
        info: Properties.
        path: The file; None for a camera, a stream, a sequence of images.
        live: Whether it can be read only once, as it comes.
        start: Seconds after the first frame at which to begin.
        end: Seconds after the first frame at which to stop.
    """

    def __init__(
        self, name: str, info: VideoInfo, *, path: Path | None = None, live: bool = False,
        start: float | None = None, end: float | None = None,
    ) -> None:  # fmt: skip
        self.name, self.info, self.path, self.live = name, info, path, live
        self.start, self.end = start, end
        self.end_pts: int | None = None
        """Tick at which the last delivered frame ends; known when `frames` has run through."""
        self._notes: dict[str, int] = {}
        self._damage: list[str] = []
        self._used = False

    @property
    def damage(self) -> tuple[str, ...]:
        """Where the source was cut or damaged, one sentence each; complete when `frames` has run through."""
        return tuple(self._damage)

    @property
    def notes(self) -> tuple[str, ...]:
        """`info.notes` and what was noticed while reading, one sentence each."""
        return self.info.notes + tuple(text.format(count) for text, count in self._notes.items())

    def frames(self, first: int = 0, wanted: Callable[[int], bool] | None = None) -> Iterator[Frame]:
        """The frames in the order of showing, with strictly rising times.

        Args:
            first: Number of the first frame wanted; earlier ones are decoded, but not converted.
            wanted: Whether a frame of this number is wanted; the others are not converted either. None: all are.

        Yields:
            Frames, upright RGB, all of the size that `info` states.

        Raises:
            InputError: A camera or stream is read a second time.
        """
        if self.live and self._used:
            raise InputError(f"{self.name}: a camera or stream can be read only once; open it again")
        self._used, self._notes, self._damage, self.end_pts = True, {}, [], None
        return self._frames(first, wanted)

    def _frames(self, first: int, wanted: Callable[[int], bool] | None) -> Iterator[Frame]:
        base, clock = self.info.time_base, _Clock(self.info, self._note)
        origin = self._origin()  # of the whole film
        begin = None if self.start is None else self.start / base
        stop = None if self.end is None else self.end / base
        zero, index, pts = None, 0, None
        for raw in self._pictures():
            pts = clock(raw.pts)
            origin = pts if origin is None else origin
            if begin is not None and pts - origin < begin:
                continue
            if stop is not None and pts - origin >= stop:
                return
            zero = pts if zero is None else zero
            self.end_pts = pts + (raw.duration or clock.interval)
            if index >= first and (wanted is None or wanted(index)):
                yield Frame(index, pts, float((pts - zero) * base), self._fitted(raw.rgb()), raw.duration)
            index += 1
        # Where B-frames meet a variable rate, the duration stored with the last picture is that of another one.
        stated = self._stated_end()
        if self.end_pts is None or pts is None or stated is None or self._damage:
            return
        if 0 < stated - pts <= 10 * clock.interval and abs(stated - self.end_pts) * base > _ROUNDED:
            self.end_pts = stated

    def _fitted(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if image.shape[:2] == (self.info.height, self.info.width):
            return image
        from ficgan.video.colour import fit

        self._note("The size of the picture changes: {} frames were scaled into the first size.")
        return fit(image, self.info.width, self.info.height)

    def _note(self, text: str) -> None:
        """Count an observation; `{}` in the text becomes the count."""
        self._notes[text] = self._notes.get(text, 0) + 1

    def _origin(self) -> int | None:
        """Tick of the film's very first frame, where a reader that jumps to `start` would not see it."""
        return None

    def _stated_end(self) -> int | None:
        """Tick at which the file says that the film ends."""
        return None

    @abstractmethod
    def _pictures(self) -> Iterator[Raw]:
        """All pictures from the start on (or from any point before `start`)."""

    def close(self) -> None:  # noqa: B027 (a sequence of images has nothing to close)
        """Let go of the file, camera or connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Clock:
    """Makes times strictly rising, and tells what it had to change."""

    def __init__(self, info: VideoInfo, note: Callable[[str], None]) -> None:
        self.interval = max(1, round(1 / ((info.rate or Fraction(25)) * info.time_base)))
        self._jump, self._note = int(_JUMP / info.time_base), note
        self._last: int | None = None
        self._offset = 0

    def __call__(self, pts: int | None) -> int:
        last = self._last
        if pts is None:
            self._note("{} frames had no time and were placed one interval after the one before.")
            pts = 0 if last is None else last + self.interval
        else:
            pts += self._offset
            if last is not None and pts <= last:
                if last - pts > self._jump:
                    self._offset += last + self.interval - pts
                    pts = last + self.interval
                    self._note("The clock of the film falls back {} times; the times go on without the step.")
                else:
                    pts = last + 1
                    self._note("{} frames had the time of another or an earlier one and were moved behind it.")
        self._last = pts
        return pts


def is_live(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a camera or an address, which can be read only once."""
    text = os.fspath(source)
    return bool(_CAMERA.fullmatch(text)) or is_url(text)


def open_video(
    source: str | os.PathLike[str],
    *,
    start: float | None = None,
    end: float | None = None,
    rate: float | Fraction | None = None,
) -> VideoSource:
    """Open a moving picture.

    Args:
        source: A video file; an animated GIF, WebP or PNG; a sequence of images as a pattern (`frames/%05d.png`) or as
            a folder together with `rate`; `camera:0`; an address (`rtsp://…`, `http://…`).
        start: Seconds after the first frame at which to begin.
        end: Seconds after the first frame at which to stop.
        rate: Frames per second of a sequence of images; 25 for a pattern.

    Returns:
        The source.

    Raises:
        InputError: Missing, unreadable, without a video stream, without a frame.
        UsageError: An impossible span or rate.
    """
    for name, value in (("start", start), ("end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} is {value}, and must be a number of seconds from 0 on")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"the span from {start} to {end} s is empty: let the end lie after the start")
    if rate is not None and not 0 < rate < 1e6:
        raise UsageError(f"rate is {rate}, and must be a positive number of frames per second")
    text = os.fspath(source)
    info_of = _spanned(start, end)
    found = _open(text, start, end, rate)
    found.info = info_of(found.info)
    return found


def _open(text: str, start: float | None, end: float | None, rate: float | Fraction | None) -> VideoSource:
    # Imported here so that a reader's library is loaded only where it is used.
    if camera := _CAMERA.fullmatch(text):
        from ficgan.video.read_stream import open_camera

        return open_camera(int(camera[1]), start=start, end=end)
    if is_url(text):
        from ficgan.video.read_stream import StreamSource

        return StreamSource(text, display_name(text), start=start, end=end)
    path = Path(text)
    from ficgan.video import read_pictures

    if path.is_dir():
        if rate is None:
            raise UsageError(f"{path}: is a folder; to read its images as one film give the rate, in frames per second")
        return read_pictures.SequenceSource(read_pictures.images_in(path), rate, str(path), start=start, end=end)
    if not path.exists() and _PATTERN.search(path.name):
        return read_pictures.SequenceSource(read_pictures.matching(path), rate or 25, text, start=start, end=end)
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not head:
        raise InputError(f"{path}: is empty; was it copied completely?")
    if read_pictures.is_animation(head):
        return read_pictures.AnimationSource(path, start=start, end=end)
    from ficgan.video.read_stream import StreamSource

    return StreamSource(path, str(path), start=start, end=end)


def _spanned(start: float | None, end: float | None) -> Callable[[VideoInfo], VideoInfo]:
    """Length and count of the span that will be delivered."""

    def narrow(info: VideoInfo) -> VideoInfo:
        if info.duration is None or (start is None and end is None):
            return info
        duration = max(0.0, min(info.duration, end if end is not None else info.duration) - (start or 0.0))
        share = duration / info.duration if info.duration else 0.0
        return replace(info, duration=duration, frames=None if info.frames is None else round(info.frames * share))

    return narrow
