"""Films in: files, animations, cameras and streams."""

from __future__ import annotations

import gc
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import cv2

from ficgan.errors import InputError, reason
from ficgan.images import CAMERA, display_name, is_url
from ficgan.video.source import (
    Frame,
    Orientation,
    VideoInfo,
    check_span,
    is_full_range,
    letterboxed,
    locator,
    orientation_of,
    rgb_reader,
)


def open_video(source: str | os.PathLike[str], *, start: float | None = None, end: float | None = None) -> VideoSource:
    """Open a moving picture; only what lies between `start` and `end` seconds after the first frame is read.

    `source` is a video file, an animated GIF or PNG, `camera:0`, or an address (`rtsp://…`, `http://…`).
    """
    check_span(start, end)
    text = os.fspath(source)
    if camera := CAMERA.fullmatch(text):
        device = f"/dev/video{camera[1]}"
        if not Path(device).exists():
            raise InputError(f"{text}: there is no camera {device}; connect it, or name another: camera:0, camera:1 …")
        return VideoSource(device, text, start, end, driver="video4linux2")
    if is_url(text):
        return VideoSource(text, display_name(text), start, end)
    return VideoSource(Path(text), text, start, end)


# FFmpeg draws text files as pictures with these.
_NOT_FILM = frozenset({"ansi", "bintext", "xbin", "idf"})
# Seconds to wait for a network stream to open and to go on.
_TIMEOUT = (15.0, 15.0)
# Reading errors in a row after which the rest of a file is given up.
MAX_ERRORS = 100
_MICROSECOND = Fraction(1, 1_000_000)
# Up to the first, pixels count as square. Beyond the second the file is wrong.
_SQUARE, _WRONG_ASPECT = Fraction(5, 4), 4
# Seconds that must be missing at the end before a file counts as cut; headers are often wrong by less.
_CUT = 0.5
# Seconds: containers state lengths in milliseconds.
_ROUNDED = Fraction(2, 1000)
# Seconds: times that fall back by more are a new start of the clock, by less a fault of single frames.
_JUMP = Fraction(1)


# Tick of a picture, the picture as FFmpeg has it, and how it is to be turned.
_Decoded = tuple[int | None, Any, Orientation]


