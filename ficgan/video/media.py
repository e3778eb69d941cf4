"""Moving pictures: their properties and frames, FFmpeg's names and colours, and what every source has in common."""

from __future__ import annotations

import os
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.options import FilmEncoding

if TYPE_CHECKING:
    import av

__all__ = ["EncodeOptions", "Frame", "VideoInfo", "VideoSource", "display_name", "exact_reformat", "is_url"]

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class VideoInfo:
    """Properties of one video stream.

    Args:
        width, height: of the frames, upright and of square pixels.
        time_base: seconds of one tick of `Frame.pts`.
        rate: average frames per second; None where unknown (a stream, a camera). Frames carry their own times.
        frames: number of frames as the file states or as counted; an estimate, None where unknown.
        duration: seconds; None where unknown.
        pixel_format: FFmpeg's name, of the stored picture.
        colour_range, colour_space, colour_primaries, colour_transfer: as FFmpeg numbers them; 0 or 2 is unspecified.
        rotation: degrees the stored picture was turned by (0, 90, 180, 270), already applied to the frames.
        sample_aspect_ratio: width by height of a stored pixel. Where it is far from 1, frames are wider or higher than
            the stored picture: of a squeezed face neither shape nor pose can be read.
        fields: which rows of an interlaced picture come first: "tff" (0, 2, 4 …) or "bff"; "" of other pictures.
        mastering_display, light_level: HDR10's fixed data as x264 and x265 write them:
            `G(x,y)B(x,y)R(x,y)WP(x,y)L(most,least)` in 1/50,000 and 1/10,000 candela, `MaxCLL,MaxFALL`; "" where there
            are none.
        notes: what was noticed and what was left out (cover art, a second video stream, subtitles), each a sentence.
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
    rotation: int = 0
    sample_aspect_ratio: Fraction = Fraction(1)
    codec: str = ""
    audio_streams: int = 0
    fields: str = ""
    mastering_display: str = ""
    light_level: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stored(self) -> tuple[int, int]:
        """Width and height of the stored picture, upright, pixels."""
        wider, higher = _stretch(self.sample_aspect_ratio)
        return round(self.width / wider), round(self.height / higher)


# Up to the first, pixels count as square: faces take no harm, and the rows of interlaced pictures (nearly all 8:9 to
# 12:11) stay apart. Beyond the second the file is wrong.
_SQUARE, _WRONG_ASPECT = Fraction(5, 4), 4


def _stretch(aspect: Fraction) -> tuple[Fraction, Fraction]:
    """How many times wider and higher than stored a picture is to be read; enlarged only, so that nothing is lost."""
    if not _SQUARE < max(aspect, 1 / aspect) <= _WRONG_ASPECT:
        return Fraction(1), Fraction(1)
    return max(aspect, Fraction(1)), max(1 / aspect, Fraction(1))


def square(width: int, height: int, aspect: Fraction) -> tuple[int, int]:
    """Width and height of the frames that are read from a stored picture."""
    wider, higher = _stretch(aspect)
    return round(width * wider), round(height * higher)


@dataclass(frozen=True, eq=False)
class Frame:
    """One upright frame.

    Args:
        index: number in the order of showing, from 0.
        pts: time of showing in ticks of `VideoInfo.time_base`.
        time: the same in seconds from the first frame on.
        image: H×W×3 RGB, not to be changed in place.
        duration: ticks it is shown for, as the file states; None where it does not.
        stored: the picture as it is stored, where its pixels are not square.
    """

    index: int
    pts: int
    time: float
    image: Image
    duration: int | None = None
    stored: Image | None = None


@dataclass(frozen=True)
class EncodeOptions(FilmEncoding):
    """How a result is encoded.

    Args:
        codec, crf, pixel_format, audio: see `FilmEncoding`. crf None: 18 for H.264, 20 for HEVC, 24 for VP9.
            pixel_format None: the source's where the encoder takes it, otherwise the nearest that keeps depth and
            colour resolution.
        tag: mark a result with generated faces as synthetic media.
        options: further options of FFmpeg's encoder, such as {"preset": "slow"}.
        threads: of the encoder; 0: as many as it likes.
    """

    tag: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|pipe:")


def is_url(source: str) -> bool:
    """Whether a source or target is an address (`rtsp://…`, `pipe:`), not a file of this machine."""
    return bool(_SCHEME.match(source))


def locator(path: str | os.PathLike[str]) -> str:
    """A file's name as FFmpeg takes it literally: `a:b.mp4` is no protocol then, and `-x.mp4` no option."""
    return f"file:{Path(path).absolute()}"


