"""Moving pictures out: a file or stream, and segments to resume from."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import av
import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.video.encode import ANIMATIONS, Encoder, container_of, muxer_options, plan_encoding, write_failed
from ficgan.video.media import (
    EncodeOptions,
    Frame,
    VideoInfo,
    display_name,
    is_url,
    locator,
    partial_file,
)

__all__ = ["Segment", "SegmentWriter", "VideoWriter", "finished_segments"]

_SEGMENT = "ficgan-segment-{:08d}-{:08d}.nut"
_SEGMENT_NAME = re.compile(r"ficgan-segment-(\d{8,})-(\d{8,})\.nut")
_LEFTOVER = re.compile(r"\.ficgan-[0-9a-f]{16}\.tmp")


class VideoWriter:
    """Encodes frames with their exact times into a file or a stream; a context manager.

    A file takes its name when the block ends well; on an error nothing of it is left. No tags, chapters or position of
    the source are written.

    Args:
        path: a file by its suffix (.mp4, .mov, .mkv, .webm, .avi, .gif, .webp …), or an address (`rtmp://…`, `pipe:1`).
        info: properties of the frames, their rotation already applied.
        container: FFmpeg's name of the container; None: by the name.
        origin: tick that becomes time 0.
    """

    def __init__(
        self, path: str | os.PathLike[str], info: VideoInfo, options: EncodeOptions | None = None, *,
        overwrite: bool = False, container: str | None = None, origin: int = 0,
    ) -> None:  # fmt: skip
        options = options or EncodeOptions()
        text = os.fspath(path)
        self.name = display_name(text)
        self.container = container_of(text, container)
        self.encoding = plan_encoding(info, options, self.container)
        self._origin, self._stack = origin, ExitStack()
        target = text
        try:
            if not is_url(text):
                target = locator(self._stack.enter_context(partial_file(Path(text), overwrite=overwrite)))
            muxer = muxer_options(self.container, self.encoding.time_base)
            self._encoder = Encoder(target, self.container, info, self.encoding, threads=options.threads, options=muxer)
        except BaseException as error:
            self._unwind(error)
            if isinstance(error, OSError | av.FFmpegError):
                write_failed(self.name, error)
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        return self.encoding.notes

    @property
    def frames(self) -> int:
        return self._encoder.frames

    def write(self, frame: Frame, image: NDArray[np.uint8] | None = None) -> None:
        """Encode a frame, or `image` (uint8 [H,W,3] RGB) at its time."""
        try:
            self._encoder.write(frame.image if image is None else image, frame.pts - self._origin, frame.duration)
        except (av.FFmpegError, OSError) as error:
            write_failed(self.name, error)

    def close(self) -> None:
        """Complete the file and give it its name; an error where no frame was written."""
        try:
            if not self._encoder.frames:
                raise InputError(f"{self.name}: no frame was written, so there is no film")
            self._encoder.finish()
        except BaseException as error:
            self.discard(error)
            if isinstance(error, av.FFmpegError | OSError):
                write_failed(self.name, error)
            raise
        self._stack.close()

    def discard(self, error: BaseException | None = None) -> None:
        self._encoder.abandon()
        self._unwind(error or InterruptedError())

    def _unwind(self, error: BaseException) -> None:
        with suppress(BaseException):  # the block of the temporary file hands the error back
            self._stack.__exit__(type(error), error, error.__traceback__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard(error)


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


@contextmanager
def _segment_file(folder: Path) -> Iterator[Path]:
    path = folder / f".ficgan-{secrets.token_hex(8)}.tmp"
    path.touch(0o600, exist_ok=False)  # FFmpeg opens it by name and keeps the mode
    path.chmod(0o600)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink()


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
        options = options or EncodeOptions()
        self.folder, self._info, self._threads = Path(folder), info, options.threads
        self.container = container_of(os.fspath(output), container)
        if self.container in ANIMATIONS:  # a palette is chosen once, at the end; until then nothing is lost
            plan_encoding(info, options, self.container)
            options = EncodeOptions(codec="ffv1", pixel_format="bgr0", threads=options.threads)
            self.encoding = plan_encoding(info, options, "nut")
        else:
            self.encoding = plan_encoding(info, options, self.container)
        self._length = max(1, round(seconds / info.time_base))
        self.segments = finished_segments(self.folder)
        self._encoder: Encoder | None = None
        self._stack = ExitStack()
        self._first, self._begin = 0, 0
        for path in self.folder.iterdir():
            if _LEFTOVER.fullmatch(path.name):
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
        expected = self.next_frame + (self._encoder.frames if self._encoder else 0)
        if frame.index != expected:
            raise ValueError(f"frame {frame.index} was given, frame {expected} is the next")
        if self._encoder is not None and frame.pts - self._begin >= self._length:
            self._finish()
        try:
            if self._encoder is None:
                path = self._stack.enter_context(_segment_file(self.folder))
                muxer = muxer_options("nut", self._info.time_base)
                self._encoder = Encoder(
                    locator(path), "nut", self._info, self.encoding, threads=self._threads, options=muxer
                )
                self._temporary, self._first, self._begin = path, frame.index, frame.pts
            self._encoder.write(frame.image if image is None else image, frame.pts, frame.duration)
        except (av.FFmpegError, OSError) as error:
            self.discard()
            write_failed(str(self.folder), error)

    def _finish(self) -> None:
        assert self._encoder is not None
        last = self._first + self._encoder.frames - 1
        try:
            self._encoder.finish()
            with open(self._temporary, "rb") as file:
                os.fsync(file.fileno())
            path = self.folder / _SEGMENT.format(self._first, last)
            os.replace(self._temporary, path)
        except (av.FFmpegError, OSError) as error:
            self.discard()
            write_failed(str(self.folder), error)
        self.segments.append(Segment(self._first, last, path))
        self._encoder = None
        self._stack.close()

    def close(self) -> list[Segment]:
        """Complete the last segment; returns all segments of the film, in order."""
        if self._encoder is not None:
            self._finish()
        return self.segments

    def discard(self) -> None:
        """Give up the piece that is not finished; the finished ones stay."""
        if self._encoder is not None:
            self._encoder.abandon()
            self._encoder = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()