class VideoSource(AbstractContextManager["VideoSource"]):
    """A moving picture to read, a context manager: the largest film of a file, an address, or a device.

    `path` is None where it is no file, a `live` one can be read once. `start` and `end` are the span that is read, in
    seconds after the first frame. FFmpeg's input device `driver` reads a device. `notes` say what was noticed so far,
    `damage` where the source was cut or damaged, a sentence each; they are complete when `frames` has run through.
    """

    def __init__(
        self, source: str | Path, name: str, start: float | None, end: float | None, *, driver: str | None = None
    ) -> None:
        self._where, self._driver, self.name, self.start, self.end = source, driver, name, start, end
        self.path = source if isinstance(source, Path) else None
        self.live = not (isinstance(source, Path) or source.startswith(("http://", "https://")))
        # Tick at which the last delivered frame ends; known when `frames` has run through.
        self.end_pts: int | None = None
        self.damage: tuple[str, ...] = ()
        self._used = self._interlaced = False
        self._container: Any = None
        try:
            self._open()
            decoder = self._decode()
            first = next(decoder, None)
            if first is None:
                raise InputError(f"{name}: no frame of its video can be decoded; is the file complete?")
            self._begun: Iterator[_Decoded] | None = chain([first], decoder)
            self._first_pts, picture, (turned, _, _) = first
            self.info = self._describe(picture, turned=turned)
            self.notes = self.info.notes
        except BaseException:
            self.close()
            raise

    def frames(self, wanted: Callable[[int], bool] | None = None, *, quick: bool = False) -> Iterator[Frame]:
        """The frames in the order of showing, with strictly rising times and all of the size that `info` states.

        Args:
            wanted: whether a frame of this number is wanted; the others are not converted. None: all are.
            quick: for looking only: pictures may be a little darker.
        """
        if self.live and self._used:
            raise InputError(f"{self.name}: a camera or stream can be read only once; open it again")
        self._used, self.notes, self.damage, self.end_pts = True, self.info.notes, (), None
        base, clock, size = self.info.time_base, _Clock(self.info), (self.info.width, self.info.height)
        to_rgb, index = rgb_reader(quick=quick), 0
        pts = zero = None
        # The film's very first frame, from which spans are counted.
        origin = None if self.live else self._first_pts
        for stated, picture, orientation in self._begin():
            pts = clock(stated)
            origin = pts if origin is None else origin
            if self.start is not None and pts - origin < self.start / base:
                continue
            if self.end is not None and pts - origin >= self.end / base:
                return
            zero = pts if zero is None else zero
            duration = picture.duration or None
            self.end_pts = pts + (duration or clock.interval)
            if wanted is None or wanted(index):
                image = to_rgb(picture, orientation)
                if image.shape[1::-1] != self._stored:
                    scaled = "The size of the picture changes: frames were scaled into the first size."
                    self.notes = (*self.info.notes, scaled)
                    image = letterboxed(image, self._stored)
                if self._stored != size:
                    image = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
                yield Frame(index, pts, float((pts - zero) * base), image, duration)
            index += 1
        # Where B-frames meet a variable rate, the duration stored with the last picture is that of another one.
        begin, length = self._stream.start_time, self._stream.duration
        if self.end_pts is not None and pts is not None and begin is not None and length and not self.damage:
            end = begin + length
            if 0 < end - pts <= 10 * clock.interval and abs(end - self.end_pts) * base > _ROUNDED:
                self.end_pts = end

    def opened(self) -> Any:
        """The file, address or device, opened by FFmpeg."""
        text = locator(self._where) if isinstance(self._where, Path) else self._where
        timeout = _TIMEOUT if is_url(str(self._where)) else None
        try:
            return av.open(text, format=self._driver, metadata_errors="replace", timeout=timeout)
        except (av.InvalidDataError, EOFError):
            wrong = "is no video that FFmpeg can read, or its header is cut off or damaged"
            raise InputError(f"{self.name}: {wrong}") from None
        except (av.FFmpegError, OSError, ValueError) as error:
            wrong = f"cannot be opened ({reason(error)}); check the file or the connection"
            raise InputError(f"{self.name}: {wrong}") from error

    def _open(self) -> None:
        container = self._container = self.opened()
        films = [
            stream
            for stream in container.streams.video
            if not stream.disposition & av.stream.Disposition.attached_pic
            and stream.codec_context is not None
            and stream.codec_context.name not in _NOT_FILM
        ]
        if not films:
            raise InputError(f"{self.name}: has no video stream that FFmpeg can decode")
        if container.format.name.endswith("_pipe"):
            wrong = "FFmpeg reads it as a still picture; make it a GIF or a film, or give it as a photo"
            raise InputError(f"{self.name}: {wrong}")
        self._stream: Any = max(films, key=lambda one: (one.width * one.height, one.frames, -one.index))

    def _describe(self, picture: Any, *, turned: bool) -> VideoInfo:
        """What is known of the film, from its header and its first picture."""
        stream, container = self._stream, self._container
        others = Counter(other.type for other in container.streams if other.type != "audio" and other is not stream)
        left = [f"{count} {kind} streams" for kind, count in sorted(others.items())]
        left += ["chapters"] * bool(container.chapters())
        notes = ["The picture is interlaced; its frames were made whole."] * self._interlaced
        if max(part.bits for part in picture.format.components) > 8:
            notes.append("The picture has more than 8 bits per channel; it is processed in 8.")
        if left:
            notes.append(f"Left out: {', '.join(left)}.")
        width, height, aspect = picture.width, picture.height, stream.sample_aspect_ratio or Fraction(1)
        if turned:
            width, height, aspect = height, width, 1 / aspect
        self._stored = width, height  # of pictures as they are read, before they are stretched
        if _SQUARE < max(aspect, 1 / aspect) <= _WRONG_ASPECT:  # enlarged only, so that nothing is lost
            width, height, aspect = round(width * max(aspect, 1)), round(height * max(1 / aspect, 1)), Fraction(1)
        rate = stream.average_rate or stream.guessed_rate or None
        duration = float(stream.duration * stream.time_base) if stream.duration else _length(container)
        count = stream.frames or (round(duration * rate) if duration and rate else None)
        if duration and (self.start is not None or self.end is not None):
            part = max(0.0, min(duration, duration if self.end is None else self.end) - (self.start or 0.0))
            duration, count = part, None if count is None else round(count * part / duration)
        return VideoInfo(
            width,
            height,
            stream.time_base,
            rate,
            count,
            duration,
            picture.format.name,
            colour_range=2 if is_full_range(picture.format.name, picture.color_range) else picture.color_range,
            colour_space=picture.colorspace,
            colour_primaries=picture.color_primaries,
            colour_transfer=picture.color_trc,
            sample_aspect_ratio=aspect,
            audio_streams=len(container.streams.audio),
            notes=tuple(notes),
        )

    def _begin(self) -> Iterator[_Decoded]:
        """Pictures from some point before the start on."""
        begun, self._begun = self._begun, None
        if begun is not None and (self.live or not self.start):
            return begun
        jumps: list[int | None] = [None]
        if self.start and self.start >= 5 and self._first_pts is not None:
            jumps = [int(self._first_pts + (self.start - 1) / self._stream.time_base), None]
        for jump in jumps:
            self._container.close()
            self._container = self._stream = None
            gc.collect()  # PyAV's containers and streams hold each other, and a decoder many pictures
            self._open()
            decoder = self._decode(jump)
            first = next(decoder, None)
            if first is not None and (jump is None or (first[0] is not None and first[0] <= jump)):
                return chain([first], decoder)
            decoder.close()  # the jump went too far, or nowhere
        return iter(())

    def _decode(self, target: int | None = None) -> Generator[_Decoded]:
        """Pictures from somewhere before a tick on; at their end it is known what was wrong with the source."""
        # AVI holds times of decoding only, and what FFmpeg makes of them for H.264 is late and uneven.
        is_avi = self._container.format.name == "avi"
        watch, count, last, tick = _Watch(self._container, self._stream), 0, None, -1
        for picture in self._whole(self._decoded(watch, target)):
            count, last = count + 1, picture.pts if last is None else max(last, picture.pts or last)
            # The last frames leave the decoder without the time of a packet: one follows the other.
            tick = tick + 1 if picture.dts is None else picture.dts
            yield tick if is_avi else picture.pts, picture, orientation_of(picture)
        # Where threads decode several pictures at a time, PyAV gives up those after the first damaged one at the end.
        faulty = watch.damaged or watch.errors or watch.lost
        if faulty and count < watch.packets and last is not None and not self.live and not is_avi:
            self._container.close()
            self._open()
            self._stream.codec_context.thread_count = 1
            for picture in self._whole(self._decoded(_Watch(self._container, self._stream), last)):
                if (picture.pts or last) > last:
                    watch.damaged += picture.is_corrupt
                    yield picture.pts, picture, orientation_of(picture)
        self.damage += tuple(watch.sentences(self.name, whole=target is None))

    def _whole(self, pictures: Iterable[Any]) -> Iterator[Any]:
        """Pictures, interlaced ones made whole (FFmpeg's bwdif), one for one with their times."""
        graph, times = None, deque[tuple[int | None, int | None, int]]()
        for picture in chain(pictures, [None]):
            if graph is None and picture is not None and picture.interlaced_frame:
                self._interlaced, graph = True, av.filter.Graph()
                begin = graph.add_buffer(template=self._stream, time_base=self._stream.time_base)
                graph.link_nodes(begin, graph.add("bwdif", "send_frame"), graph.add("buffersink")).configure()
            if graph is None:
                if picture is not None:
                    yield picture
                continue
            if picture is not None:
                times.append((picture.pts, picture.dts, picture.duration))
            graph.push(picture)
            with suppress(av.BlockingIOError, av.EOFError):
                while times:
                    made: Any = graph.pull()
                    made.time_base = self._stream.time_base
                    made.pts, made.dts, made.duration = times.popleft()
                    yield made

    def _decoded(self, watch: _Watch, target: int | None) -> Iterator[Any]:
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
                        watch.damaged += not packet.is_corrupt
                        continue
                    for picture in pictures:
                        # Before the place that was asked for, pictures may lack those they are made from.
                        watch.damaged += picture.is_corrupt and (target is None or (picture.pts or 0) >= target)
                        yield picture
                return
            except (av.FFmpegError, OSError) as error:
                watch.errors += 1
                if self.live or watch.errors > MAX_ERRORS:
                    watch.lost = reason(error)
                    return

    def close(self) -> None:
        """Let go of the file, camera or connection."""
        self._begun = None
        if self._container is not None:
            self._container.close()

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
        if self._last is None:
            self._last = pts or 0
            return self._last
        usual = self._last + self.interval
        time = usual if pts is None else pts + self._offset
        if self._last - time > self._jump:
            self._offset, time = self._offset + usual - time, usual
        self._last = max(time, self._last + 1)
        return self._last


