"""Moving pictures in: files, animations, sequences of images, cameras and streams behind one interface."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Self

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan.errors import InputError, UsageError
from ficgan.images import READABLE_SUFFIXES, read_image
from ficgan.video.media import (
    IDENTITY,
    Frame,
    Orientation,
    RGBReader,
    VideoInfo,
    display_name,
    fit,
    is_full_range,
    is_url,
    locator,
    orientation_of,
    reason,
    rotation_of,
)

__all__ = ["Raw", "VideoSource", "is_live", "open_input", "open_video"]

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

    `path` is None for a camera, a stream or a sequence of images; a `live` one can be read only once.
    """

    start: float | None = None
    end: float | None = None
    """The span that is read, in seconds after the first frame."""

    def __init__(self, name: str, info: VideoInfo, *, path: Path | None = None, live: bool = False) -> None:
        self.name, self.info, self.path, self.live = name, info, path, live
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
        """The frames in the order of showing, with strictly rising times and all of the size that `info` states.

        Args:
            first: number of the first frame wanted; earlier ones are decoded, but not converted.
            wanted: whether a frame of this number is wanted; the others are not converted. None: all are.
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
        self._note("The size of the picture changes: {} frames were scaled into the first size.")
        return fit(image, self.info.width, self.info.height)

    def _note(self, text: str) -> None:
        """Count an observation; `{}` in the text becomes the count."""
        self._notes[text] = self._notes.get(text, 0) + 1

    def _origin(self) -> int | None:
        """Tick of the film's very first frame, where a reader that jumps to `start` would not see it."""
        return None

    def _stated_end(self) -> int | None:
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
    """Makes times strictly rising, and notes what it had to change."""

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
    film = _open(os.fspath(source), rate)
    film.start, film.end, info = start, end, film.info
    if info.duration and (start is not None or end is not None):
        duration = max(0.0, min(info.duration, info.duration if end is None else end) - (start or 0.0))
        frames = None if info.frames is None else round(info.frames * duration / info.duration)
        film.info = replace(info, duration=duration, frames=frames)
    return film


def _open(text: str, rate: float | Fraction | None) -> VideoSource:
    if camera := _CAMERA.fullmatch(text):
        return _open_camera(int(camera[1]))
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


# -- whatever FFmpeg opens ---------------------------------------------------------------------------------------------

