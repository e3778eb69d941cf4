"""Films in: files, animations, cameras and streams as upright RGB frames with rising times, and where scenes begin."""

from __future__ import annotations

import gc
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise, product, repeat
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError, reason
from ficgan.faces.detection import check_image
from ficgan.images import CAMERA, display_name, is_url

Image = NDArray[np.uint8]
# Transposed, then mirrored left to right, then top to bottom: the eight positions of a picture.
Orientation = tuple[bool, bool, bool]
UPRIGHT: Orientation = (False, False, False)
# swscale's numbers of the matrices by FFmpeg's AVColorSpace: BT.709, FCC, BT.601 (two names), SMPTE 240M, BT.2020.
_MATRICES = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}
_BT709, _BT601 = 1, 5
_FULL_RANGE = 2


def matrix_of(colour_space: int, width: int, height: int) -> int:
    """swscale's number of the matrix of an AVColorSpace; where none is stated, as players choose it."""
    return _MATRICES.get(colour_space, _BT709 if width >= 1280 or height > 576 else _BT601)


def is_full_range(pixel_format: str, colour_range: int) -> bool:
    """Whether luma runs from 0 to 255 (`pc`) and not from 16 to 235 (`tv`)."""
    return colour_range == _FULL_RANGE or pixel_format.startswith("yuvj")


def exact_reformat() -> Callable[..., av.VideoFrame]:
    """A reformatter that keeps swscale's tables and rounds: by its quick ways a film gets darker by 1 of 255."""
    exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
    return partial(VideoReformatter().reformat, interpolation=Interpolation.BILINEAR | exact, threads=1)


def rgb_reader(*, quick: bool = False) -> Callable[..., Image]:
    """What makes upright RGB, uint8 [H,W,3], of decoded frames; `quick`: a little too dark, in a tenth of the time."""
    reformat, options = exact_reformat(), {"interpolation": None} if quick else {}

    def read(frame: av.VideoFrame, orientation: Orientation = UPRIGHT) -> Image:
        full, rgb = is_full_range(frame.format.name, frame.color_range), frame.format.is_rgb
        converted = reformat(
            frame,
            format="rgb24",
            src_colorspace=None if rgb else matrix_of(frame.colorspace, frame.width, frame.height),
            src_color_range=2 if full or rgb else 1,
            dst_color_range=_FULL_RANGE,
            **options,
        )
        transposed, mirrored, upended = orientation
        image = converted.to_ndarray().swapaxes(0, 1) if transposed else converted.to_ndarray()
        return np.ascontiguousarray(image[:: -1 if upended else 1, :: -1 if mirrored else 1])

    return read


def orientation_of(frame: Any) -> Orientation:
    """How a decoded frame is to be turned, in quarters. Asked once, as its side data goes.

    FFmpeg's display matrix [a b u; c d v; x y w] turns a picture so: x' = a·x + c·y, y' = b·x + d·y.
    """
    data = frame.side_data
    side = data.get("DISPLAYMATRIX") if len(data) else None
    matrix = [1, 0, 0, 0, 1] if side is None else np.frombuffer(bytes(side), np.int32)
    # Frame and side data hold each other, and pictures would wait for the garbage collector by the hundred.
    data.__init__(av.VideoFrame())
    a, b, c, d = (float(matrix[i]) for i in (0, 1, 3, 4))
    straight, crossed = min(abs(a), abs(d)), min(abs(b), abs(c))
    if straight < 0.01 * crossed:
        return True, c < 0, b < 0
    return (False, a < 0, d < 0) if crossed < 0.01 * straight else UPRIGHT


def letterboxed(image: Image, size: tuple[int, int]) -> Image:
    """A picture in another size, with its shape; the rest is black."""

    (width, height), (rows, columns) = size, image.shape[:2]
    scale = min(width / columns, height / rows)
    w, h = max(1, min(width, round(columns * scale))), max(1, min(height, round(rows * scale)))
    top, left = (height - h) // 2, (width - w) // 2
    small = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return np.pad(small, ((top, height - h - top), (left, width - w - left), (0, 0)))


