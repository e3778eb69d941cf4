"""One encoder at work: pictures in, packets into one open container."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, NoReturn

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.video.encoders import Encoding
from ficgan.video.libav import quiet, reason
from ficgan.video.media import VideoInfo

__all__ = ["Encoder", "muxer_options", "write_failed"]

_FAST_START = ("mp4", "mov")


def muxer_options(container: str, time_base: Fraction) -> dict[str, str]:
    """What the container's writer is told: the index in front, and times not to be moved or rounded."""
    if container == "nut":  # holds no times of decoding, which alone are negative
        return {"avoid_negative_ts": "disabled"}
    if container not in _FAST_START:
        return {}
    scale = time_base.denominator
    while scale < 1000:
        scale *= 10
    return {"movflags": "+faststart", "movie_timescale": str(scale)}


def write_failed(name: str, error: BaseException) -> NoReturn:
    """Tell that a file could not be written.

    Raises:
        InputError: Always.
    """
    full = isinstance(error, OSError) and error.errno in (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT
    remedy = "; make room there, or choose another folder" if full else ""
    raise InputError(f"{name}: cannot be written ({reason(error)}){remedy}") from error


class Encoder:
    """One open container with one video stream."""

    def __init__(
        self, target: str, container: str, info: VideoInfo, plan: Encoding, *, threads: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        quiet()
        self._info, self._plan = info, plan
        self._reformatter = VideoReformatter()
        self._durations: dict[int, int] = {}
        self._last: int | None = None
        self._begin: tuple[int, int] | None = None
        """Tick of the first picture, and of its decoding."""
        self._end = 0
        self._scale = info.time_base / plan.time_base
        self.frames = 0
        self._container = av.open(target, "w", format=container, container_options=dict(options or {}))
        try:
            self._open_stream(threads)
        except (av.FFmpegError, ValueError) as error:
            self.abandon()
            raise UsageError(
                f"{plan.encoder} refuses these settings ({reason(error)}); check crf, preset and pixel format"
            ) from error

    def _open_stream(self, threads: int) -> None:
        info, plan = self._info, self._plan
        stream: Any = self._container.add_stream(
            plan.encoder, rate=info.rate or 30, width=info.width, height=info.height, time_base=plan.time_base
        )
        context = stream.codec_context
        context.pix_fmt = plan.pixel_format
        context.time_base = plan.time_base
        context.sample_aspect_ratio = info.sample_aspect_ratio
        context.colorspace = plan.colour_space
        context.color_range = 2 if plan.full_range else 1
        context.color_primaries, context.color_trc = info.colour_primaries or 2, info.colour_transfer or 2
        context.thread_count = threads
        context.options = dict(plan.options)
        context.flags |= av.codec.context.Flags.frame_duration
        if not plan.b_frames:
            context.max_b_frames = 0
        if plan.quality is not None:
            context.qscale = True
            context.global_quality = plan.quality * 118  # FF_QP2LAMBDA
        if plan.encoder == "libx265" and self._container.format.name in _FAST_START:
            context.codec_tag = "hvc1"  # what Apple's players ask for
        context.open()
        self._stream = stream

    def write(self, image: NDArray[np.uint8], pts: int, duration: int | None) -> None:
        """Encode one picture; `pts` and `duration` in ticks of `info.time_base`."""
        if image.shape != (self._info.height, self._info.width, 3) or image.dtype != np.uint8:
            raise ValueError(
                f"the image is {image.dtype} {image.shape}, the film uint8 {(self._info.height, self._info.width, 3)}"
            )
        picture = self._picture(np.ascontiguousarray(image))
        tick = round(pts * self._scale)
        if self._last is not None and tick <= self._last:  # a coarser clock must not let two frames fall together
            tick = self._last + 1
        length = duration or (1 / (self._info.rate * self._info.time_base) if self._info.rate else None)
        picture.pts, picture.time_base = tick, self._plan.time_base
        if length:
            picture.duration = self._durations[tick] = max(1, round(length * self._scale))
        self._last = tick
        self._end = tick + self._durations.get(tick, 1)
        self._mux(self._stream.encode(picture))
        self.frames += 1

    def _picture(self, image: NDArray[np.uint8]) -> Any:
        plan = self._plan
        if plan.pixel_format == "pal8":
            return _with_palette(image)
        frame = av.VideoFrame.from_numpy_buffer(image)
        frame.color_range = 2
        if plan.matrix is None:
            made = self._reformatter.reformat(frame, format=plan.pixel_format, threads=1)
        else:
            made = self._reformatter.reformat(
                frame, format=plan.pixel_format, dst_colorspace=plan.matrix,
                dst_color_range=2 if plan.full_range else 1, threads=1,
            )  # fmt: skip
        made.colorspace = plan.colour_space
        return made

    def _mux(self, packets: list[Any]) -> None:
        for packet in packets:
            if (length := self._durations.pop(packet.pts, None)) is not None:
                packet.duration = length
            if self._begin is None and packet.dts is not None:
                self._begin = packet.pts, packet.dts
            self._container.mux(packet)

    def finish(self) -> None:
        """Flush the encoder and complete the file."""
        if self.frames:
            packets = self._stream.encode(None)
            self._mux(packets[:-1])
            for packet in packets[-1:]:
                if self._begin and packet.dts is not None and self._container.format.name in _FAST_START:
                    # MP4 takes the time between first and last decoding for the length of the film.
                    self._durations[packet.pts] = self._end - self._begin[0] - (packet.dts - self._begin[1])
                self._mux([packet])
        self._container.close()

    def abandon(self) -> None:
        """Close without caring for what is lost."""
        with suppress(Exception):
            self._container.close()


def _with_palette(image: NDArray[np.uint8]) -> Any:
    """A picture of 256 colours chosen for it."""
    from PIL import Image

    reduced = Image.fromarray(image).quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.FLOYDSTEINBERG)
    colours = np.zeros((256, 4), np.uint8)
    listed = np.asarray(reduced.getpalette("RGB"), np.uint8).reshape(-1, 3)
    colours[:, 0] = 255  # ARGB
    colours[: len(listed), 1:] = listed
    pair: Any = (np.asarray(reduced), colours)
    return av.VideoFrame.from_ndarray(pair, format="pal8")
