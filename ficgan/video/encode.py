"""Films written: with which encoder, pixel format, colours and settings, and the writer of a file or stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import av
import numpy as np
from av.codec import find_best_pix_fmt_of_list
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.files import partial_file
from ficgan.video.mark import add_mark
from ficgan.video.media import (
    EncodeOptions,
    Frame,
    VideoInfo,
    display_name,
    exact_reformat,
    is_full_range,
    is_url,
    locator,
    matrix_of,
    reason,
    resized,
)

__all__ = [
    "ANIMATIONS",
    "Encoding",
    "VideoWriter",
    "container_of",
    "holds",
    "muxer_options",
    "plan_encoding",
    "reporting",
]

CONTAINERS: Mapping[str, str] = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "webm",
    ".avi": "avi",
    ".ts": "mpegts",
    ".m2ts": "mpegts",
    ".flv": "flv",
    ".nut": "nut",
    ".gif": "gif",
    ".webp": "webp",
}
"""FFmpeg's name of the container by the suffix of a file."""
_PROTOCOLS = {"rtmp": "flv", "rtmps": "flv", "rtsp": "rtsp", "rtp": "rtp", "udp": "mpegts", "srt": "mpegts"}
ANIMATIONS = ("gif", "webp")
"""Containers of pictures, without sound."""
_CODECS = {"webm": "vp9", "gif": "gif", "webp": "webp"}
"""What a container takes instead of H.264."""


@dataclass(frozen=True)
class _Settings:
    crf: int | None = None
    preset: tuple[str, str] | None = None
    """Name and value of the option that trades time for size."""
    options: Mapping[str, str] = field(default_factory=dict)
    even: bool = False
    """Whether reduced chroma needs an even width and height."""
    largest_tick: int | None = None
    """Largest denominator of the time base."""


_ENCODERS: dict[str, _Settings] = {
    "libx264": _Settings(18, ("preset", "veryfast"), even=True),
    "libx264rgb": _Settings(18, ("preset", "veryfast")),
    "libx265": _Settings(20, ("preset", "veryfast"), {"x265-params": "log-level=none:open-gop=0"}, even=True),
    "libvpx-vp9": _Settings(24, ("cpu-used", "5"), {"deadline": "good", "row-mt": "1", "b": "0"}),
    "libvpx": _Settings(10, ("cpu-used", "5"), {"deadline": "good", "b": "4000000"}, even=True),
    "libsvtav1": _Settings(26, ("preset", "10"), even=True),
    "libaom-av1": _Settings(24, ("cpu-used", "8"), {"row-mt": "1"}),
    "libopenh264": _Settings(None, None, {"b": "8000000"}, even=True),
    "mpeg4": _Settings(3, None, largest_tick=65535),
    "ffv1": _Settings(None, None, {"level": "3", "slicecrc": "1"}),
    "gif": _Settings(),
    "libwebp_anim": _Settings(90, None, {"loop": "0"}, even=True),
}
_FAMILIES: dict[str, tuple[str, ...]] = {
    "h264": ("libx264", "libopenh264", "mpeg4"),
    "hevc": ("libx265",),
    "h265": ("libx265",),
    "vp9": ("libvpx-vp9",),
    "vp8": ("libvpx",),
    "av1": ("libsvtav1", "libaom-av1"),
    "webp": ("libwebp_anim",),
}
"""Encoders of a codec, best first; those that need special hardware are used only when they are named."""
_SAY_ASPECT = ("libx264", "libx264rgb", "libx265", "mpeg4", "mp4", "mov", "avi")
"""Encoders and containers that say what shape pixels have. PyAV sets it in no Matroska, so other pixels are square."""
_SAY_FIELDS = ("libx264", "libx264rgb", "mpeg4", "ffv1")
"""Encoders that say of a picture that it is interlaced, so that players take its two moments apart."""
_ORDERS = {"tff": 2, "bff": 3}
"""FFmpeg's numbers of the orders of fields."""
_HDR10 = {
    "libx264": ("x264-params", "mastering-display=", "cll="),
    "libx265": ("x265-params", "master-display=", "max-cll="),
}
"""How encoders are told HDR10's fixed data."""
_QUALITY = {"libwebp_anim": "quality", "mpeg4": "qscale"}
"""What other encoders call their constant quality."""
_SPC_RGB, _UNSPECIFIED = 0, 2


