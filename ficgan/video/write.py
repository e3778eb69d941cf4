"""A film in segments, to resume from, and its segments and sound joined into one file."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.files import partial_file, taken
from ficgan.video import EncodeOptions, PathLike
from ficgan.video.encode import (
    _MP4,
    ANIMATION,
    Sound,
    Timed,
    VideoWriter,
    add_mark,
    container_of,
    muxer_options,
    plan_encoding,
    reporting,
    tags,
)
from ficgan.video.read import VideoSource
from ficgan.video.source import Frame, VideoInfo, locator, rgb_reader

_SEGMENT = "ficgan-segment-{:08d}-{:08d}.nut"
_UNFINISHED = "ficgan-unfinished.nut"


class Segment(NamedTuple):
    """A finished segment of a film, by the numbers of its first and last frame."""

    first: int
    last: int
    path: Path


def finished_segments(folder: PathLike) -> list[Segment]:
    """The finished segments in a folder that follow each other without a gap, from frame 0 on."""
    line: list[Segment] = []
    for path in sorted(Path(folder).glob("ficgan-segment-*.nut")):
        first, last = (int(number) for number in path.stem.split("-")[2:])
        if first == (line[-1].last + 1 if line else 0):
            line.append(Segment(first, last, path))
    return line


class SegmentWriter(AbstractContextManager["SegmentWriter"]):
    """Encodes frames into segments of a film `output` that each stand alone, so that an interrupted job resumes after
    the last whole one. Each but the last is at least `seconds` long and ends before a frame where it `may_end`."""

    def __init__(
        self,
        folder: PathLike,
        info: VideoInfo,
        options: EncodeOptions,
        *,
        output: PathLike,
        seconds: float = 10.0,
        may_end: Callable[[int], bool] = lambda frame: True,
    ) -> None:
        self.folder, self._info, self._may_end = Path(folder), info, may_end
        container = container_of(output)
        self.encoding = plan_encoding(info, options, container)
        if container == ANIMATION:  # a palette is chosen once, at the end; until then nothing is lost
            self.encoding = plan_encoding(info, EncodeOptions(codec="ffv1", pixel_format="bgr0"), "nut")
        self._length = max(1, round(seconds / info.time_base))
        self.segments = finished_segments(self.folder)
        self._part: VideoWriter | None = None
        self._stack = ExitStack()  # of the part
        self._begin = 0

    @property
    def next_frame(self) -> int:
        """Number of the first frame that is in no finished segment: what `VideoSource.frames` is to begin with."""
        return self.segments[-1].last + 1 if self.segments else 0

    def ends_before(self, frame: Frame) -> bool:
        """Whether the segment so far is long enough for the next frame to begin another one."""
        return self._part is not None and frame.pts - self._begin >= self._length and self._may_end(frame.index)

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` at its time; frames come in order and none is left out."""
        if self.ends_before(frame):
            self.close()
        if self._part is None:
            self._begin = frame.pts
            file = self._stack.enter_context(partial_file(self.folder / _UNFINISHED, overwrite=True, mode=0o600))
            self._part = self._stack.enter_context(VideoWriter(file, self._info, self.encoding))
        self._part.write(frame, image)

    def close(self) -> None:
        if self._part is not None:
            first, last = self.next_frame, self.next_frame + self._part.frames - 1
            self._part = None
            self._stack.close()
            path = self.folder / _SEGMENT.format(first, last)
            os.replace(self.folder / _UNFINISHED, path)
            self.segments.append(Segment(first, last, path))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:  # the finished segments stay
            self._stack.__exit__(kind, error, trace)


# -- the whole film ----------------------------------------------------------------------------------------------------

# Seconds; a film that ends with a still must not begin with as long a wait.
_LONGEST_LEAD = Fraction(1)


@dataclass(frozen=True)
class Assembled:
    """What was put together: `duration` of the picture, `damage` of the sound, `synthetic`: whether marked."""

    path: Path
    frames: int
    duration: float
    audio_streams: int
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    synthetic: bool = False


