"""Moving pictures as the film engine sees them: upright RGB frames with rising times, and where scenes begin."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from ficgan.errors import UsageError
from ficgan.faces.detection import check_image

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