@dataclass(frozen=True)
class Encoding:
    """How one film is encoded."""

    encoder: str
    pixel_format: str
    size: tuple[int, int]
    """Width and height of the stored picture."""
    aspect: Fraction
    """Width by height of its pixels."""
    time_base: Fraction
    options: Mapping[str, str]
    matrix: int | None
    """swscale's number of the matrix; None where RGB is stored."""
    full_range: bool
    colour_space: int
    """FFmpeg's number, for the tag."""
    quality: int | None = None
    """Fixed quantiser, for encoders that take it so."""
    b_frames: bool = True
    """Whether pictures may be stored out of order; AVI has no times to say so."""
    fields: str = ""
    """Which rows come first, as the pictures say; see `VideoInfo`."""
    notes: tuple[str, ...] = ()


def container_of(target: str | Path, container: str | None = None) -> str:
    """FFmpeg's name of the container to write: as the user named it, or by suffix or protocol."""
    text = str(target)
    found = container or CONTAINERS.get(Path(text).suffix.lower()) or _PROTOCOLS.get(text.partition("://")[0])
    if found is None:
        raise UsageError(f"{text}: no container is known for this name; use {', '.join(list(CONTAINERS)[:6])} or .gif")
    try:
        writable = av.ContainerFormat(found, "w").is_output
    except ValueError:
        writable = False
    if not writable:
        raise UsageError(f"container {found!r} cannot be written by this FFmpeg; use mp4, matroska or mov")
    return found


def plan_encoding(info: VideoInfo, options: EncodeOptions, container: str) -> Encoding:
    """How a film is encoded; the notes say what differs from the source or from what was asked for."""
    codec = _CODECS.get(container, "h264") if options.codec == "h264" else options.codec
    name = _encoder(codec)
    if not holds(container, name):
        raise UsageError(f"{container} cannot hold {name} video; write .mkv, or choose another codec")
    settings = _ENCODERS.get(name, _Settings())
    notes: list[str] = []
    if codec == "h264" and name != "libx264":
        notes.append(f"This FFmpeg has no x264; {name} is used.")
    shaped = name in _SAY_ASPECT or container in _SAY_ASPECT
    size, aspect = (info.stored, info.sample_aspect_ratio) if shaped else ((info.width, info.height), Fraction(1))
    pixel_format = _pixel_format(name, settings, info, size, options.pixel_format, notes)
    rgb = av.VideoFormat(pixel_format).is_rgb
    matrix = None if rgb else matrix_of(info.colour_space, *info.stored)
    space = _SPC_RGB if rgb else info.colour_space
    if not rgb and info.colour_space == _SPC_RGB:
        space = {1: 1, 5: 6}[matrix or 1]
    settled, quality = _settings(name, settings, options)
    hdr = info.mastering_display, info.light_level
    if any(hdr) and name in _HDR10:
        option, *names = _HDR10[name]
        told = [known + value for known, value in zip(names, hdr, strict=True) if value]
        settled[option] = ":".join([*filter(None, [settled.get(option)]), *told])
    elif any(hdr):
        notes.append(f"What HDR10 says of the display and the light is dropped: {name} holds none; H.264 and HEVC do.")
    # Of rows in pairs, chroma has half; x264 wants whole pairs of these.
    fields = info.fields if name in _SAY_FIELDS and not (name == "libx264" and size[1] % 4) else ""
    if info.fields and not fields:
        notes.append(f"The picture is interlaced, which {name} cannot say here: players show two moments at once.")
    base = _time_base(info, settings, container, notes)
    full = rgb or is_full_range(pixel_format, 0) or (info.colour_range == 2 and not _format(info.pixel_format).is_rgb)
    return Encoding(
        name,
        pixel_format,
        size,
        aspect,
        base,
        settled,
        matrix,
        full,
        space,
        quality,
        container != "avi",
        fields,
        tuple(notes),
    )


def holds(container: str, encoder: str) -> bool:
    """Whether a container holds what an encoder makes."""
    with av.open(f"file:{os.devnull}", "w", format=container) as file:  # opened only when something is written
        try:
            file.add_stream(encoder)
        except ValueError:
            return False
    return True


def _format(name: str) -> av.VideoFormat:
    try:
        return av.VideoFormat(name)
    except ValueError:
        return av.VideoFormat("yuv420p")