def display_name(source: str) -> str:
    """A source as it may stand in a message: addresses without user, password and query."""
    if not is_url(source) or source.startswith("pipe:"):
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason(error: BaseException) -> str:
    """What FFmpeg or the system says went wrong, without number and file name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")


# -- pictures --------------------------------------------------------------------------------------------------------

Orientation = tuple[bool, bool, bool]
"""Transposed, then mirrored left to right, then top to bottom: the eight positions of a picture."""
IDENTITY: Orientation = (False, False, False)
ROTATIONS = {IDENTITY: 0, (True, True, False): 90, (False, True, True): 180, (True, False, True): 270}
"""Clockwise degrees; mirrored pictures have none."""

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


def orientation_of(frame: Any) -> Orientation | None:
    """How a decoded frame is to be turned; None: by anything but quarters. Asked once, as its side data goes.

    FFmpeg's display matrix [a b u; c d v; x y w] turns a picture so: x' = a·x + c·y, y' = b·x + d·y.
    """
    import av

    data = frame.side_data
    side = data.get("DISPLAYMATRIX") if len(data) else None
    matrix = None if side is None else np.frombuffer(bytes(side), np.int32)
    # Frame and side data hold each other, and pictures would wait for the garbage collector by the hundred.
    data.__init__(av.VideoFrame())
    if matrix is None:
        return IDENTITY
    a, b, c, d = (float(matrix[i]) for i in (0, 1, 3, 4))
    straight, crossed = min(abs(a), abs(d)), min(abs(b), abs(c))
    if crossed < 0.01 * straight:
        return False, a < 0, d < 0
    if straight < 0.01 * crossed:
        return True, c < 0, b < 0
    return None


def fields_of(frame: Any, orientation: Orientation | None) -> str:
    """Which rows of an upright picture come first; "" where it is not interlaced, or turning made columns of them."""
    import av

    transposed, _, upended = orientation or IDENTITY
    if transposed or not frame.interlaced_frame:
        return ""
    graph = av.filter.Graph()  # PyAV tells no more, and containers know it of few films
    begin = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 1000))
    passed, end = graph.add("select", "eq(interlace_type,TOPFIRST)"), graph.add("buffersink")
    begin.link_to(passed)
    passed.link_to(end)
    graph.configure()
    graph.push(frame)
    try:
        graph.pull()
    except av.BlockingIOError:
        return "tff" if upended else "bff"
    return "bff" if upended else "tff"


def hdr_of(frame: Any) -> tuple[str, str, bool]:
    """`mastering_display` and `light_level` of `VideoInfo`, and whether there is more; before `orientation_of`."""
    found = {data.type.name: bytes(data) for data in list(frame.side_data)}
    mastering = light = ""
    # FFmpeg's AVMasteringDisplayMetadata: fractions of R, G, B, white, least and most luminance; what of them is known.
    if len(data := found.get("MASTERING_DISPLAY_METADATA", b"")) >= 88 and all(struct.unpack_from("=2i", data, 80)):
        numbers = struct.unpack_from("=20i", data)
        values = [n / d if d else 0.0 for n, d in zip(numbers[::2], numbers[1::2], strict=True)]
        red, green, blue, white = ([round(value * 50_000) for value in values[k : k + 2]] for k in (0, 2, 4, 6))
        luminance = [round(value * 10_000) for value in values[:7:-1]]
        parts = {"G": green, "B": blue, "R": red, "WP": white, "L": luminance}
        mastering = "".join(f"{name}({max(0, a)},{max(0, b)})" for name, (a, b) in parts.items())
    if any(data := found.get("CONTENT_LIGHT_LEVEL", b"")[:8]):  # zeros: unknown
        light = "{},{}".format(*struct.unpack_from("=2I", data))
    return mastering, light, any(name.startswith(("DYNAMIC_HDR", "DOVI")) for name in found)


def resized(image: Image, width: int, height: int) -> Image:
    """A picture [H,W,3] or mask [H,W] in another size, whatever that makes of its shape."""
    import cv2

    if image.shape[:2] == (height, width):
        return image
    smaller = width * height < image.shape[0] * image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)


def _fit(image: Image, width: int, height: int) -> Image:
    """Scale a picture into another size, its shape kept, the rest black: uint8 [height,width,3]."""
    import cv2

    rows, columns = image.shape[:2]
    scale = min(width / columns, height / rows)
    w, h = max(1, min(width, round(columns * scale))), max(1, min(height, round(rows * scale)))
    out = np.zeros((height, width, 3), np.uint8)
    top, left = (height - h) // 2, (width - w) // 2
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    out[top : top + h, left : left + w] = cv2.resize(image, (w, h), interpolation=how)
    return out


def exact_reformat() -> Callable[..., av.VideoFrame]:
    """`VideoReformatter.reformat` that keeps swscale's tables from frame to frame, and rounds.

    By its quick ways to RGB and back a film gets darker by 1 of 255, one of 10 bits by 6 of 1023.
    """
    from av.video.reformatter import Interpolation, VideoReformatter

    exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
    return partial(VideoReformatter().reformat, interpolation=Interpolation.BILINEAR | exact, threads=1)


class RGBReader:
    """Turns decoded frames into upright RGB; `quick`: a little too dark, in .7 ms in place of 11 for 1920×1080."""

    def __init__(self, *, quick: bool = False) -> None:
        self._reformat = exact_reformat()
        self._options = {"interpolation": None} if quick else {}

    def __call__(self, frame: av.VideoFrame, orientation: Orientation = IDENTITY) -> Image:
        """An upright picture uint8 [H,W,3], contiguous."""
        import cv2

        full, rgb = is_full_range(frame.format.name, frame.color_range), frame.format.is_rgb
        converted = self._reformat(
            frame,
            format="rgb24",
            src_colorspace=None if rgb else matrix_of(frame.colorspace, frame.width, frame.height),
            src_color_range=2 if full or rgb else 1,
            dst_color_range=_FULL_RANGE,
            **self._options,
        )
        image: Any = converted.to_ndarray()
        transposed, mirrored, upended = orientation
        if transposed:
            image = cv2.transpose(image)
        if mirrored or upended:
            image = cv2.flip(image, -1 if mirrored and upended else int(mirrored))
        return np.ascontiguousarray(image)


# -- sources ---------------------------------------------------------------------------------------------------------

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
    """A moving picture to read; use it as a context manager.

    `path` is None for a camera, a stream or a sequence of images; a `live` one can be read only once.
    """

    start: float | None = None
    end: float | None = None
    """The span that is read, in seconds after the first frame."""
    quick = False
    """Whether the frames are for looking only, and may be a little darker than they are."""

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

    def frames(
        self, first: int = 0, wanted: Callable[[int], bool] | None = None, *, quick: bool = False
    ) -> Iterator[Frame]:
        """The frames in the order of showing, with strictly rising times and all of the size that `info` states.

        Args:
            first: number of the first frame wanted; earlier ones are decoded, but not converted.
            wanted: whether a frame of this number is wanted; the others are not converted. None: all are.
            quick: for looking only: no result is made of them.
        """
        if self.live and self._used:
            raise InputError(f"{self.name}: a camera or stream can be read only once; open it again")
        self._used, self._notes, self._damage, self.end_pts, self.quick = True, {}, [], None, quick
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
                picture = self._fitted(raw.rgb())
                image = resized(picture, self.info.width, self.info.height)
                stored = None if image is picture else picture
                yield Frame(index, pts, float((pts - zero) * base), image, raw.duration, stored)
            index += 1
        # Where B-frames meet a variable rate, the duration stored with the last picture is that of another one.
        stated = self._stated_end()
        if self.end_pts is None or pts is None or stated is None or self._damage:
            return
        if 0 < stated - pts <= 10 * clock.interval and abs(stated - self.end_pts) * base > _ROUNDED:
            self.end_pts = stated

    def _fitted(self, image: Image) -> Image:
        width, height = self.info.stored
        if image.shape[:2] == (height, width):
            return image
        self._note("The size of the picture changes: {} frames were scaled into the first size.")
        return _fit(image, width, height)

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
