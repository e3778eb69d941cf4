"""Whatever FFmpeg opens: video files, addresses, cameras."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

from ficgan.errors import InputError
from ficgan.video.media import (
    IDENTITY,
    Orientation,
    Raw,
    RGBReader,
    VideoInfo,
    VideoSource,
    is_full_range,
    is_url,
    locator,
    orientation_of,
    reason,
    rotation_of,
)

__all__ = ["StreamSource", "open_camera", "open_input"]

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


def open_camera(number: int) -> StreamSource:
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
