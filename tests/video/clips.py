"""Clips made for the tests with PyAV alone: every frame shows its number, every corner its colour."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
BITS = 12
CORNERS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (235, 235, 235)}
"""Of the upright picture: top left, top right, bottom left, bottom right."""


def picture(number: int, width: int = 96, height: int = 64) -> Image:
    """A picture that shows its number as twelve black or white fields and has coloured corners."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = np.linspace(70, 180, width, dtype=np.uint8)[None, :, None]
    side = min(width, height) // 4
    for (row, column), colour in zip(((0, 0), (0, -1), (-1, 0), (-1, -1)), CORNERS.values(), strict=True):
        rows = slice(0, side) if row == 0 else slice(height - side, height)
        columns = slice(0, side) if column == 0 else slice(width - side, width)
        image[rows, columns] = colour
    for bit in range(BITS):
        columns = slice(bit * width // BITS, (bit + 1) * width // BITS)
        image[height * 3 // 8 : height * 5 // 8, columns] = 240 if number >> bit & 1 else 15
    return image


def number_of(image: Image) -> int:
    """The number that a picture shows."""
    height, width = image.shape[:2]
    row = image[height * 7 // 16 : height * 9 // 16].mean(axis=(0, 2))
    return sum(1 << bit for bit in range(BITS) if row[int((bit + 0.5) * width / BITS)] > 128)


def corners_of(image: Image) -> list[str]:
    """The names of the nearest colours in the corners: top left, top right, bottom left, bottom right."""
    side = min(image.shape[:2]) // 8
    patches = (image[:side, :side], image[:side, -side:], image[-side:, :side], image[-side:, -side:])
    names = list(CORNERS)
    table = np.array(list(CORNERS.values()), float)
    return [names[int(np.abs(table - patch.mean(axis=(0, 1))).sum(axis=1).argmin())] for patch in patches]


def make_clip(
    path: Path,
    times: Sequence[int] | int = 30,
    *,
    size: tuple[int, int] = (96, 64),
    time_base: Fraction = Fraction(1, 30),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    turn: tuple[float, bool, bool] | None = None,
    audio: str | None = None,
    audio_at: Sequence[float] = (0.0,),
    audio_seconds: float = 1.0,
    tags: Mapping[str, str] | None = None,
    subtitles: bool = False,
    cover: bool = False,
    second: tuple[int, int] | None = None,
    options: Mapping[str, str] | None = None,
    colours: tuple[int, int] = (2, 0),
    container: str | None = None,
    pictures: Sequence[Image] | None = None,
) -> list[int]:
    """Write a clip and return its ticks.

    Args:
        times: ticks of its frames, or their number at one tick each.
        turn: degrees counter-clockwise, mirrored, upended, for the display matrix.
        audio: codec of its sound, one stream for every start in `audio_at`, seconds.
        colours: AVColorSpace and range for the tags; `second`: size of a second video stream.
    """
    ticks = list(range(times)) if isinstance(times, int) else list(times)
    with av.open(str(path), "w", format=container, options=dict(options or {})) as out:
        out.metadata.update(tags or {})
        if tags:
            out.set_chapters(
                [{"id": 0, "start": 0, "end": 1000, "time_base": Fraction(1, 1000), "metadata": {"title": "At home"}}]
            )
        films = [_add_video(out, codec, size, time_base, pixel_format, colours)]
        if turn is not None:
            films[0].set_display_rotation(turn[0], hflip=turn[1], vflip=turn[2])
        if second is not None:
            films.append(_add_video(out, codec, second, time_base, pixel_format, colours))
        sounds = [_add_audio(out, audio) for _ in audio_at] if audio else []
        text = out.add_mux_stream("subrip", time_base=Fraction(1, 1000)) if subtitles else None
        picture_stream = _add_cover(out) if cover else None
        if picture_stream is not None:
            for packet in picture_stream.encode(_frame(picture(0, 32, 32), 0, Fraction(1, 1), "yuvj420p")):
                out.mux(packet)
        if text is not None:
            packet = av.Packet(b"Hello")
            packet.stream, packet.pts, packet.dts, packet.duration = text, 0, 0, 500
            packet.time_base = Fraction(1, 1000)
            out.mux(packet)
        for sound, begin in zip(sounds, audio_at, strict=False):
            _play(out, sound, begin, audio_seconds)
        for number, tick in enumerate(ticks):
            for film in films:
                image = pictures[number] if pictures is not None else picture(number, film.width, film.height)
                out.mux(film.encode(_frame(image, tick, time_base, pixel_format, colours)))
        for film in films:
            out.mux(film.encode(None))
    return ticks


def _add_video(
    out: Any, codec: str, size: tuple[int, int], time_base: Fraction, pixel_format: str, colours: tuple[int, int]
) -> Any:
    stream = out.add_stream(codec, rate=30, width=size[0], height=size[1], time_base=time_base)
    context = stream.codec_context
    context.pix_fmt, context.time_base = pixel_format, time_base
    context.colorspace, context.color_range = colours
    if codec == "libx264":
        context.options = {"crf": "12", "preset": "veryfast", "g": "15"}
    return stream


def _frame(
    image: Image, tick: int, time_base: Fraction, pixel_format: str, colours: tuple[int, int] = (2, 0)
) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    frame = frame.reformat(
        format=pixel_format, dst_colorspace=1 if colours[0] == 1 else 5, dst_color_range=colours[1] or 1
    )
    frame.pts, frame.time_base = tick, time_base
    return frame


def _add_audio(out: Any, codec: str) -> Any:
    stream = out.add_stream(codec, rate=48000)
    stream.codec_context.layout = "mono"
    return stream


def _play(out: Any, stream: Any, begin: float, seconds: float) -> None:
    rate = 48000
    wave = np.sin(np.arange(int(seconds * rate)) * 2 * np.pi * 440 / rate) * 0.3
    length = stream.codec_context.frame_size or 960
    kind = stream.codec_context.format.name
    for first in range(0, len(wave), length):
        part = wave[None, first : first + length]
        if kind.startswith("flt"):
            scaled: NDArray[Any] = part.astype(np.float32)
        else:
            scaled = (part * 32767).astype(np.int16 if kind.startswith("s16") else np.int32)
        frame = av.AudioFrame.from_ndarray(scaled, format=kind, layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, int(begin * rate) + first, Fraction(1, rate)
        out.mux(stream.encode(frame))
    out.mux(stream.encode(None))


def _add_cover(out: Any) -> Any:
    stream = out.add_stream("mjpeg", rate=1, width=32, height=32, pix_fmt="yuvj420p")
    stream.disposition = av.stream.Disposition.attached_pic
    return stream


def variable_times(count: int, seed: int = 1, tick: int = 90_000, origin: int = 0) -> list[int]:
    """Strictly rising ticks between 5 and 180 ms apart."""
    steps = np.random.default_rng(seed).integers(tick // 200, tick * 18 // 100, count)
    return [origin, *(origin + np.cumsum(steps)[:-1]).tolist()]


def ffmpeg(*arguments: str) -> str:
    """Run the FFmpeg that imageio-ffmpeg brings, a build of its own; returns what it prints."""
    import imageio_ffmpeg

    run = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-loglevel", "error", *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=False).stdout


def audio_hash(path: Path, stream: int = 0) -> str:
    """MD5 of all bytes of the audio packets, taken by another build of FFmpeg."""
    return ffmpeg("-i", str(path), "-map", f"0:a:{stream}", "-c", "copy", "-f", "md5", "-").strip()


def frames_of(path: Path) -> list[Image]:
    """All frames, as the program reads them."""
    from ficgan.video.read import open_video

    with open_video(path) as source:
        return [frame.image.copy() for frame in source.frames()]
