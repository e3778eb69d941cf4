"""Films out: encoders, colours, the mark of synthetic media, writers of files and streams, sound."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.codec import find_best_pix_fmt_of_list
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError, reason
from ficgan.images.photo import DIGITAL_SOURCE_TYPE, make_xmp
from ficgan.video import EncodeOptions, PathLike
from ficgan.video.read import MAX_ERRORS
from ficgan.video.source import Frame, VideoInfo, exact_reformat, locator, matrix_of

# FFmpeg's name of the container by the suffix of a file.
CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".gif": "gif"}
# Container of pictures, without sound.
ANIMATION = "gif"
_MP4 = ("mp4", "mov")


@dataclass(frozen=True)
class _FilmEncoder:
    """FFmpeg's name, usual crf and options; whether reduced chroma needs an even width and height."""

    name: str
    crf: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    even: bool = False


ENCODERS = {
    "h264": _FilmEncoder("libx264", 18, {"preset": "veryfast"}, even=True),
    "hevc": _FilmEncoder("libx265", 20, {"preset": "veryfast", "x265-params": "log-level=none:open-gop=0"}, even=True),
    "vp9": _FilmEncoder("libvpx-vp9", 24, {"cpu-used": "5", "deadline": "good", "row-mt": "1", "b": "0"}),
    "ffv1": _FilmEncoder("ffv1", None, {"level": "3", "slicecrc": "1"}),
    "gif": _FilmEncoder("gif"),
}


@dataclass(frozen=True)
class Encoding:
    """How one film is encoded; `matrix` is swscale's number, None where RGB is stored, `colour_space` FFmpeg's."""

    encoder: str
    pixel_format: str
    time_base: Fraction
    options: Mapping[str, str]
    matrix: int | None
    full_range: bool
    colour_space: int

    def tag_colours(self, context: Any, info: VideoInfo) -> None:
        """Write into a codec's context which colours the pictures have."""
        context.colorspace, context.color_range = self.colour_space, 2 if self.full_range else 1
        context.color_primaries, context.color_trc = info.colour_primaries or 2, info.colour_transfer or 2


def container_of(target: PathLike) -> str:
    """FFmpeg's name of the container to write, by suffix."""
    found = CONTAINERS.get(Path(target).suffix.lower())
    if found is None:
        raise UsageError(f"{target}: films are written as {', '.join(CONTAINERS)}; choose one of these")
    return found


def plan_encoding(info: VideoInfo, options: EncodeOptions, container: str) -> Encoding:
    """How a film is encoded."""
    codec = options.codec
    if codec == "h264":
        codec = {"webm": "vp9", "gif": "gif"}.get(container, codec)
    if codec not in ENCODERS:
        raise UsageError(f"codec {codec!r} is unknown; use one of {', '.join(ENCODERS)}")
    encoder = ENCODERS[codec]
    if not holds(container, encoder.name):
        raise UsageError(f"{container} cannot hold {codec} video; write .mkv, or choose another codec")
    if options.crf is not None and (encoder.crf is None or not 0 <= options.crf <= 63):
        raise UsageError(f"{codec}: crf is {options.crf}; give a number from 0 to 51, or 63 for vp9, and none for ffv1")
    pixel_format = _pixel_format(encoder, info, options.pixel_format)
    rgb = av.VideoFormat(pixel_format).is_rgb
    matrix = None if rgb else matrix_of(info.colour_space, info.width, info.height)
    # 0, of RGB, is no colour space of YUV.
    space = 0 if rgb else info.colour_space or {1: 1, 5: 6}[matrix or 1]
    crf = encoder.crf if options.crf is None else options.crf
    return Encoding(
        encoder.name,
        pixel_format,
        Fraction(1, 100) if container == ANIMATION else info.time_base,
        {**encoder.options, **({} if crf is None else {"crf": str(crf)}), **options.options},
        matrix,
        rgb or (info.colour_range == 2 and not av.VideoFormat(info.pixel_format).is_rgb),
        space,
    )


