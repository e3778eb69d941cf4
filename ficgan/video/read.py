"""Moving pictures in: files, animations, sequences of images, cameras and streams behind one interface."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from collections.abc import Generator, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from ficgan.errors import InputError, UsageError, memory_ran_out
from ficgan.images.read import read_image
from ficgan.video.media import (
    IDENTITY,
    ROTATIONS,
    Orientation,
    Raw,
    RGBReader,
    VideoInfo,
    VideoSource,
    display_name,
    fields_of,
    hdr_of,
    is_full_range,
    is_url,
    locator,
    orientation_of,
    reason,
    square,
)

__all__ = ["VideoSource", "check_span", "is_live", "open_input", "open_video"]

_CAMERA = re.compile(r"camera:(\d+)")
_PATTERN = re.compile(r"%0?(\d*)d")


def is_live(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a camera or an address, which can be read only once."""
    text = os.fspath(source)
    return bool(_CAMERA.fullmatch(text)) or is_url(text)


def check_span(start: float | None, end: float | None) -> None:
    """Raise a UsageError where no frame can lie between two times in seconds."""
    for name, value in (("start", start), ("end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} is {value}, and must be a number of seconds from 0 on")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"the span from {start} to {end} s is empty: let the end lie after the start")


def open_video(source: str | os.PathLike[str], *, start: float | None = None, end: float | None = None) -> VideoSource:
    """Open a moving picture.

    Args:
        source: a video file; an animated GIF, WebP or PNG; a sequence of images as a pattern (`frames/%05d.png`), shown
            at 25 frames per second; `camera:0`; an address (`rtsp://…`, `http://…`).
        start, end: the span to read, in seconds after the first frame.

    Raises:
        InputError: missing, unreadable, without a video stream, without a frame.
        UsageError: an impossible span.
    """
    check_span(start, end)
    film = _open(os.fspath(source))
    film.start, film.end, info = start, end, film.info
    if info.duration and (start is not None or end is not None):
        duration = max(0.0, min(info.duration, info.duration if end is None else end) - (start or 0.0))
        frames = None if info.frames is None else round(info.frames * duration / info.duration)
        film.info = replace(info, duration=duration, frames=frames)
    return film


def _open(text: str) -> VideoSource:
    if camera := _CAMERA.fullmatch(text):
        return _open_camera(int(camera[1]))
    if is_url(text):
        return StreamSource(text, display_name(text))
    path = Path(text)
    if not path.exists() and _PATTERN.search(path.name):
        return SequenceSource(path)
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


# -- whatever FFmpeg opens -------------------------------------------------------------------------------------------

