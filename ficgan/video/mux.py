"""The segments of a film and the source's sound, joined into one file."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.video.encode import ANIMATIONS, container_of, muxer_options, plan_encoding, write_failed
from ficgan.video.ffmpeg_source import open_input
from ficgan.video.media import EncodeOptions, Frame, RGBReader, VideoInfo, VideoSource, locator, partial_file
from ficgan.video.write import Segment, VideoWriter

__all__ = ["Assembled", "assemble", "check_output"]

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
    try:
        if kind in ANIMATIONS:
            _animate(film, path, info, kind, options, overwrite)
            if info.audio_streams and options.audio == "copy":
                notes.append(f"The sound is dropped: {kind} holds none.")
        else:
            sound = source if _takes_sound(source, options, kind) else None
            with partial_file(path, overwrite=overwrite) as temporary:
                streams, packets = _mux(film, sound, temporary, path, kind, info, notes)
            if info.audio_streams and options.audio == "copy" and sound is None:
                notes.append("The sound of a camera or stream is dropped.")
    except (av.FFmpegError, OSError) as error:
        write_failed(str(path), error)
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
    begin, end = int(film.times[0]) * film.base, film.end * film.base
    muxer = muxer_options(container, film.base)
    with ExitStack() as stack:
        out = av.open(locator(temporary), "w", format=container, container_options=muxer)
        stack.enter_context(closing(out))
        head = stack.enter_context(closing(av.open(locator(film.paths[0]))))
        video = _add_video(out, head.streams.video[0], film.base, info)
        trimmed = sound is not None and (bool(sound.start) or sound.end is not None)
        tracks: dict[int, Any] = {}
        starts = [begin]
        parts: list[Iterator[tuple[float, Any]]] = []
        count = [0]
        if sound is not None:
            assert sound.path is not None
            source = stack.enter_context(closing(open_input(sound.path, sound.name)))
            tracks = _add_audio(out, source, path)
            if not trimmed:
                starts += [s.start_time * s.time_base for s in source.streams.audio if s.start_time is not None]
        # Whole ticks of the picture, so that its times stay exact; a start before 0 is the container's matter.
        shift = max(0, math.floor(min(starts) / film.base))
        window: tuple[Fraction, Fraction | float] | None = (begin, end) if trimmed else None
        if container == "avi":  # has no times: a later begin would lengthen the first frame
            shift, window = int(film.times[0]), (begin, end if trimmed else math.inf)
        if sound is not None:
            least = 0 if container == "avi" else None
            parts.append(_audio_packets(source, tracks, shift * film.base, window, least, count, notes))
        parts.append(_video_packets(film, video, shift))
        for _, packet in heapq.merge(*parts, key=lambda part: part[0]):
            out.mux(packet)
        out.close()  # here, where an error is still reported
    return len(tracks), count[0]


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
    least: int | None, count: list[int], notes: list[str],
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
                count[0] += 1
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