def holds(container: str, encoder: str) -> bool:
    """Whether a container holds what an encoder makes."""
    with av.open(f"file:{os.devnull}", "w", format=container) as file:  # opened only when something is written
        return av.Codec(encoder, "w").canonical_name in file.supported_codecs


def _pixel_format(encoder: _FilmEncoder, info: VideoInfo, wanted: str | None) -> str:
    """The one that is asked for, or the source's, or the nearest that keeps depth and colour resolution."""
    formats = av.Codec(encoder.name, "w").video_formats or ()
    offered = [f for f in formats if not any(part.is_alpha for part in f.components) and not f.name.startswith("yuvj")]
    if encoder.even and (info.width % 2 or info.height % 2):  # whole pixels of colour only
        offered = [f for f in offered if (f.chroma_width(2), f.chroma_height(2)) == (2, 2)]
    names = [f.name for f in offered]
    if wanted is not None and wanted not in names:
        size = f"{info.width}×{info.height}"
        raise UsageError(f"{encoder.name} takes no {wanted!r} for {size}; use one of {', '.join(names)}")
    if wanted is not None or encoder.name == "gif":
        return wanted or "pal8"
    source = av.VideoFormat(info.pixel_format.replace("yuvj", "yuv"))
    alike = [f.name for f in offered if f.is_rgb == source.is_rgb] or names
    best, _ = find_best_pix_fmt_of_list(alike, source.name)
    return names[0] if best is None else best.name


def muxer_options(container: str, time_base: Fraction) -> dict[str, str]:
    """Options of the container's writer: index in front, times neither moved nor rounded."""
    if container not in _MP4:  # nut holds no times of decoding, which alone are negative
        return {"avoid_negative_ts": "disabled"} if container == "nut" else {}
    scale = time_base.denominator
    while scale < 1000:
        scale *= 10
    return {"movflags": "+faststart", "movie_timescale": str(scale)}


@contextmanager
def reporting(name: str | Path) -> Iterator[None]:
    """Report what FFmpeg or the system cannot write as an `InputError`."""
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT
        remedy = "; make room there, or choose another folder" if full else ""
        raise InputError(f"{name}: cannot be written ({reason(error)}){remedy}") from error