def check_output(source: VideoSource, output: PathLike, options: EncodeOptions, *, overwrite: bool = False) -> None:
    """Find out before hours of work whether the result could be written."""
    path = Path(output)
    container = container_of(path)
    if options.audio not in ("copy", "drop"):
        raise UsageError(f"audio is {options.audio!r}, and must be copy or drop")
    plan_encoding(source.info, options, container)
    if source.path is not None and path.exists() and path.samefile(source.path):
        raise InputError(f"{path}: is the input itself; choose another output")
    if os.path.lexists(path) and not overwrite:
        raise taken(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")
    if (file := _sound_of(source, options, container)) is not None:
        with file, av.open(f"file:{os.devnull}", "w", format=container) as trial:
            Sound(file, trial, path)


def _sound_of(source: VideoSource, options: EncodeOptions, container: str) -> Any:
    """The source opened again, if its sound goes into the result."""
    if source.path is None or not source.info.audio_streams or options.audio == "drop" or container == ANIMATION:
        return None
    return source.opened()


def assemble(
    segments: Sequence[Segment],
    source: VideoSource,
    output: PathLike,
    options: EncodeOptions,
    *,
    overwrite: bool = False,
    synthetic: bool = False,
) -> Assembled:
    """Join all segments of a film and the source's sound into one file; `synthetic`: it is marked as such.

    Times stay as they are in the source, less what the source begins later than 0; where a span was chosen, the film
    begins at 0 and the sound is cut to it, to whole packets.
    """
    path = Path(output)
    film = _Film(segments, source, path, options)
    notes, damage, streams = list[str](), list[str](), 0
    with reporting(path), partial_file(path, overwrite=overwrite) as temporary:
        sound = None
        if film.container == ANIMATION:
            film.animate(temporary)
        else:
            sound = film.mux(temporary, tags(film.container) if synthetic else {})
        if synthetic:
            add_mark(temporary, film.container)
    if sound is not None:
        streams, notes = len(sound.tracks), sound.notes
        damage = [f"{source.name}: parts of its sound are damaged and left out."] if sound.lost else []
    elif source.info.audio_streams and options.audio == "copy":
        notes = ["The sound is dropped: an animation holds none, and that of a stream is not recorded."]
    duration = float((film.end - int(film.times[0])) * film.base)
    return Assembled(path, len(film.times), duration, streams, tuple(notes), tuple(damage), synthetic)


class _Film:
    """The segments of a film, looked through and put together."""

    def __init__(self, segments: Sequence[Segment], source: VideoSource, path: Path, options: EncodeOptions) -> None:
        info = self.info = source.info
        self.source, self.path, self.options, self.container = source, path, options, container_of(path)
        self.paths = [segment.path for segment in segments]
        self.plan = plan_encoding(info, options, self.container)
        self.base = info.time_base
        if not segments:
            raise InputError("no finished segment of the film was found, so there is nothing to assemble")
        # Frames by which packets come before their turn; ticks of `base` of all frames in the order of showing, and the
        # one at which the last frame ends.
        self.delay, shown = 0, list[NDArray[np.int64]]()
        for segment in segments:
            damaged = f"{segment.path}: this segment of the film is damaged; remove it and go on with the job"
            try:
                found = np.array([pts for _, pts in _packets(segment.path, self.base)], np.int64)
            except (av.FFmpegError, OSError, IndexError, TypeError) as error:
                raise InputError(damaged) from error
            if len(found) != segment.last - segment.first + 1:
                raise InputError(damaged)
            self.delay = max(self.delay, int((np.arange(len(found)) - np.argsort(np.argsort(found))).max()))
            shown.append(np.sort(found))
        self.times = np.concatenate(shown)
        last, self.end = int(self.times[-1]), -1 if source.end_pts is None else source.end_pts
        if self.end <= last:
            usual = round(1 / (info.rate * self.base)) if info.rate else last - int(self.times[-2:][0])
            self.end = last + max(1, usual)
        self.ends = np.append(self.times[1:], self.end)

    def mux(self, temporary: Path, metadata: dict[str, str]) -> Sound | None:
        """Write picture and sound; returns the sound, if there is any, closed."""
        base, begin, end = self.base, int(self.times[0]) * self.base, self.end * self.base
        with ExitStack() as stack:
            muxer = muxer_options(self.container, base)
            opened = av.open(locator(temporary), "w", format=self.container, container_options=muxer)
            out = stack.enter_context(opened)
            out.metadata.update(metadata)
            with av.open(locator(self.paths[0])) as first:
                video = out.add_stream_from_template(first.streams.video[0], opaque=True)
            context, video.time_base = video.codec_context, base
            if self.info.rate:
                context.framerate = self.info.rate
            context.sample_aspect_ratio = self.info.sample_aspect_ratio
            self.plan.tag_colours(context, self.info)
            if context.name == "hevc" and self.container in _MP4:
                context.codec_tag = "hvc1"  # what Apple's players ask for
            sound, starts, window = None, [begin], None
            if (file := _sound_of(self.source, self.options, self.container)) is not None:
                sound = Sound(stack.enter_context(file), out, self.path)
                if self.source.start or self.source.end is not None:
                    window = begin, end
                else:
                    starts += [one.start_time * one.time_base for one in sound.streams if one.start_time is not None]
            # Whole ticks of the picture, so that its times stay exact; a start before 0 is the container's matter.
            shift = max(0, math.floor(min(starts) / base))
            heard = () if sound is None else sound.read(shift * base, window)
            for _, packet in heapq.merge(heard, self._video_packets(video, shift), key=lambda part: part[0]):
                try:
                    out.mux(packet)
                except av.InvalidDataError:  # the frame of a packet of a broadcast is damaged
                    if sound is None or packet.stream.type != "audio":
                        raise
                    sound.lost += 1
            out.close()  # here, where an error is still reported
            return sound

    def _video_packets(self, stream: Any, shift: int) -> Iterator[Timed]:
        """The pictures' packets with new times of decoding: the encoder of a segment knew nothing of the one before."""
        times, delay = self.times, self.delay
        # Decoding begins before showing. MP4 takes the sum of its steps for the film's length: right if it begins as
        # early as it ends.
        lead = min(int(times[-1] - times[-1 - delay]), int(_LONGEST_LEAD / self.base))
        early = times[0] + np.arange(-delay, 0) * max(delay, lead) // max(delay, 1)
        decoded = np.append(early, times)[: len(times)].tolist()
        packets = chain.from_iterable(_packets(path, self.base) for path in self.paths)
        for (packet, pts), dts in zip(packets, decoded, strict=True):
            packet.duration = int(self.ends[np.searchsorted(times, pts)]) - pts
            if dts == decoded[-1] and self.container in _MP4:
                # The step of decoding that ends the film, whichever picture comes last.
                packet.duration = self.end - int(times[-1])
            packet.pts, packet.dts = pts - shift, dts - shift
            packet.time_base, packet.stream = self.base, stream
            yield float((dts - shift) * self.base), packet

    def animate(self, temporary: Path) -> None:
        reader, number = rgb_reader(), 0
        with VideoWriter(temporary, self.info, self.plan, self.container, origin=int(self.times[0])) as writer:
            for path in self.paths:
                with av.open(locator(path)) as file:
                    for frame in file.decode(video=0):
                        pts = int(self.times[number])
                        writer.write(Frame(number, pts, 0.0, reader(frame), int(self.ends[number]) - pts))
                        number += 1


def _packets(path: Path, base: Fraction) -> Iterator[tuple[Any, int]]:
    """The packets of a segment's pictures, as they are decoded, and their times in ticks of `base`."""
    with av.open(locator(path)) as file:
        stream: Any = file.streams.video[0]
        for packet in file.demux(stream):
            if packet.size:
                yield packet, round(packet.pts * stream.time_base / base)