# FFmpeg draws text files as pictures with these.
_NOT_FILM = frozenset({"ansi", "bintext", "xbin", "idf"})
# Seconds to wait for a network stream to open and to go on.
_TIMEOUT = (15.0, 15.0)
MAX_ERRORS = 100
"""Reading errors in a row after which the rest of a file is given up."""
_MICROSECOND = Fraction(1, 1_000_000)
# Seconds that must be missing at the end before a file counts as cut; headers are often wrong by less.
_CUT = 0.5
_CAMERA_FORMATS = {"linux": ("video4linux2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}


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


_Decoded = tuple[Any, Orientation | None]
"""PyAV's frame, and how it is turned."""


class StreamSource(VideoSource):
    """One video stream of a file, an address, or a device that FFmpeg's input device `driver` reads."""

    def __init__(self, source: str | Path, name: str, *, driver: str | None = None) -> None:
        self._where, self._driver = source, driver
        self.name, self._damage = name, []
        self.live = not (isinstance(source, Path) or str(source).startswith(("http://", "https://")))
        self._tick = -1
        notes = self._open()
        try:
            decoder = self._decode()
            first = next(decoder, None)
            if first is None:
                raise InputError(f"{name}: no frame of its video can be decoded; is the file complete?")
            frame, orientation = first
            self._first_time = self._time(frame)
            self._begun: tuple[Generator[_Decoded], _Decoded | None] | None = (decoder, first)
            info = self._describe(frame, orientation, notes)
        except BaseException:
            self._container.close()
            raise
        super().__init__(name, info, path=source if isinstance(source, Path) else None, live=self.live)

    def _open(self) -> list[str]:
        """Open the container and choose its stream; returns what is left out."""
        self._container = open_input(self._where, self.name, format=self._driver)
        # AVI holds times of decoding only, and what FFmpeg makes of them for H.264 is late and uneven.
        self._is_avi = self._container.format.name == "avi"
        try:
            self._stream, notes = _choose(self._container, self.name)
        except BaseException:
            self._container.close()
            raise
        return notes

    def _describe(self, frame: Any, orientation: Orientation | None, notes: list[str]) -> VideoInfo:
        stream, container, parts = self._stream, self._container, frame.format.components
        rotation, (mastering_display, light_level, dynamic) = ROTATIONS.get(orientation or IDENTITY), self._hdr
        # VP8 and VP9 store transparency beside the picture, and their decoders leave it out.
        apart = {name.lower(): value for name, value in stream.metadata.items()}.get("alpha_mode")
        deep = max(part.bits for part in parts) > 8
        for noticed, note in (
            (orientation is None, "The picture is to be turned by an odd angle, which is left undone."),
            (rotation is None, "The picture is stored mirrored and was put right."),
            (frame.interlaced_frame, "The picture is interlaced and is kept so."),
            (any(part.is_alpha for part in parts) or apart == "1", "Transparency is dropped."),
            (deep, "The picture has more than 8 bits per channel; it is processed in 8."),
            (dynamic, "The part of its HDR data that changes with the picture is dropped (HDR10+, Dolby Vision)."),
            (container.chapters(), "Chapters are dropped."),
        ):
            if noticed:
                notes.append(note)
        width, height = frame.width, frame.height
        aspect = stream.sample_aspect_ratio or Fraction(1)
        if orientation is not None and orientation[0]:
            width, height, aspect = height, width, 1 / aspect
        rate = stream.average_rate or stream.guessed_rate or None
        duration = float(stream.duration * stream.time_base) if stream.duration else _length(container)
        frames = stream.frames or (round(duration * rate) if duration and rate else None)
        return VideoInfo(
            *square(width, height, aspect),
            stream.time_base,
            rate,
            frames,
            duration,
            frame.format.name,
            colour_range=2 if is_full_range(frame.format.name, frame.color_range) else frame.color_range,
            colour_space=frame.colorspace,
            colour_primaries=frame.color_primaries,
            colour_transfer=frame.color_trc,
            rotation=rotation or 0,
            sample_aspect_ratio=aspect,
            codec=stream.codec_context.name,
            audio_streams=len(container.streams.audio),
            notes=tuple(notes),
            fields=fields_of(frame, orientation),
            mastering_display=mastering_display,
            light_level=light_level,
        )

    def _origin(self) -> int | None:
        return None if self.live else self._first_time

    def _stated_end(self) -> int | None:
        stream = self._stream
        return None if not stream.duration or stream.start_time is None else stream.start_time + stream.duration

    def _pictures(self) -> Iterator[Raw]:
        reader = RGBReader(quick=self.quick)
        begun, self._begun, self._tick = self._begun, None, -1
        if begun is None or (self.start and not self.live):
            target = None
            if self.start and self.start >= 5 and self._first_time is not None:
                target = int(self._first_time + (self.start - 1) / self._stream.time_base)
            begun = self._begin(target)
        decoder, decoded = begun
        try:
            while decoded is not None:
                # The decoded frame is held only until it was converted or skipped.
                frame, orientation = decoded
                yield Raw(self._time(frame), frame.duration or None, partial(reader, frame, orientation or IDENTITY))
                decoded = next(decoder, None)
        finally:
            decoder.close()

    def _begin(self, target: int | None) -> tuple[Generator[_Decoded], _Decoded | None]:
        self._container.close()
        del self._container, self._stream
        gc.collect()  # PyAV's containers and streams hold each other, and a decoder many pictures
        self._open()
        decoder = self._decode(target)
        first = next(decoder, None)
        begun = None if first is None else self._time(first[0])
        if target is not None and (begun is None or begun > target):
            decoder.close()  # the jump went too far, or nowhere
            return self._begin(None)
        return decoder, first

    def _time(self, frame: Any) -> int | None:
        if not self._is_avi:
            pts: int | None = frame.pts
            return pts
        # The last frames leave the decoder without the time of a packet: one follows the other.
        self._tick = self._tick + 1 if frame.dts is None else frame.dts
        return self._tick

    def _decode(self, target: int | None = None) -> Generator[_Decoded]:
        watch, count, last = _Watch(self._container, self._stream), 0, None
        for picture in self._decoded(watch, target):
            if not count:
                self._hdr = hdr_of(picture)
            count, last = count + 1, picture.pts if last is None else max(last, picture.pts or last)
            yield picture, orientation_of(picture)
        # Where threads decode several pictures at a time, PyAV gives up those after the first damaged one at the end.
        if watch.found and count < watch.packets and last is not None and not self.live and not self._is_avi:
            self._container.close()
            self._open()
            self._stream.codec_context.thread_count = 1
            for picture in self._decoded(_Watch(self._container, self._stream), last):
                if (picture.pts or last) > last:
                    watch.concealed += picture.is_corrupt
                    yield picture, orientation_of(picture)
        self._damage.extend(watch.sentences(self.name, whole=target is None))

    def _decoded(self, watch: _Watch, target: int | None) -> Generator[Any]:
        """PyAV's frames from somewhere before a tick on."""
        container, stream = self._container, self._stream
        stream.thread_type = "AUTO"
        streams = [stream] if self.live else [s for s in container.streams if s.type in ("video", "audio")]
        if target is not None:
            try:
                container.seek(target, stream=stream)
            except (av.FFmpegError, OSError):
                return
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
                    for picture in pictures:
                        # Before the place that was asked for, pictures may lack those they are made from.
                        watch.concealed += picture.is_corrupt and (target is None or (picture.pts or 0) >= target)
                        yield picture
                return
            except (av.FFmpegError, OSError) as error:
                watch.errors += 1
                if self.live or watch.errors > MAX_ERRORS:
                    watch.lost = reason(error)
                    return

    def close(self) -> None:
        self._begun = None
        self._container.close()


class _Watch:
    """Counts what goes wrong while a file is read, and how far it reaches."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.index, self.count = stream.index, stream.frames
        self.interval = float(1 / stream.average_rate) if stream.average_rate else 0.04
        self.duration = _length(container)
        self.start = float((container.start_time or 0) * _MICROSECOND)
        self.reached = 0.0
        self.packets = self.undecodable = self.corrupt = self.concealed = self.errors = 0
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

    @property
    def found(self) -> bool:
        """Whether anything was wrong with the packets."""
        return bool(self.undecodable or self.corrupt or self.concealed or self.errors or self.lost)

    def sentences(self, name: str, *, whole: bool) -> Iterator[str]:
        """What was wrong; `whole` where the file was read from its beginning."""
        missing = 0.0 if self.duration is None else self.duration - self.reached
        # Packets that an edit list leaves out are missing too, but not at the end.
        short = missing > _CUT or (whole and self.packets < self.count and missing > 1.5 * self.interval)
        if self.lost:
            yield f"{name}: reading broke off at {self.reached:.2f} s ({self.lost})."
        elif short:
            of = f" of {self.duration:.2f} s" if self.duration else ""
            yield f"{name}: cut off at {self.reached:.2f} s{of}; everything up to there was read."
        if broken := max(self.undecodable, self.corrupt):
            yield f"{name}: {broken} of {self.packets} packets of its video are damaged and not decoded."
        if self.concealed:
            yield f"{name}: frames that are damaged: {self.concealed}; the decoder filled in what is lost."


def _length(container: Any) -> float | None:
    """Seconds from the beginning of the first stream to the end of the last; None where the file does not say."""
    stated, late = container.duration, max(0, container.start_time or 0)
    if not stated:
        return None
    until_end = container.format.name in ("matroska,webm", "nut") and stated > late  # these state when it ends
    return float((stated - (late if until_end else 0)) * _MICROSECOND)


def _choose(container: Any, name: str) -> tuple[Any, list[str]]:
    """The video stream to read, and what is left out, a sentence each."""
    streams = container.streams
    covers = [s for s in streams.video if s.disposition & av.stream.Disposition.attached_pic]
    films = [s for s in streams.video if s not in covers]
    usable = [s for s in films if s.codec_context is not None and s.codec_context.name not in _NOT_FILM]
    if not usable:
        has = "only sound" if streams.audio else "nothing that FFmpeg can decode"
        raise InputError(f"{name}: has {has}, no video stream to process")
    best = max(usable, key=lambda s: (s.width * s.height, s.frames, -s.index))
    counts = {
        "cover": len(covers),
        "further video": len(films) - 1,
        "subtitle": len(streams.subtitles),
        "data": len(streams.data) + len(streams.attachments),
    }
    return best, [f"Streams that are dropped: {n} {kind}." for kind, n in counts.items() if n]


# -- still images in a row ---------------------------------------------------------------------------------------------

# Milliseconds a frame without a duration is shown for, as browsers do.
_UNTIMED = 100
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
                length = _length_of(image, count) if kind == "GIF" else None
        except Exception as error:
            raise InputError(f"{path}: damaged, or no picture ({' '.join(str(error).split())})") from error
        if not animated and kind != "GIF":
            raise InputError(f"{path}: is a single picture, not a film; give it as a photo")
        info = VideoInfo(
            *size,
            Fraction(1, 1000),
            count / length if length else None,
            count,
            float(length) if length else None,
            _PIXEL_FORMATS.get(mode, "rgb24"),
            codec=kind.lower(),
            notes=("Transparent parts are shown on white.",) if transparent else (),
        )
        super().__init__(str(path), info, path=path)

    def _pictures(self) -> Iterator[Raw]:
        assert self.path is not None
        pts, index, count = 0, 0, self.info.frames or 0
        with warnings.catch_warnings(), Image.open(self.path) as image:
            warnings.simplefilter("ignore")
            while index < count:
                try:
                    image.seek(index)
                    picture = _on_white(image)
                except Exception as error:
                    if memory_ran_out(error):
                        raise
                    break
                duration = _shown(image)
                yield Raw(pts, duration, partial(np.asarray, picture))
                pts, index = pts + duration, index + 1
        if index < count:
            at = f"{pts / 1000:.2f} s, after {index} of {count} frames"
            self._damage.append(f"{self.name}: cut off or damaged at {at}.")


def _shown(image: Image.Image) -> int:
    """Milliseconds that the frame is shown for."""
    return max(1, round(float(image.info.get("duration") or _UNTIMED)))


def _length_of(image: Image.Image, count: int) -> Fraction | None:
    """Seconds of a GIF, whose frames are sought without decoding; None where it is damaged."""
    total = 0
    try:
        for index in range(count):
            image.seek(index)
            total += _shown(image)
    except Exception:
        return None
    return Fraction(total, 1000)


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


class SequenceSource(VideoSource):
    """Image files by a pattern such as `frames/%05d.png`, at 25 frames per second.

    Their own orientation, depth and profile are taken into account.
    """

    def __init__(self, pattern: Path) -> None:
        place = _PATTERN.search(pattern.name)
        assert place is not None
        digits = rf"(\d{{{place[1] or 1},}})"
        name = re.compile(re.escape(pattern.name[: place.start()]) + digits + re.escape(pattern.name[place.end() :]))
        files = pattern.parent.iterdir() if pattern.parent.is_dir() else ()
        found = sorted((int(match[1]), path) for path in files if (match := name.fullmatch(path.name)))
        self._files = [path for _, path in found]
        shape: tuple[int, ...] = ()
        error = InputError(f"{pattern}: there is no image of that name")
        for file in self._files:  # the first that can be read sets the size
            try:
                shape = read_image(file).rgb.shape
                break
            except InputError as problem:
                error = problem
        if not shape:
            raise error
        rate, count = Fraction(25), len(self._files)
        seconds = float(count / rate)
        super().__init__(
            str(pattern), VideoInfo(shape[1], shape[0], 1 / rate, rate, count, seconds, "rgb24", codec="images")
        )

    def _pictures(self) -> Iterator[Raw]:
        lost = 0
        for number, file in enumerate(self._files):
            try:
                picture = read_image(file).rgb
            except InputError:
                lost += 1
                continue
            yield Raw(number, 1, partial(np.asarray, picture))
        if lost:
            self._damage.append(f"{self.name}: {lost} of {len(self._files)} images could not be read and are left out.")