class VideoWriter(AbstractContextManager["VideoWriter"]):
    """Encodes frames with their exact times into a file, whole when the block ends; its caller gives it a name then.

    No tags, chapters or position of the source are written. `origin` is the tick that becomes time 0.
    """

    def __init__(
        self, path: Path, info: VideoInfo, encoding: Encoding, container: str = "nut", *, origin: int = 0
    ) -> None:
        self._path, self._info, self.encoding, self._origin = path, info, encoding, origin
        self.frames = 0
        self._reformat = exact_reformat()
        self._last: int | None = None
        self._scale = info.time_base / encoding.time_base
        with reporting(path):
            muxer = muxer_options(container, encoding.time_base)
            self._file = av.open(locator(path), "w", format=container, container_options=muxer)
        try:
            stream: Any = self._file.add_stream(encoding.encoder, rate=info.rate or 30, options=dict(encoding.options))
            self._stream, context, stream.time_base = stream, stream.codec_context, encoding.time_base
            context.width, context.height, context.pix_fmt = info.width, info.height, encoding.pixel_format
            context.time_base, context.sample_aspect_ratio = encoding.time_base, info.sample_aspect_ratio
            encoding.tag_colours(context, info)
            context.flags |= av.codec.context.Flags.frame_duration
            context.open()
        except (av.FFmpegError, ValueError) as error:
            self._file.close()
            wrong = f"{encoding.encoder} refuses these settings ({reason(error)})"
            raise UsageError(f"{wrong}; check crf, pixel format and options") from error

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` (uint8 [H,W,3] RGB) at its time."""
        picture = self._picture(np.ascontiguousarray(frame.image if image is None else image))
        tick = round((frame.pts - self._origin) * self._scale)
        if self._last is not None and tick <= self._last:  # a coarser clock must not let two frames fall together
            tick = self._last + 1
        length = frame.duration or (1 / (self._info.rate * self._info.time_base) if self._info.rate else None)
        picture.pts, picture.time_base, self._last = tick, self.encoding.time_base, tick
        if length:
            picture.duration = max(1, round(length * self._scale))
        with reporting(self._path):
            self._file.mux(self._stream.encode(picture))
        self.frames += 1

    def _picture(self, image: NDArray[np.uint8]) -> Any:
        plan = self.encoding
        if plan.pixel_format == "pal8":
            return _with_palette(image)
        frame = av.VideoFrame.from_numpy_buffer(image)
        frame.color_range = 2
        yuv = {"dst_colorspace": plan.matrix, "dst_color_range": 2 if plan.full_range else 1}
        made = self._reformat(frame, format=plan.pixel_format, **({} if plan.matrix is None else yuv))
        made.colorspace = plan.colour_space
        return made

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                with reporting(self._path):
                    self._file.mux(self._stream.encode(None))
                    self._file.close()
        finally:
            with suppress(Exception):
                self._file.close()


def _with_palette(image: NDArray[np.uint8]) -> Any:
    from PIL import Image

    reduced = Image.fromarray(image).quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.FLOYDSTEINBERG)
    listed = np.asarray(reduced.getpalette("RGB"), np.uint8).reshape(-1, 3)
    colours = np.pad(listed, ((0, 256 - len(listed)), (1, 0)))
    colours[:, 0] = 255  # ARGB
    pair: Any = (np.asarray(reduced), colours)
    return av.VideoFrame.from_ndarray(pair, format="pal8")


# -- made with a generative model: IPTC's Digital Source Type ---------------------------------------------------------

# Of a box with XMP. Source: XMP Specification Part 3, Storage in Files, 2020, MPEG-4.
_UUID = bytes.fromhex("BE7ACFCB97A942E89C71999491E3AFAC")


def tags(container: str) -> dict[str, str]:
    """Tags that mark a file, to be written at its beginning; none where `add_mark` adds XMP at the end."""
    return {"DIGITAL_SOURCE_TYPE": DIGITAL_SOURCE_TYPE} if container in ("matroska", "webm") else {}


def add_mark(path: Path, container: str) -> None:
    """Mark a finished file with XMP, in place; nothing is done where `tags` mark it."""
    if tags(container):
        return
    xmp = make_xmp({}, synthetic=True)
    with path.open("r+b") as file:
        if container == ANIMATION:
            # Before the trailer. Readers without XMP skip it: whatever byte they take for a length leads to its end.
            file.seek(-1, os.SEEK_END)
            file.write(b"\x21\xff\x0bXMP DataXMP" + xmp + b"\x01" + bytes(range(255, -1, -1)) + b"\x00;")
        else:
            file.seek(0, os.SEEK_END)
            file.write(struct.pack(">I", 8 + len(_UUID) + len(xmp)) + b"uuid" + _UUID + xmp)


# For sound that a container cannot hold, best first, and their names.
_AUDIO_ENCODERS = {"aac": "AAC", "libopus": "Opus"}
# Bits per second of each channel.
_BIT_RATE = 96_000

# Second of decoding, packet.
Timed = tuple[float, Any]


class Sound:
    """The sound of PyAV's container `file` on its way into `out`, to be named `path`: copied, or else recoded.

    `notes` are worth knowing, each a sentence; `lost` counts what is damaged and left out, and is complete at the end.
    """

    def __init__(self, file: Any, out: Any, path: Path) -> None:
        self._file, self._container, self._path, self.notes = file, out.format.name, path, list[str]()
        # Streams of AAC as broadcasts have it, each packet in a frame. FFmpeg takes them out if the first one is.
        self._framed: set[int] = set()
        self._foreign: set[int] = set()  # streams that are recoded
        streams = file.streams.audio
        self.streams = [s for s in streams if s.codec_context is None or s.codec_context.sample_rate]
        self.lost = len(streams) - len(self.streams)  # nothing of them could be decoded
        self.tracks = {stream.index: self._add(out, stream) for stream in self.streams}

    def _add(self, out: Any, stream: Any) -> Any:
        source = stream.codec_context
        codec = "unknown" if source is None else source.name
        if _copies(self._container, stream):
            track = out.add_stream_from_template(stream)
            if codec == "aac" and not source.extradata:
                self._framed.add(stream.index)
        else:
            encoder = next((name for name in _AUDIO_ENCODERS if holds(self._container, name)), None)
            if encoder is None or source is None:
                raise InputError(
                    f"{self._path}: this kind of file cannot hold the source's sound ({codec}); write .mov or .mkv, or "
                    "leave the sound out with --audio drop"
                )
            rates, number = av.Codec(encoder, "w").audio_rates or (), source.layout.nb_channels
            track = out.add_stream(encoder, rate=source.sample_rate if source.sample_rate in rates else 48_000)
            # A file may state the number of channels alone.
            track.codec_context.layout = {1: "mono", 2: "stereo"}.get(number) or source.layout
            track.codec_context.bit_rate = _BIT_RATE * number
            self._foreign.add(stream.index)
            kind = _AUDIO_ENCODERS[encoder]
            self.notes.append(f"The sound is recoded to {kind}: {self._container} holds no {codec}.")
        if stream.language:
            track.metadata["language"] = stream.language
        track.disposition = stream.disposition & av.stream.Disposition.default
        return track

    def read(self, shift: Fraction, window: tuple[Fraction, Fraction] | None) -> Iterator[Timed]:
        """Packets less `shift` seconds; of a `window` in seconds those in it, whole."""
        last: dict[int, int] = {}
        errors = 0
        while self.streams and errors <= MAX_ERRORS:
            try:
                for packet in self._file.demux(self.streams):
                    errors = 0
                    index = packet.stream_index
                    if not packet.size or not _place(packet, shift, window, last):
                        continue
                    if index in self._foreign:
                        yield from self._recoded(index, packet)
                    elif index in self._framed and bytes(packet)[:1] != b"\xff":
                        self.lost += 1
                    else:
                        packet.stream = self.tracks[index]
                        yield float(packet.dts * packet.time_base), packet
                break
            except (av.FFmpegError, OSError):
                errors += 1
        self.lost += errors
        for index in self._foreign:
            yield from self._recoded(index, None)

    def _recoded(self, index: int, packet: Any) -> Iterator[Timed]:
        """A packet recoded; None: what is left."""
        frames: list[Any] = [None] if packet is None else []
        try:
            frames[:0] = self._file.streams[index].codec_context.decode(packet)
        except (av.FFmpegError, ValueError):
            self.lost += 1
        for frame in frames:
            for made in self.tracks[index].encode(frame):
                yield float(made.dts * made.time_base), made


def _place(packet: Any, shift: Fraction, window: tuple[Fraction, Fraction] | None, last: dict[int, int]) -> bool:
    """Give a packet its times in the result, rising in each stream; False where it lies outside of the window."""
    base, index = packet.time_base, packet.stream_index
    ticks, pts = round(shift / base), packet.pts if packet.pts is not None else packet.dts
    if pts is None:
        pts = last.get(index, 0)
    elif window is not None:
        until = (pts + (packet.duration or 0)) * base
        if until <= window[0] or pts * base >= window[1]:
            return False
    dts = (packet.dts if packet.dts is not None else pts) - ticks
    if index in last:
        dts = max(dts, last[index] + 1)
    last[index] = dts
    packet.pts, packet.dts = max(pts - ticks, dts), dts
    return True


def _copies(container: str, stream: Any) -> bool:
    """Whether a container holds the sound of a stream as it is."""
    with closing(av.open(f"file:{os.devnull}", "w", format=container)) as trial, suppress(av.FFmpegError, ValueError):
        trial.add_stream_from_template(stream)
        trial.start_encoding()
        return True
    return False