_NOT_FILM = frozenset({"ansi", "bintext", "xbin", "idf"})
"""FFmpeg draws text files as pictures with these."""
_TIMEOUT = (15.0, 15.0)
"""Seconds to wait for a network stream to open and to go on."""
_MAX_ERRORS = 100
"""Reading errors in a row after which the rest of a file is given up."""
_MICROSECOND = Fraction(1, 1_000_000)
_CUT = 0.5
"""Seconds that must be missing at the end before a file counts as cut; headers are often wrong by less."""
_CAMERA_FORMATS = {"linux": ("video4linux2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}
_AVCOL_PRI_UNSPECIFIED = 2


def open_input(source: str | Path, name: str, **options: Any) -> Any:
    """A file or address, opened by FFmpeg; `name` is for messages, `options` are those of `av.open`."""
    text = str(source)
    remote = is_url(text)
    if remote:
        options.setdefault("timeout", _TIMEOUT)
    elif isinstance(source, Path):
        text = locator(source)
    try:
        return av.open(text, metadata_errors="replace", **options)
    except (av.InvalidDataError, EOFError):
        raise InputError(f"{name}: is no video that FFmpeg can read, or its header is cut off or damaged") from None
    except (av.FFmpegError, OSError, ValueError) as error:
        place = "the address and the connection" if remote else "the file"
        raise InputError(f"{name}: cannot be opened ({reason(error)}); check {place}") from error


def _open_camera(number: int) -> StreamSource:
    name = f"camera:{number}"
    driver, device = _CAMERA_FORMATS.get(sys.platform, ("", ""))
    if not driver:
        raise InputError(f"{name}: cameras can be read on Linux and macOS only; give a file or an address")
    device = device.format(number)
    if device.startswith("/") and not Path(device).exists():
        raise InputError(f"{name}: there is no camera {device}; connect it, or name another: camera:0, camera:1 …")
    return StreamSource(device, name, driver=driver)


class StreamSource(VideoSource):
    """One video stream of a file, an address, or a device that FFmpeg's input device `driver` reads."""

    def __init__(self, source: str | Path, name: str, *, driver: str | None = None) -> None:
        self._where, self._driver = source, driver
        self._container = open_input(source, name, format=driver)
        self._orientation: Orientation = IDENTITY
        # AVI holds times of decoding only, and what FFmpeg makes of them for H.264 is late and uneven.
        self._is_avi, self._tick = self._container.format.name == "avi", -1
        seekable = isinstance(source, Path) or str(source).startswith(("http://", "https://"))
        try:
            self._stream, notes = _choose(self._container, name)
            self._damage: list[str] = []
            self.name, self.live = name, not seekable
            self._decoder: Generator[Any] | None = self._decode()
            first = next(self._decoder, None)
            if first is None:
                raise InputError(f"{name}: no frame of its video can be decoded; is the file complete?")
            self._first, self._first_time = first, self._time(first)
            info = self._describe(first, notes)
        except BaseException:
            self._container.close()
            raise
        super().__init__(name, info, path=source if isinstance(source, Path) else None, live=not seekable)

    def _describe(self, frame: Any, notes: list[str]) -> VideoInfo:
        stream, container = self._stream, self._container
        orientation = _orientation(frame)
        if orientation is None:
            notes.append("The picture is to be turned by an odd angle, which is left undone.")
        self._orientation = orientation or IDENTITY
        rotation = rotation_of(self._orientation)
        if rotation is None:
            notes.append("The picture is stored mirrored and was put right.")
        if frame.interlaced_frame:
            notes.append("The picture is interlaced and is kept so, as whole frames.")
        if any(part.is_alpha for part in frame.format.components):
            notes.append("Transparency is dropped.")
        if max(part.bits for part in frame.format.components) > 8:
            notes.append("The picture has more than 8 bits per channel; it is processed in 8.")
        if container.chapters():
            notes.append("Chapters are dropped.")
        width, height = frame.width, frame.height
        aspect = stream.sample_aspect_ratio or Fraction(1)
        if self._orientation[0]:
            width, height, aspect = height, width, 1 / aspect
        rate = stream.average_rate or stream.guessed_rate or None
        duration = None
        if stream.duration:
            duration = float(stream.duration * stream.time_base)
        elif container.duration:
            duration = container.duration / 1e6
        frames = stream.frames or (round(duration * rate) if duration and rate else None)
        return VideoInfo(
            width, height, stream.time_base, rate, frames, duration, frame.format.name,
            colour_range=2 if is_full_range(frame.format.name, frame.color_range) else frame.color_range,
            colour_space=frame.colorspace, colour_primaries=frame.color_primaries, colour_transfer=frame.color_trc,
            rotation=rotation or 0, sample_aspect_ratio=aspect, codec=stream.codec_context.name,
            audio_streams=len(container.streams.audio), notes=tuple(notes),
        )  # fmt: skip

    def _origin(self) -> int | None:
        return None if self.live else self._first_time

    def _stated_end(self) -> int | None:
        stream = self._stream
        return None if not stream.duration or stream.start_time is None else stream.start_time + stream.duration

    def _pictures(self) -> Iterator[Raw]:
        reader = RGBReader()
        decoder, first = self._decoder, self._first
        self._decoder, self._tick = None, -1
        if decoder is None or (self.start and not self.live):
            decoder, first = self._begin(self._target())
        try:
            if first is not None:
                yield self._raw(first, reader)
            for frame in decoder:
                yield self._raw(frame, reader)
        finally:
            decoder.close()

    def _begin(self, target: int | None) -> tuple[Generator[Any], Any]:
        self._reopen()
        decoder = self._decode(target)
        first = next(decoder, None)
        begun = None if first is None else self._time(first)
        if target is not None and (begun is None or begun > target):
            decoder.close()  # the jump went too far, or nowhere
            return self._begin(None)
        return decoder, first

    def _raw(self, frame: Any, reader: RGBReader) -> Raw:
        # The decoded frame is held only until it was converted or skipped.
        orientation = _orientation(frame) or IDENTITY
        return Raw(self._time(frame), frame.duration or None, partial(reader, frame, orientation))

    def _time(self, frame: Any) -> int | None:
        if not self._is_avi:
            pts: int | None = frame.pts
            return pts
        # The last frames leave the decoder without the time of a packet: one follows the other.
        self._tick = self._tick + 1 if frame.dts is None else frame.dts
        return self._tick

    def _target(self) -> int | None:
        if not self.start or self._first_time is None or self.start < 5:
            return None
        return int(self._first_time + (self.start - 1) / self._stream.time_base)

    def _reopen(self) -> None:
        self._container.close()
        del self._container, self._stream
        gc.collect()  # PyAV's containers and streams hold each other, and a decoder many pictures
        self._container = open_input(self._where, self.name, format=self._driver)
        self._stream, _ = _choose(self._container, self.name)

    def _decode(self, target: int | None = None) -> Generator[Any]:
        container, stream = self._container, self._stream
        stream.thread_type = "AUTO"
        streams = [stream] if self.live else [s for s in container.streams if s.type in ("video", "audio")]
        if target is not None:
            try:
                container.seek(target, stream=stream)
            except (av.FFmpegError, OSError):
                return
        watch = _Watch(container, stream)
        while True:
            try:
                for packet in container.demux(streams):
                    watch.see(packet)
                    if packet.stream is not stream:  # the empty packet at the end knows its stream only this way
                        continue
                    try:
                        pictures = packet.decode()
                    except EOFError:
                        continue
                    except (av.FFmpegError, ValueError):
                        watch.undecodable += 1
                        continue
                    yield from pictures
                break
            except (av.FFmpegError, OSError) as error:
                watch.errors += 1
                if self.live or watch.errors > _MAX_ERRORS:
                    watch.lost = reason(error)
                    break
        self._damage.extend(watch.sentences(self.name, whole=target is None))

    def close(self) -> None:
        self._decoder = None
        self._container.close()


class _Watch:
    """Counts what goes wrong while a file is read, and how far it reaches."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.stream, self.index = stream, stream.index
        self.count = stream.frames
        self.interval = float(1 / stream.average_rate) if stream.average_rate else 0.04
        self.duration = None if container.duration is None else float(container.duration * _MICROSECOND)
        self.start = float((container.start_time or 0) * _MICROSECOND)
        self.reached = 0.0
        self.packets = self.undecodable = self.corrupt = self.errors = 0
        self.lost = ""

    def see(self, packet: Any) -> None:
        if not packet.size:
            return
        self.errors = 0
        if packet.stream_index == self.index:
            self.packets += 1
            self.corrupt += bool(packet.is_corrupt)
        time = packet.pts if packet.pts is not None else packet.dts
        if time is not None:
            self.reached = max(self.reached, float((time + (packet.duration or 0)) * packet.time_base) - self.start)

    def sentences(self, name: str, *, whole: bool) -> list[str]:
        """What was wrong; `whole` where the file was read from its beginning."""
        found = []
        broken = max(self.undecodable, self.corrupt)
        missing = 0.0 if self.duration is None else self.duration - self.reached
        # Packets that an edit list leaves out are missing too, but not at the end.
        short = missing > _CUT or (whole and self.packets < self.count and missing > 1.5 * self.interval)
        if self.lost:
            found.append(f"{name}: reading broke off at {self.reached:.2f} s ({self.lost}).")
        elif short:
            of = f" of {self.duration:.2f} s" if self.duration else ""
            found.append(f"{name}: cut off at {self.reached:.2f} s{of}; everything up to there was read.")
        if broken:
            found.append(f"{name}: {broken} of {self.packets} packets of its video are damaged and not decoded.")
        return found


def _choose(container: Any, name: str) -> tuple[Any, list[str]]:
    covers = [s for s in container.streams.video if s.disposition & av.stream.Disposition.attached_pic]
    films = [s for s in container.streams.video if s not in covers]
    usable = [s for s in films if s.codec_context is not None and s.codec_context.name not in _NOT_FILM]
    if not usable:
        if films and films[0].codec_context is None:
            raise InputError(f"{name}: FFmpeg has no decoder for its video; convert it to H.264 first")
        has = "only sound" if container.streams.audio else "no video"
        raise InputError(f"{name}: has {has}{' and a cover picture' if covers else ''}, no video stream to process")
    best = max(usable, key=lambda s: (s.width * s.height, s.frames, -s.index))
    notes = []
    if len(films) > 1:
        notes.append(f"{len(films) - 1} further video {_plural('stream', len(films) - 1)} dropped.")
    if covers:
        notes.append("The cover picture is dropped.")
    if count := len(container.streams.subtitles):
        notes.append(f"{count} subtitle {_plural('stream', count)} dropped.")
    if count := len(container.streams.data) + len(container.streams.attachments):
        notes.append(f"{count} data {_plural('stream', count)} dropped.")
    return best, notes


def _plural(word: str, count: int) -> str:
    return f"{word} is" if count == 1 else f"{word}s are"


def _orientation(frame: Any) -> Orientation | None:
    side = frame.side_data.get("DISPLAYMATRIX") if len(frame.side_data) else None
    return orientation_of(None if side is None else np.frombuffer(bytes(side), np.int32))


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