def _encoder(codec: str) -> str:
    for name in _FAMILIES.get(codec, (codec,)):
        try:
            found = av.Codec(name, "w")
        except ValueError:
            continue
        if found.type == "video":
            return name
    known = ", ".join(sorted({*_FAMILIES, "mpeg4", "ffv1"}))
    raise UsageError(f"codec {codec!r} is no video encoder of this FFmpeg; use one of {known}")


def _pixel_format(
    name: str, settings: _Settings, info: VideoInfo, size: tuple[int, int], wanted: str | None, notes: list[str]
) -> str:
    offered = [f for f in av.Codec(name, "w").video_formats or () if not any(c.is_alpha for c in f.components)]
    offered = [f for f in offered if not f.name.startswith("yuvj")]
    width, height = size
    odd = bool(width % 2 or height % 2)
    fitting = [f for f in offered if not (odd and settings.even and _is_subsampled(f))] or offered
    if wanted is not None:
        if wanted not in {f.name for f in offered}:
            names = ", ".join(f.name for f in offered)
            raise UsageError(f"pixel format {wanted!r} is not taken by {name}; use one of {names}")
        if wanted not in {f.name for f in fitting}:
            raise UsageError(
                f"pixel format {wanted!r} needs an even width and height, and the film has {width}×{height}; "
                "use yuv444p"
            )
        return wanted
    if name == "gif":
        return "pal8"
    source = _format(info.pixel_format.replace("yuvj", "yuv"))
    if source.name in {f.name for f in fitting}:
        return source.name
    alike = [f for f in fitting if f.is_rgb == source.is_rgb] or fitting
    if source.is_rgb and not any(f.is_rgb for f in fitting):  # RGB has full chroma
        source = av.VideoFormat("yuv444p10le" if max(c.bits for c in source.components) > 8 else "yuv444p")
    planar = alike if source.is_rgb else [f for f in alike if f.is_planar] or alike
    best, _ = find_best_pix_fmt_of_list([f.name for f in planar], source.name)
    chosen = best.name if best is not None else planar[0].name
    if odd and settings.even and _is_subsampled(source) and not _is_subsampled(av.VideoFormat(chosen)):
        notes.append(f"{width}×{height} is odd, so the colours are kept in full resolution ({chosen}).")
    return chosen


def _is_subsampled(format: av.VideoFormat) -> bool:
    return format.chroma_width(2) != 2 or format.chroma_height(2) != 2


def _settings(name: str, settings: _Settings, options: EncodeOptions) -> tuple[dict[str, str], int | None]:
    found = dict(settings.options)
    crf = settings.crf if options.crf is None else options.crf
    if options.crf is not None and not 0 <= options.crf <= 100:
        raise UsageError(f"crf is {options.crf}, and must lie between 0 and 63 (0 and 51 for H.264)")
    if options.crf is not None and settings.crf is None:
        raise UsageError(f"{name} has no constant quality; leave crf out")
    quality = None
    if crf is not None and _QUALITY.get(name) == "qscale":
        quality = crf
    elif crf is not None:
        found[_QUALITY.get(name, "crf")] = str(crf)
    if options.preset is not None and settings.preset is None:
        raise UsageError(f"{name} has no presets; leave preset out")
    if settings.preset is not None:
        found[settings.preset[0]] = options.preset or settings.preset[1]
    return found, quality


