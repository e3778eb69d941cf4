"""Moving pictures as all of the film engine sees them: frames with rising times, and what is known of their stream."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, Self

from ficgan.errors import InputError, UsageError
from ficgan.video.pictures import Image, scaled


@dataclass(frozen=True)
class VideoInfo:
    """Properties of one video stream; what is unknown is None.

    Args:
        time_base: seconds of one tick of `Frame.pts`.
        rate: frames per second on average; frames carry their own times.
        frames, duration: as the file states; estimates.
        pixel_format: FFmpeg's name, of the stored picture.
        colour_range, colour_space, colour_primaries, colour_transfer: as FFmpeg numbers them; 0 or 2 is unspecified.
        sample_aspect_ratio: of the frames, nearly 1: others are stretched, as a squeezed face cannot be read.
        notes: what was noticed and what was left out, each a sentence.
    """

    width: int
    height: int
    time_base: Fraction
    rate: Fraction | None
    frames: int | None
    duration: float | None
    pixel_format: str = "yuv420p"
    colour_range: int = 0
    colour_space: int = 0
    colour_primaries: int = 0
    colour_transfer: int = 0
    sample_aspect_ratio: Fraction = Fraction(1)
    audio_streams: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Frame:
    """One upright frame, H×W×3 RGB, not to be changed in place; `pts` and `duration` in ticks of `VideoInfo.time_base`,
    `time` in seconds from the first frame on."""

    index: int
    pts: int
    time: float
    image: Image
    duration: int | None = None


def locator(path: str | os.PathLike[str]) -> str:
    """A file's name as FFmpeg takes it literally: `a:b.mp4` is no protocol then, and `-x.mp4` no option."""
    return f"file:{Path(path).absolute()}"


def check_span(start: float | None, end: float | None) -> None:
    """Raise a UsageError where no frame can lie between two times in seconds."""
    for name, value in (("start", start), ("end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} is {value}, and must be a number of seconds from 0 on")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"the span from {start} to {end} s is empty: let the end lie after the start")


# Seconds: times that fall back by more are a new start of the clock, by less a fault of single frames.
_JUMP = Fraction(1)
# Seconds: containers state lengths in milliseconds.
_ROUNDED = Fraction(2, 1000)


class Raw(NamedTuple):
    """A picture as a reader found it; `rgb` makes the upright H×W×3 picture."""

    pts: int | None
    duration: int | None
    rgb: Callable[[], Image]


class VideoSource(ABC):
    """A moving picture to read, a context manager; `path` is None where it is no file, a `live` one can be read once.

    `start` and `end` are the span that is read, in seconds after the first frame.
    """

    start: float | None = None
    end: float | None = None
    quick = False

    # Width and height of the pictures as they are read, before they are stretched.
    stored: tuple[int, int] | None = None
    # Ticks of the film's very first frame, where a reader jumps to `start`, and of its end, as far as the file says.
    origin: int | None = None
    stated_end: int | None = None

    def __init__(self, name: str, info: VideoInfo, *, path: Path | None = None, live: bool = False) -> None:
        self.name, self.info, self.path, self.live = name, info, path, live
        # Tick at which the last delivered frame ends; known when `frames` has run through.
        self.end_pts: int | None = None
        self._notes: tuple[str, ...] = ()
        self._damage: list[str] = []
        self._used = False

    @property
    def damage(self) -> tuple[str, ...]:
        """Where the source was cut or damaged, one sentence each; complete when `frames` has run through."""
        return tuple(self._damage)

    @property
    def notes(self) -> tuple[str, ...]:
        """`info.notes` and what was noticed while reading, one sentence each."""
        return (*self.info.notes, *self._notes)

    def frames(
        self, first: int = 0, wanted: Callable[[int], bool] | None = None, *, quick: bool = False
    ) -> Iterator[Frame]:
        """The frames in the order of showing, with strictly rising times and all of the size that `info` states.

        Args:
            first: number of the first frame wanted; earlier ones are decoded, but not converted.
            wanted: whether a frame of this number is wanted; the others are not converted. None: all are.
            quick: for looking only: pictures may be a little darker.
        """
        if self.live and self._used:
            raise InputError(f"{self.name}: a camera or stream can be read only once; open it again")
        self._used, self._notes, self._damage, self.end_pts, self.quick = True, (), [], None, quick
        return self._frames(first, wanted)

    def _frames(self, first: int, wanted: Callable[[int], bool] | None) -> Iterator[Frame]:
        base, clock, size = self.info.time_base, _Clock(self.info), (self.info.width, self.info.height)
        zero, index, pts, origin = None, 0, None, self.origin
        for raw in self._pictures():
            pts = clock(raw.pts)
            origin = pts if origin is None else origin
            if self.start is not None and pts - origin < self.start / base:
                continue
            if self.end is not None and pts - origin >= self.end / base:
                return
            zero = pts if zero is None else zero
            self.end_pts = pts + (raw.duration or clock.interval)
            if index >= first and (wanted is None or wanted(index)):
                image = raw.rgb()
                if image.shape[1::-1] != (self.stored or size):
                    self._notes = ("The size of the picture changes: frames were scaled into the first size.",)
                    image = scaled(image, self.stored or size)
                if self.stored not in (None, size):
                    image = scaled(image, size, keep_shape=False)
                yield Frame(index, pts, float((pts - zero) * base), image, raw.duration)
            index += 1
        # Where B-frames meet a variable rate, the duration stored with the last picture is that of another one.
        stated = self.stated_end
        if self.end_pts is None or pts is None or stated is None or self._damage:
            return
        if 0 < stated - pts <= 10 * clock.interval and abs(stated - self.end_pts) * base > _ROUNDED:
            self.end_pts = stated

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
    """Makes times strictly rising."""

    def __init__(self, info: VideoInfo) -> None:
        self.interval = max(1, round(1 / ((info.rate or Fraction(25)) * info.time_base)))
        self._jump = int(_JUMP / info.time_base)
        self._last: int | None = None
        self._offset = 0

    def __call__(self, pts: int | None) -> int:
        last, time = self._last, None if pts is None else pts + self._offset
        if time is None:
            time = 0 if last is None else last + self.interval
        elif last is not None and time <= last:
            if last - time > self._jump:
                self._offset += last + self.interval - time
                time = last + self.interval
            else:
                time = last + 1
        self._last = time
        return time
