"""Moving pictures out: a file or stream, segments to resume from, and segments and sound joined into one file."""

from __future__ import annotations

import heapq
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Self

import av
import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.files import partial_file
from ficgan.video.encode import (
    ANIMATIONS,
    Encoder,
    Encoding,
    container_of,
    muxer_options,
    plan_encoding,
    reporting,
)
from ficgan.video.media import EncodeOptions, Frame, RGBReader, VideoInfo, VideoSource, display_name, is_url, locator
from ficgan.video.read import open_input

__all__ = [
    "Assembled", "Segment", "SegmentWriter", "VideoWriter", "assemble", "check_output", "finished_segments",
]  # fmt: skip

_SEGMENT = "ficgan-segment-{:08d}-{:08d}.nut"
_SEGMENT_NAME = re.compile(r"ficgan-segment-(\d{8,})-(\d{8,})\.nut")
_UNFINISHED = "ficgan-unfinished.nut"
_LEFTOVER = re.compile(r"\.ficgan-[0-9a-f]{16}\.tmp")


class VideoWriter:
    """Encodes frames with their exact times into a file or a stream; a context manager.

    A file takes its name when the block ends well; on an error nothing of it is left. No tags, chapters or position of
    the source are written.

    Args:
        path: a file by its suffix (.mp4, .mov, .mkv, .webm, .avi, .gif, .webp …), or an address (`rtmp://…`, `pipe:1`).
        info: properties of the frames, their rotation already applied.
        container: FFmpeg's name of the container; None: by the name.
        encoding: how, where that is settled already; None: by the options.
        origin: tick that becomes time 0.
        mode: permissions of a file, less the umask.
    """

    def __init__(
        self, path: str | os.PathLike[str], info: VideoInfo, options: EncodeOptions | None = None, *,
        overwrite: bool = False, container: str | None = None, encoding: Encoding | None = None, origin: int = 0,
        mode: int = 0o666,
    ) -> None:  # fmt: skip
        options, target = options or EncodeOptions(), os.fspath(path)
        self.name, self._origin = display_name(target), origin
        self.container = container_of(target, container)
        self.encoding = encoding or plan_encoding(info, options, self.container)
        if not is_url(target) and not Path(target).parent.is_dir():
            raise InputError(f"{target}: its folder does not exist; make it first")
        with ExitStack() as stack, reporting(self.name):
            if not is_url(target):
                target = locator(stack.enter_context(partial_file(target, overwrite=overwrite, mode=mode)))
            muxer = muxer_options(self.container, self.encoding.time_base)
            self._encoder = Encoder(target, self.container, info, self.encoding, threads=options.threads, options=muxer)
            stack.callback(self._encoder.abandon)
            self._stack = stack.pop_all()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.encoding.notes

    @property
    def frames(self) -> int:
        return self._encoder.frames

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` (uint8 [H,W,3] RGB) at its time."""
        with reporting(self.name):
            self._encoder.write(frame.image if image is None else image, frame.pts - self._origin, frame.duration)

    def close(self) -> None:
        """Complete the file and give it its name; an error where no frame was written."""
        with self._stack, reporting(self.name):
            if not self._encoder.frames:
                raise InputError(f"{self.name}: no frame was written, so there is no film")
            self._encoder.finish()

    def discard(self) -> None:
        """Leave nothing of the file."""
        with suppress(InterruptedError), self._stack:
            raise InterruptedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


# -- segments ----------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A finished segment of a film."""

    first: int
    """Number of its first frame."""
    last: int
    """Number of its last frame."""
    path: Path


def finished_segments(folder: str | os.PathLike[str]) -> list[Segment]:
    """The finished segments in a folder that follow each other without a gap, from frame 0 on."""
    found = []
    for path in Path(folder).iterdir():
        if match := _SEGMENT_NAME.fullmatch(path.name):
            found.append(Segment(int(match[1]), int(match[2]), path))
    line: list[Segment] = []
    for segment in sorted(found):
        if segment.first == (line[-1].last + 1 if line else 0):
            line.append(segment)
    return line


class SegmentWriter:
    """Encodes frames into segments that each stand alone, so that an interrupted job resumes after the last whole one.

    Args:
        folder: where the segments are; the rest of an interrupted one is removed.
        options: the same for all segments of a film.
        output: the film that will be assembled, for its container.
        seconds: length of a segment.
    """

    def __init__(
        self, folder: str | os.PathLike[str], info: VideoInfo, options: EncodeOptions | None = None, *,
        output: str | os.PathLike[str] = "film.mp4", seconds: float = 10.0, container: str | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._info, self._options = Path(folder), info, options or EncodeOptions()
        container = container_of(os.fspath(output), container)
        self.encoding = plan_encoding(info, self._options, container)
        if container in ANIMATIONS:  # a palette is chosen once, at the end; until then nothing is lost
            self.encoding = plan_encoding(info, EncodeOptions(codec="ffv1", pixel_format="bgr0"), "nut")
        self._length = max(1, round(seconds / info.time_base))
        self.segments = finished_segments(self.folder)
        self._part: VideoWriter | None = None
        self._begin = 0
        for path in self.folder.iterdir():
            if _LEFTOVER.fullmatch(path.name) or path.name == _UNFINISHED:
                path.unlink(missing_ok=True)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.encoding.notes

    @property
    def next_frame(self) -> int:
        """Number of the first frame that is in no finished piece: what `VideoSource.frames` is to begin with."""
        return self.segments[-1].last + 1 if self.segments else 0

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` at its time; frames come in order and none is left out."""
        expected = self.next_frame + (self._part.frames if self._part else 0)
        if frame.index != expected:
            raise ValueError(f"frame {frame.index} was given, frame {expected} is the next")
        if self._part is not None and frame.pts - self._begin >= self._length:
            self.close()
        if self._part is None:
            self._begin = frame.pts
            self._part = VideoWriter(
                self.folder / _UNFINISHED, self._info, self._options, container="nut", encoding=self.encoding,
                overwrite=True, mode=0o600,
            )  # fmt: skip
        try:
            self._part.write(frame, image)
        except BaseException:
            self.discard()
            raise

    def close(self) -> list[Segment]:
        """Complete the last segment; returns all segments of the film, in order."""
        if self._part is not None:
            part, self._part = self._part, None
            part.close()
            first, last = self.next_frame, self.next_frame + part.frames - 1
            path = self.folder / _SEGMENT.format(first, last)
            os.replace(self.folder / _UNFINISHED, path)
            self.segments.append(Segment(first, last, path))
        return self.segments

    def discard(self) -> None:
        """Give up the piece that is not finished; the finished ones stay."""
        if self._part is not None:
            self._part.discard()
            self._part = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


# -- the whole film ----------------------------------------------------------------------------------------------------

_MAX_ERRORS = 100
"""Reading errors in a row after which the rest of the sound is given up."""
_LONGEST_LEAD = Fraction(1)
"""Seconds; a film that ends with a still must not begin with as long a wait."""


@dataclass(frozen=True)
class Assembled:
    """What was put together."""

    path: Path
    frames: int
    duration: float
    """Of the picture, seconds."""
    audio_streams: int
    audio_packets: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Film:
    """The pieces of a film, looked through."""

    paths: list[Path]
    times: NDArray[np.int64]
    """Of all frames, in the order of showing, in ticks of `base`."""
    delay: int
    """By how many frames packets come before their turn."""
    base: Fraction
    end: int
    """Tick at which the last frame ends."""


def check_output(
    source: VideoSource | None, output: str | os.PathLike[str], options: EncodeOptions | None = None, *,
    overwrite: bool = False, container: str | None = None,
) -> None:  # fmt: skip
    """Find out before hours of work whether the result could be written."""
    options, path = options or EncodeOptions(), Path(output)
    kind = container_of(path, container)
    if options.audio not in ("copy", "drop"):
        raise UsageError(f"audio is {options.audio!r}, and must be copy or drop")
    if source is not None and source.path is not None and path.exists() and path.samefile(source.path):
        raise InputError(f"{path}: is the input itself; choose another output")
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path}: exists already; use --overwrite to replace it, or choose another output")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")
    if _takes_sound(source, options, kind):
        assert source is not None and source.path is not None
        with closing(open_input(source.path, source.name)) as film:
            trial = av.open(f"file:{os.devnull}", "w", format=kind)
            _add_audio(trial, film, path)
            try:
                trial.start_encoding()
            except (av.FFmpegError, ValueError) as error:
                raise _no_room(path, film.streams.audio[0]) from error
            finally:
                with suppress(Exception):
                    trial.close()


def _takes_sound(source: VideoSource | None, options: EncodeOptions, container: str) -> bool:
    silent = source is None or source.path is None or not source.info.audio_streams
    return options.audio == "copy" and not silent and container not in ANIMATIONS


def assemble(
    segments: Sequence[Segment], source: VideoSource | None, output: str | os.PathLike[str],
    options: EncodeOptions | None = None, *, info: VideoInfo | None = None, overwrite: bool = False,
    container: str | None = None,
) -> Assembled:  # fmt: skip
    """Join the segments of a film and the source's sound into one file.

    Times stay as they are in the source, less what the source begins later than 0; where a span was chosen, the film
    begins at 0 and the sound is cut to it, to whole packets.

    Args:
        segments: all of them, in order.
        source: for its sound, its span, and the time at which its last frame ends.
        info: properties of the film; None: the source's.
    """
    options, path = options or EncodeOptions(), Path(output)
    info = info or (source.info if source is not None else None)
    if info is None:
        raise ValueError("assemble needs a source or the properties of the film")
    check_output(source, path, options, overwrite=overwrite, container=container)
    kind = container_of(path, container)
    plan = plan_encoding(info, options, kind)
    base = info.time_base if kind in ANIMATIONS else plan.time_base
    film = _look_through(segments, base, info, source)
    notes = list(plan.notes)
    streams = packets = 0
    has_sound = bool(info.audio_streams) and options.audio == "copy"
    with reporting(str(path)):
        if kind in ANIMATIONS:
            _animate(film, path, info, kind, options, overwrite)
            if has_sound:
                notes.append(f"The sound is dropped: {kind} holds none.")
        else:
            sound = source if _takes_sound(source, options, kind) else None
            with partial_file(path, overwrite=overwrite) as temporary:
                streams, packets = _mux(film, sound, temporary, path, kind, info, notes)
            if has_sound and sound is None:
                notes.append("The sound of a camera or stream is dropped.")
    duration = float((film.end - int(film.times[0])) * base)
    return Assembled(path, len(film.times), duration, streams, packets, tuple(notes))


def _look_through(segments: Sequence[Segment], base: Fraction, info: VideoInfo, source: VideoSource | None) -> _Film:
    if not segments:
        raise InputError("no finished piece of the film was found, so there is nothing to assemble")
    times: list[NDArray[np.int64]] = []
    delay, looks = 0, set()
    for segment in segments:
        broken = InputError(f"{segment.path}: this piece of the film is damaged; remove it and go on with the job")
        try:
            with av.open(locator(segment.path)) as file:
                stream: Any = file.streams.video[0]
                context, scale = stream.codec_context, stream.time_base / base
                looks.add((context.name, stream.width, stream.height, context.pix_fmt, context.extradata))
                found = [round(packet.pts * scale) for packet in file.demux(stream) if packet.size]
        except (av.FFmpegError, OSError, IndexError, TypeError) as error:
            raise broken from error
        if len(found) != segment.last - segment.first + 1 or len(set(found)) != len(found):
            raise broken
        order = np.argsort(np.asarray(found, np.int64))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        delay = max(delay, int((np.arange(len(order)) - rank).max()))
        times.append(np.sort(np.asarray(found, np.int64)))
    if len(looks) > 1:
        raise InputError(
            f"{segments[0].path.parent}: the pieces of the film were encoded with different settings; "
            "remove the folder and begin again, or go on with the settings it was begun with"
        )
    line = np.concatenate(times)
    if (np.diff(line) <= 0).any():
        raise InputError(f"{segments[0].path.parent}: the pieces do not follow each other; remove the folder")
    last, end = int(line[-1]), None
    if source is not None and source.end_pts is not None:
        end = round(source.end_pts * info.time_base / base)
    if end is None or end <= last:
        end = last + max(1, round(1 / (info.rate * base)) if info.rate else int(line[-1] - line[-2:][0]))
    return _Film([segment.path for segment in segments], line, delay, base, end)


def _mux(
    film: _Film, sound: VideoSource | None, temporary: Path, path: Path, container: str, info: VideoInfo,
    notes: list[str],
) -> tuple[int, int]:  # fmt: skip
    """Write picture and sound; returns the numbers of streams and packets of the sound."""
    begin, end = int(film.times[0]) * film.base, film.end * film.base
    with ExitStack() as stack:
        muxer = muxer_options(container, film.base)
        out = stack.enter_context(
            closing(av.open(locator(temporary), "w", format=container, container_options=muxer))
        )
        head = stack.enter_context(closing(av.open(locator(film.paths[0]))))
        video = _add_video(out, head.streams.video[0], film.base, info)
        starts, tracks, trimmed = [begin], {}, False
        if sound is not None:
            assert sound.path is not None
            source = stack.enter_context(closing(open_input(sound.path, sound.name)))
            tracks = _add_audio(out, source, path)
            trimmed = bool(sound.start) or sound.end is not None
            if not trimmed:
                starts += [s.start_time * s.time_base for s in source.streams.audio if s.start_time is not None]
        # Whole ticks of the picture, so that its times stay exact; a start before 0 is the container's matter.
        shift = max(0, math.floor(min(starts) / film.base))
        window: tuple[Fraction, Fraction | float] | None = (begin, end) if trimmed else None
        if container == "avi":  # has no times: a later begin would lengthen the first frame
            shift, window = int(film.times[0]), (begin, end if trimmed else math.inf)
        parts = [_video_packets(film, video, shift)]
        if tracks:
            least = 0 if container == "avi" else None
            parts.insert(0, _audio_packets(source, tracks, shift * film.base, window, least, notes))
        packets = 0
        for _, packet in heapq.merge(*parts, key=lambda part: part[0]):
            packets += packet.stream.type == "audio"
            out.mux(packet)
        out.close()  # here, where an error is still reported
    return len(tracks), packets


def _add_video(out: Any, template: Any, base: Fraction, info: VideoInfo) -> Any:
    stream = out.add_stream_from_template(template, opaque=True)
    stream.time_base = base
    context = stream.codec_context
    if info.rate:
        context.framerate = info.rate
    context.sample_aspect_ratio = info.sample_aspect_ratio
    context.color_primaries, context.color_trc = info.colour_primaries or 2, info.colour_transfer or 2
    if context.name == "hevc" and out.format.name in ("mp4", "mov"):
        context.codec_tag = "hvc1"
    return stream


def _add_audio(out: Any, source: Any, path: Path) -> dict[int, Any]:
    tracks = {}
    for stream in source.streams.audio:
        try:
            track = out.add_stream_from_template(stream)
        except ValueError as error:
            raise _no_room(path, stream) from error
        if stream.language:
            track.metadata["language"] = stream.language
        track.disposition = stream.disposition & av.stream.Disposition.default
        tracks[stream.index] = track
    return tracks


def _no_room(path: Path, stream: Any) -> InputError:
    codec = stream.codec_context.name if stream.codec_context is not None else "unknown"
    return InputError(
        f"{path}: this kind of file cannot hold the source's sound ({codec}); write .mkv, or leave the sound out "
        "with --audio drop"
    )


def _video_packets(film: _Film, stream: Any, shift: int) -> Iterator[tuple[float, Any]]:
    """The pictures' packets with times of decoding made anew: the encoder of a piece knew nothing of the one before."""
    times, number, lead = film.times, 0, _lead(film)
    for path in film.paths:
        with closing(av.open(locator(path))) as file:
            piece: Any = file.streams.video[0]
            scale = piece.time_base / film.base
            for packet in file.demux(piece):
                if not packet.size:
                    continue
                pts = round(packet.pts * scale)
                rank = int(np.searchsorted(times, pts))
                early = number - film.delay
                dts = int(times[early]) if early >= 0 else int(times[0]) + early * lead // film.delay
                packet.duration = (int(times[rank + 1]) if rank + 1 < len(times) else film.end) - pts
                packet.time_base, packet.pts, packet.dts, packet.stream = film.base, pts - shift, dts - shift, stream
                number += 1
                yield float((dts - shift) * film.base), packet