@dataclass(frozen=True)
class VideoInfo:
    """Properties of one video stream; what is unknown is None.

    Args:
        time_base: seconds of one tick of `Frame.pts`.
        rate: frames per second on average; frames carry their own times.
        frames, duration: as the file states; estimates.
        pixel_format, colour_…: of the stored picture, as FFmpeg names and numbers them; 0 or 2 is unspecified.
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


# -- sources -----------------------------------------------------------------------------------------------------------


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


# -- where scenes begin ------------------------------------------------------------------------------------------------

# Frames on either side of a cut that are compared: a flash or a dark frame is over within them.
NEAR = 3
# Least change between two frames that may be a cut, in standard deviations of the picture's luma.
CHANGE = 0.2
# Least score of a cut beyond the usual one around it. Chosen on made sequences of other sources than the figures in
# docs/video.md.
SCORE = 0.45
# Correlation of two places below which they are unlike, side of the window it is taken in, and variance of the luma
# (of 50² in all) that counts as noise.
CORRELATED, WINDOW, NOISE = 0.5, 7, 30.0
_WIDTH, _HEIGHT = 64, 36
# Share of a side that the whole picture may move between two frames.
_REACH = 0.4


class CutFrame:
    """A frame, H×W×3 uint8 RGB of any size, as cuts are looked for."""

    def __init__(self, image: NDArray[np.uint8]) -> None:

        check_image(image)
        # Every few pixels are enough, and many times faster to average than all.
        step = max(1, min(image.shape[1] // (4 * _WIDTH), image.shape[0] // (4 * _HEIGHT)))
        few = np.ascontiguousarray(image[::step, ::step])
        # uint8 [36,64,3].
        self.thumbnail: Any = cv2.resize(few, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA)
        luma = cv2.cvtColor(self.thumbnail, cv2.COLOR_RGB2GRAY).astype(np.float32)
        luma -= luma.mean()
        # float32 [36,64] of mean 128 and deviation 50. Below a deviation of 4 of 255 noise would be compared.
        self.luma: Any = np.clip(luma * (50 / max(float(luma.std()), 4.0)) + 128, 0, 255)

    def change(self, luma: Any) -> float:
        """Mean absolute difference from another luma, in standard deviations."""
        return float(np.abs(self.luma - luma).mean()) / 50

    def score(self, before: CutFrame) -> float:
        """How little of this picture an earlier one explains, 0 to about 1.

        The share of it that is nowhere in the other (not in its place, not moved with the whole picture, not moved
        alone), and half of the change that is left when the whole picture is moved.
        """

        x, y = np.meshgrid(np.arange(_WIDTH, dtype=np.float32), np.arange(_HEIGHT, dtype=np.float32))
        (dx, dy), _ = cv2.phaseCorrelate(self.luma - 128, before.luma - 128)
        if max(abs(dx) / _WIDTH, abs(dy) / _HEIGHT) > _REACH:
            dx = dy = 0.0
        flow: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        moved = flow.calc(self.luma.astype(np.uint8), before.luma.astype(np.uint8), None)

        def shifted(u: Any, v: Any) -> Any:
            return cv2.remap(before.luma, x + u, y + v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

        whole, alone = shifted(np.float32(dx), np.float32(dy)), shifted(moved[..., 0], moved[..., 1])
        best = np.max([_correlation(self.luma, luma) for luma in (before.luma, whole, alone)], axis=0)
        change = min(self.change(before.luma), self.change(whole))
        return float((best < CORRELATED).mean()) + change / 2


def _correlation(a: Any, b: Any) -> Any:
    """Correlation of two lumas in a window around each place, float32 [36,64]; 1 where both are plain."""

    def mean(values: Any) -> Any:
        return cv2.blur(values, (WINDOW, WINDOW))

    power = np.ones_like(a)
    for luma in (a, b):
        power *= np.maximum(mean(luma * luma) - mean(luma) ** 2, 0) + NOISE
    return (mean(a * b) - mean(a) * mean(b) + NOISE) / np.sqrt(power)


def is_cut(before: Sequence[CutFrame], after: Sequence[CutFrame]) -> bool:
    """Whether a cut lies between frames: the last `NEAR` before it and the first `NEAR` after it, or fewer."""
    if before[-1].change(after[0].luma) < CHANGE:
        return False
    sides = [list(pairwise(side)) for side in (before, after) if len(side) > 1]
    usual = min((float(np.median([b.score(a) for a, b in side])) for side in sides), default=0.0)
    return all(b.change(a.luma) >= CHANGE and b.score(a) - usual > SCORE for a, b in product(before, after))


def with_cuts(frames: Iterable[Frame]) -> Iterator[tuple[Frame, NDArray[np.uint8], bool]]:
    """Frames with their thumbnails, at most `NEAR` - 1 late, and whether a scene begins with each; the first begins
    none."""
    views: list[CutFrame] = []
    waiting: deque[Frame] = deque()  # frames that were not given out, of the last views
    for frame in chain(frames, repeat(None, NEAR - 1)):
        if frame is not None:
            views.append(CutFrame(frame.image))
            waiting.append(frame)
        if waiting and (frame is None or len(waiting) >= NEAR):
            place = len(views) - len(waiting)
            view, cut = views[place], place > 0 and is_cut(views[:place], views[place : place + NEAR])
            # What lies before a cut says nothing about the next one.
            del views[: place if cut else max(0, place + 1 - NEAR)]
            yield waiting.popleft(), view.thumbnail, cut
