"""`ficgan pipe`: raw frames from stdin to stdout, between two programs such as FFmpeg."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli._console import handle_errors
from ficgan.cli._shared import TALK, Finite, Pair, options, share_processors
from ficgan.errors import FicganError, InputError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

__all__ = ["FORMATS", "RawFormat", "RawFrames", "pipe"]

FORMATS = ("rgb24", "bgr24", "yuv420p")
MOST_PIXELS = 64_000_000
"""Of a frame; a larger size is a slip of the pen, and a window of such frames would fill the memory."""


@dataclass(frozen=True)
class RawFormat:
    """How the bytes of a frame lie.

    Args:
        width, height: px.
        pixel_format: one of `FORMATS`.
        matrix: of yuv420p: "bt601", "bt709", or "auto", which takes the size for a hint as players do.
        full_range: whether the luma of yuv420p runs from 0 to 255 instead of 16 to 235.
    """

    width: int
    height: int
    pixel_format: str = "rgb24"
    matrix: str = "auto"
    full_range: bool = False

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1 or self.width * self.height > MOST_PIXELS:
            raise UsageError(
                f"--size {self.width}x{self.height}: give sides of 1 px or more and at most "
                f"{MOST_PIXELS // 1_000_000} megapixels"
            )
        if self.pixel_format == "yuv420p" and (self.width % 2 or self.height % 2):
            raise UsageError(f"--size {self.width}x{self.height}: both sides of yuv420p must be even")

    @property
    def length(self) -> int:
        """Of a frame, in bytes."""
        return self.width * self.height * 3 // (2 if self.pixel_format == "yuv420p" else 1)

    def decode(self, data: bytes) -> Image:
        """H×W×3 RGB of a frame's bytes."""
        import numpy as np

        if self.pixel_format == "yuv420p":
            return self._yuv.decode(np.frombuffer(data, np.uint8).reshape(-1, self.width))
        image = np.frombuffer(data, np.uint8).reshape(self.height, self.width, 3)
        return image if self.pixel_format == "rgb24" else np.ascontiguousarray(image[..., ::-1])

    def encode(self, image: Image, source: Image, data: bytes) -> bytes:
        """Bytes of a changed frame; wherever `image` equals `source`, they are those of `data`, bit by bit."""
        import numpy as np

        if self.pixel_format == "rgb24":
            return image.tobytes()
        if self.pixel_format == "bgr24":
            return image[..., ::-1].tobytes()
        changed = (image != source).any(2)
        blocks = changed.reshape(self.height // 2, 2, self.width // 2, 2).any((1, 3))  # one chroma sample each
        where = np.concatenate([blocks.repeat(2, 0).repeat(2, 1).ravel(), blocks.ravel(), blocks.ravel()])
        return np.where(where, self._yuv.encode(image).ravel(), np.frombuffer(data, np.uint8)).tobytes()

    @cached_property
    def _yuv(self) -> _Yuv:
        return _Yuv(self)


class _Yuv:
    """Turns yuv420p into RGB and back with FFmpeg's own scaler."""

    def __init__(self, raw: RawFormat) -> None:
        from ficgan.video.media import exact_reformat, matrix_of

        spaces = {"bt709": 1, "bt601": 5, "auto": 2}  # AVColorSpace
        self._range = 2 if raw.full_range else 1
        self._space = matrix_of(spaces[raw.matrix], raw.width, raw.height)
        self._there, self._back = exact_reformat(), exact_reformat()

    def decode(self, planes: Image) -> Image:
        import av
        import numpy as np

        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        made = self._there(
            frame, format="rgb24", src_colorspace=self._space, src_color_range=self._range, dst_color_range=2
        )
        return made.to_ndarray().astype(np.uint8, copy=False)

    def encode(self, image: Image) -> Image:
        import av
        import numpy as np

        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        made = self._back(
            frame, format="yuv420p", dst_colorspace=self._space, src_color_range=2, dst_color_range=self._range
        )
        return made.to_ndarray().astype(np.uint8, copy=False)


class RawFrames:
    """The frames of a byte stream, and afterwards what was wrong with its end.

    Args:
        file: read to its end.
        raw: how the bytes lie.
    """

    def __init__(self, file: BinaryIO, raw: RawFormat) -> None:
        self._file, self._raw = file, raw
        self.read = 0
        """Whole frames so far."""
        self.rest = 0
        """Bytes after the last whole frame."""

    def __iter__(self) -> Iterator[bytes]:
        while data := self._file.read(self._raw.length):
            if len(data) < self._raw.length:
                self.rest = len(data)
                return
            self.read += 1
            yield data

    @property
    def problem(self) -> str:
        """A sentence; "" where the stream ended with a whole frame."""
        raw = self._raw
        if not self.read and not self.rest:
            return "stdin held no frame; look at what the program before the pipe says"
        if not self.rest:
            return ""
        told = f"{raw.width}x{raw.height} in {raw.pixel_format} is {raw.length:,} bytes a frame"
        where = f"after {self.read} whole frames" if self.read != 1 else "after 1 whole frame"
        return (
            f"stdin ended in the middle of a frame: {self.rest:,} bytes are left {where}, and {told}; either the "
            "program before the pipe was cut off, or --size or --pixel-format is not what it writes"
        )


@click.command(context_settings=HELP)
@click.option("--size", metavar="WxH", required=True, type=Pair("WxH", "x"), help="Of the frames, in px.")
@click.option(
    "--pixel-format",
    "--pix-fmt",
    type=click.Choice(FORMATS),
    default="rgb24",
    show_default=True,
    help="Of stdin and of stdout.",
)
@click.option(
    "--fps",
    type=Finite(min=0, min_open=True),
    default=25.0,
    show_default=True,
    help="Frames per second, for everything that is told in seconds.",
)
@click.option(
    "--matrix",
    type=click.Choice(("auto", "bt601", "bt709")),
    default="auto",
    show_default=True,
    help="Colours of yuv420p; auto: bt709 from 1280 columns or 577 lines on.",
)
@click.option("--full-range", is_flag=True, help="The luma of yuv420p runs from 0 to 255, not from 16 to 235.")
@click.option(
    "--look-ahead",
    metavar="FRAMES",
    type=click.IntRange(min=0),
    help="Frames by which the result is late.  [default: enough to cover a face before it is first seen: --pad]",
)
@click.option(
    "--live", is_flag=True, help="Keep up with --fps: where the work takes longer, the detector looks less often."
)
@options(opts.HIDE, opts.FACE, opts.SEARCH, opts.VERIFY, opts.VIDEO_SEARCH[:2])
@click.option(
    "--link",
    type=click.Choice(["none", "file"]),
    default="file",
    show_default=True,
    help="One new identity for a person, or for each track.",
)
@options(opts.fallback("too small, turned away, or still recognised."), opts.MODEL, TALK[1])
@handle_errors
def pipe(size: tuple[int, int], pixel_format: str, fps: float, quiet: bool, **given: Any) -> None:
    """Replace the faces in raw frames: stdin to stdout, as many as came, in their order.

    \b
    ffmpeg -i in.mp4 -f rawvideo -pix_fmt rgb24 - \\
      | ficgan pipe --size 1280x720 --pixel-format rgb24 --fps 25 \\
      | ffmpeg -f rawvideo -pix_fmt rgb24 -s 1280x720 -r 25 -i - out.mp4

    Sound does not pass through a pipe of frames. The line of JSON at the end goes to stderr. Exit codes: 0 done,
    1 failed (also where the program after the pipe ended early), 2 usage, 3 stdin ended within a frame.
    """
    share_processors(mode=given["mode"])
    started = time.monotonic()
    raw = RawFormat(*size, pixel_format, given["matrix"], given["full_range"])
    settings = opts.engine_settings(given, verify=given["verify"], fallback="plain")
    if sys.stdin.isatty():
        raise UsageError("stdin is a terminal; put a program before the pipe that writes frames, such as ffmpeg")
    if sys.stdout.isatty():
        raise UsageError("stdout is a terminal; put a program after the pipe that takes frames, such as ffmpeg")
    if not quiet and (warning := opts.caution(given["mode"])):
        click.echo(f"Warning: {warning}", err=True)
    with _stdout_for_frames() as out:
        engine: Any = _deid.make_engine(**settings, **opts.loaded(given))
        source = RawFrames(sys.stdin.buffer, raw)
        stream, written = _run(engine, source, out, raw, fps, given)
    if not quiet:
        account = {**stream.summary(), "frames": written, "seconds": round(time.monotonic() - started, 3)}
        click.echo(json.dumps(account), err=True)
    if source.problem:
        raise InputError(source.problem)


def _run(
    engine: Any, source: RawFrames, out: BinaryIO, raw: RawFormat, fps: float, given: dict[str, Any]
) -> tuple[Any, int]:
    """All frames; returns the stream with its account, and the number of frames written."""
    from collections import deque

    window: deque[tuple[bytes, Image]] = deque()

    def frames() -> Iterator[Image]:
        for data in source:
            image = raw.decode(data)
            window.append((data, image))
            yield image

    settings = engine.video_settings(
        stride=given["stride"],
        pad=given["pad"],
        link=given["link"],
        fallback=given["fallback"],
        verify="off",
        mask_scale=given["mask_scale"],
        **({"detect_size": max(given["scale"])} if given["scale"] else {}),
    )
    stream = engine.stream(
        frames(), fps, settings=settings, look_ahead=given["look_ahead"], budget=1 / fps if given["live"] else None
    )
    written = 0
    for result in stream:
        data, image = window.popleft()
        try:
            out.write(data if result.image is image else raw.encode(result.image, image, data))
            out.flush()
        except BrokenPipeError:
            raise FicganError(
                f"the program after the pipe took {written} frames and then closed it; see what it says"
            ) from None
        written += 1
    return stream, written


@contextlib.contextmanager
def _stdout_for_frames() -> Iterator[BinaryIO]:
    """Stdout for frames alone: what libraries print, in Python or not, goes to stderr meanwhile."""
    sys.stdout.flush()
    try:
        frames = os.dup(1)
    except OSError as error:
        raise UsageError("stdout is closed; put a program after the pipe that takes frames") from error
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(BrokenPipeError), open(frames, "wb", 0) as raw:
            yield _Whole(raw)  # type: ignore[misc]
    finally:
        sys.stdout.flush()


class _Whole:
    """Writes all bytes: one write to a pipe may take only some of them."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""