def _lead(film: _Film) -> int:
    """Ticks by which decoding begins before showing.

    MP4 takes the sum of the steps between times of decoding for the length of the film. It comes out right if decoding
    begins as early as it ends: by the span of the last `delay` frames.
    """
    times, delay = film.times, film.delay
    if not delay or len(times) <= delay:
        return delay
    return max(delay, min(int(times[-1] - times[-1 - delay]), int(_LONGEST_LEAD / film.base)))


def _audio_packets(
    source: Any, tracks: dict[int, Any], shift: Fraction, window: tuple[Fraction, Fraction | float] | None,
    least: int | None, notes: list[str],
) -> Iterator[tuple[float, Any]]:  # fmt: skip
    last: dict[int, int] = {}
    errors = mended = 0
    while errors <= _MAX_ERRORS:
        try:
            for packet in source.demux(list(source.streams.audio)):
                errors = 0
                if not packet.size:
                    continue
                base, index = packet.time_base, packet.stream_index
                ticks = round(shift / base)
                pts = packet.pts if packet.pts is not None else packet.dts
                if pts is None:
                    pts = last.get(index, 0)
                elif window is not None:
                    until = (pts + (packet.duration or 0)) * base
                    if until <= window[0] or pts * base >= window[1]:
                        continue
                dts = packet.dts if packet.dts is not None else pts
                pts, dts = pts - ticks, dts - ticks
                if least is not None:
                    pts, dts = max(pts, least), max(dts, least)
                if index in last and dts <= last[index]:
                    mended += 1
                    dts = last[index] + 1
                last[index], pts = dts, max(pts, dts)
                packet.pts, packet.dts, packet.stream = pts, dts, tracks[index]
                yield float(dts * base), packet
            break
        except (av.FFmpegError, OSError):
            errors += 1
    if errors:
        notes.append("The sound could not be read to its end.")
    if mended:
        notes.append(f"{mended} packets of sound had times that fall back and were moved behind the one before.")


def _animate(film: _Film, path: Path, info: VideoInfo, container: str, options: EncodeOptions, overwrite: bool) -> None:
    reader, times, number = RGBReader(), film.times, 0
    with VideoWriter(path, info, options, overwrite=overwrite, container=container, origin=int(times[0])) as writer:
        for piece in film.paths:
            with closing(av.open(locator(piece))) as file:
                for frame in file.decode(video=0):
                    pts = int(times[number])
                    until = int(times[number + 1]) if number + 1 < len(times) else film.end
                    writer.write(Frame(number, pts, float(pts * info.time_base), reader(frame), until - pts))
                    number += 1