def _time_base(info: VideoInfo, settings: _Settings, container: str, notes: list[str]) -> Fraction:
    base = info.time_base
    if container == "avi":  # counts frames, and cannot hold anything between two of them
        base = 1 / (info.rate or Fraction(25))
        notes.append("AVI has one constant rate; the times of the frames are rounded to it.")
    elif container in ("gif", "flv"):
        base = Fraction(1, {"gif": 100, "flv": 1000}[container])
    elif container == "webp":
        base = Fraction(1, 1000)
    if settings.largest_tick is not None and base.denominator > settings.largest_tick:
        base = base * -(-base.denominator // settings.largest_tick)
        base = base if base.denominator <= settings.largest_tick else Fraction(1, 60000)
    return base


_FAST_START = ("mp4", "mov")


def muxer_options(container: str, time_base: Fraction) -> dict[str, str]:
    """Options of the container's writer: index in front, times neither moved nor rounded."""
    if container == "nut":  # holds no times of decoding, which alone are negative
        return {"avoid_negative_ts": "disabled"}
    if container not in _FAST_START:
        return {}
    scale = time_base.denominator
    while scale < 1000:
        scale *= 10
    return {"movflags": "+faststart", "movie_timescale": str(scale)}


@contextmanager
def reporting(name: str) -> Iterator[None]:
    """Report what FFmpeg or the system cannot write as an `InputError`."""
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT
        remedy = "; make room there, or choose another folder" if full else ""
        raise InputError(f"{name}: cannot be written ({reason(error)}){remedy}") from error


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
        self,
        path: str | os.PathLike[str],
        info: VideoInfo,
        options: EncodeOptions | None = None,
        *,
        overwrite: bool = False,
        container: str | None = None,
        encoding: Encoding | None = None,
        origin: int = 0,
        mode: int = 0o666,
    ) -> None:
        options, target = options or EncodeOptions(), os.fspath(path)
        self.name, self._info, self._origin = display_name(target), info, origin
        self.container = container_of(target, container)
        self.encoding = encoding or plan_encoding(info, options, self.container)
        self.frames = 0
        """Written so far."""
        self.synthetic = False
        """Whether it is to be marked as made with a model, when it is closed; then, whether it is."""
        self._reformat = exact_reformat()
        self._fields: Any = None
        """Marks pictures as interlaced, where they are; PyAV itself cannot."""
        self._durations: dict[int, int] = {}
        self._last: int | None = None
        self._zero: int | None = None
        self._begin: tuple[int, int] | None = None
        """Tick of the first picture, and of its decoding."""
        self._end = 0
        self._scale = info.time_base / self.encoding.time_base
        if not is_url(target) and not Path(target).parent.is_dir():
            raise InputError(f"{target}: its folder does not exist; make it first")
        with ExitStack() as stack, reporting(self.name):
            remote = is_url(target)
            if not remote:
                target = os.fspath(stack.enter_context(partial_file(target, overwrite=overwrite, mode=mode)))
            os.environ.setdefault("SVT_LOG", "0")  # read by SVT-AV1 as it opens: write nothing to the terminal
            self._target = target
            muxer = muxer_options(self.container, self.encoding.time_base)
            where = target if remote else locator(target)
            self._file = av.open(where, "w", format=self.container, container_options=muxer)
            stack.callback(self._let_go)
            try:
                self._open_stream(options.threads)
            except (av.FFmpegError, ValueError) as error:
                raise UsageError(
                    f"{self.encoding.encoder} refuses these settings ({reason(error)}); check crf, preset and pixel "
                    "format, and that there is enough memory"
                ) from error
            self._stack = stack.pop_all()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.encoding.notes

    def _open_stream(self, threads: int) -> None:
        info, plan = self._info, self.encoding
        stream: Any = self._file.add_stream(
            plan.encoder, rate=info.rate or 30, width=plan.size[0], height=plan.size[1], time_base=plan.time_base
        )
        context = stream.codec_context
        context.pix_fmt = plan.pixel_format
        context.time_base = plan.time_base
        context.sample_aspect_ratio = plan.aspect
        context.colorspace = plan.colour_space
        context.color_range = 2 if plan.full_range else 1
        context.color_primaries, context.color_trc = info.colour_primaries or 2, info.colour_transfer or 2
        context.thread_count = threads
        context.options = dict(plan.options)
        context.flags |= av.codec.context.Flags.frame_duration
        if plan.fields:
            context.flags |= av.codec.context.Flags.interlaced_dct | av.codec.context.Flags.interlaced_me
            context.field_order = _ORDERS[plan.fields]
            self._fields = _fields_filter(plan)
        if not plan.b_frames:
            context.max_b_frames = 0
        if plan.quality is not None:
            context.qscale = True
            context.global_quality = plan.quality * 118  # FF_QP2LAMBDA
        if plan.encoder == "libx265" and self._file.format.name in _FAST_START:
            context.codec_tag = "hvc1"  # what Apple's players ask for
        context.open()
        self._stream = stream

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` (uint8 [H,W,3] RGB) at its time."""
        image = frame.image if image is None else image
        if image.shape != (self._info.height, self._info.width, 3) or image.dtype != np.uint8:
            raise ValueError(
                f"the image is {image.dtype} {image.shape}, the film uint8 {(self._info.height, self._info.width, 3)}"
            )
        picture = self._picture(np.ascontiguousarray(self._squeezed(frame, image)))
        tick = round((frame.pts - self._origin) * self._scale)
        if self.container == "avi":  # has no times: a later begin would lengthen the first frame
            self._zero = tick if self._zero is None else self._zero
            tick -= self._zero
        if self._last is not None and tick <= self._last:  # a coarser clock must not let two frames fall together
            tick = self._last + 1
        length = frame.duration or (1 / (self._info.rate * self._info.time_base) if self._info.rate else None)
        picture.pts, picture.time_base = tick, self.encoding.time_base
        if length:
            picture.duration = self._durations[tick] = max(1, round(length * self._scale))
        self._last = tick
        self._end = tick + self._durations.get(tick, 1)
        if self._fields is not None:
            self._fields.push(picture)
            picture = self._fields.pull()
        with reporting(self.name):
            self._mux(self._stream.encode(picture))
        self.frames += 1

    def _squeezed(self, frame: Frame, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A picture as it is to be stored; what did not change is the source's own."""
        size, own = self.encoding.size, frame.stored
        if own is None or own.shape[1::-1] != size or image.shape[1::-1] == size:
            return resized(image, *size)
        if image is frame.image:
            return own
        changed = resized((image != frame.image).any(-1).astype(np.uint8) * 255, *size) > 0
        return np.where(changed[..., None], resized(image, *size), own)

    def _picture(self, image: NDArray[np.uint8]) -> Any:
        plan = self.encoding
        if plan.pixel_format == "pal8":
            return _with_palette(image)
        frame = av.VideoFrame.from_numpy_buffer(image)
        frame.color_range = 2
        if plan.matrix is None:
            made = self._reformat(frame, format=plan.pixel_format)
        else:
            made = self._reformat(
                frame, format=plan.pixel_format, dst_colorspace=plan.matrix, dst_color_range=2 if plan.full_range else 1
            )
        made.colorspace = plan.colour_space
        return made

    def _mux(self, packets: list[Any]) -> None:
        for packet in packets:
            if (length := self._durations.pop(packet.pts, None)) is not None:
                packet.duration = length
            if self._begin is None and packet.dts is not None:
                self._begin = packet.pts, packet.dts
            self._file.mux(packet)

    def close(self) -> None:
        """Complete the file and give it its name; an error where no frame was written."""
        with self._stack, reporting(self.name):
            if not self.frames:
                raise InputError(f"{self.name}: no frame was written, so there is no film")
            packets = self._stream.encode(None)
            self._mux(packets[:-1])
            for packet in packets[-1:]:
                if self._begin and packet.dts is not None and self.container in _FAST_START:
                    # MP4 takes the time between first and last decoding for the length of the film.
                    self._durations[packet.pts] = self._end - self._begin[0] - (packet.dts - self._begin[1])
                self._mux([packet])
            self._file.close()
            if self.synthetic:
                self.synthetic = not is_url(self._target) and add_mark(self._target, self.container)

    def discard(self) -> None:
        """Leave nothing of the file."""
        with suppress(InterruptedError), self._stack:
            raise InterruptedError

    def _let_go(self) -> None:
        with suppress(Exception):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def _fields_filter(plan: Encoding) -> Any:
    graph = av.filter.Graph()
    width, height = plan.size
    format = av.VideoFormat(plan.pixel_format)
    source = graph.add_buffer(width=width, height=height, format=format, time_base=plan.time_base)
    mark, end = graph.add("setfield", f"mode={plan.fields}"), graph.add("buffersink")
    source.link_to(mark)
    mark.link_to(end)
    graph.configure()
    return graph


def _with_palette(image: NDArray[np.uint8]) -> Any:
    from PIL import Image

    reduced = Image.fromarray(image).quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.FLOYDSTEINBERG)
    colours = np.zeros((256, 4), np.uint8)
    listed = np.asarray(reduced.getpalette("RGB"), np.uint8).reshape(-1, 3)
    colours[:, 0] = 255  # ARGB
    colours[: len(listed), 1:] = listed
    pair: Any = (np.asarray(reduced), colours)
    return av.VideoFrame.from_ndarray(pair, format="pal8")