class _Watch:
    """Counts what goes wrong while a file is read, and how far it reaches."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.index, self.count = stream.index, stream.frames
        self.interval = float(1 / stream.average_rate) if stream.average_rate else 0.04
        self.duration, self.start = _length(container), float((container.start_time or 0) * _MICROSECOND)
        self.reached = 0.0
        self.packets = self.damaged = self.errors = 0
        self.lost = ""

    def see(self, packet: Any) -> None:
        if not packet.size:
            return
        self.errors = 0
        if packet.stream_index == self.index:
            self.packets += 1
            self.damaged += bool(packet.is_corrupt)
        time = packet.pts if packet.pts is not None else packet.dts
        if time is not None:
            self.reached = max(self.reached, float((time + (packet.duration or 0)) * packet.time_base) - self.start)

    def sentences(self, name: str, *, whole: bool) -> Iterator[str]:
        """What was wrong; `whole` where the file was read from its beginning."""
        missing = 0.0 if self.duration is None else self.duration - self.reached
        # Packets that an edit list leaves out are missing too, but not at the end.
        if self.lost:
            yield f"{name}: reading broke off at {self.reached:.2f} s ({self.lost})."
        elif missing > _CUT or (whole and self.packets < self.count and missing > 1.5 * self.interval):
            yield f"{name}: cut off at {self.reached:.2f} s; everything up to there was read."
        if self.damaged:
            yield f"{name}: {self.damaged} damaged packets or frames of its video, which are left out or guessed."


def _length(container: Any) -> float | None:
    """Seconds from the beginning of the first stream to the end of the last; None where the file does not say."""
    stated, late = container.duration, max(0, container.start_time or 0)
    if not stated:
        return None
    until_end = container.format.name in ("matroska,webm", "nut") and stated > late  # these state when it ends
    return float((stated - (late if until_end else 0)) * _MICROSECOND)
