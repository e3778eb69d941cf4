"""Where scenes begin: hard cuts. Flashes, fades, pans and things that pass before the camera are none.

A cut lies before a frame where no frame shortly before it looks like any shortly after it, whatever moved between
them, and where more changed than in the frames around.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.detection import check_image
from ficgan.video.source import Frame

Floats32 = NDArray[np.float32]

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
    """A frame as cuts are looked for.

    Args:
        image: H×W×3 uint8 RGB, of any size.
    """

    def __init__(self, image: NDArray[np.uint8]) -> None:
        import cv2

        check_image(image)
        # Every few pixels are enough, and many times faster to average than all.
        step = max(1, min(image.shape[1] // (4 * _WIDTH), image.shape[0] // (4 * _HEIGHT)))
        few = np.ascontiguousarray(image[::step, ::step])
        self.thumbnail: Any = cv2.resize(few, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA)
        """uint8 [36,64,3]."""
        luma = cv2.cvtColor(self.thumbnail, cv2.COLOR_RGB2GRAY).astype(np.float32)
        luma -= luma.mean()
        # Below a deviation of 4 of 255 it would be noise that is compared.
        self.luma: Any = np.clip(luma * (50 / max(float(luma.std()), 4.0)) + 128, 0, 255)
        """Of mean 128 and deviation 50, float32 [36,64]."""

    def change(self, other: CutFrame) -> float:
        """Mean absolute difference of the lumas, in standard deviations."""
        return float(np.abs(self.luma - other.luma).mean()) / 50

    def score(self, before: CutFrame) -> float:
        """How little of this picture an earlier one explains, 0 to about 1.

        The share of it that is nowhere in the other (not in its place, not moved with the whole picture, not moved
        alone), and half of the change that is left when the whole picture is moved.
        """
        import cv2

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
        change = min(self.change(before), float(np.abs(self.luma - whole).mean()) / 50)
        return float((best < CORRELATED).mean()) + change / 2


def _correlation(a: Any, b: Any) -> Any:
    """Correlation of two lumas in a window around each place, float32 [36,64]; 1 where both are plain."""
    import cv2

    def mean(values: Any) -> Any:
        return cv2.blur(values, (WINDOW, WINDOW))

    power = np.ones_like(a)
    for luma in (a, b):
        power *= np.maximum(mean(luma * luma) - mean(luma) ** 2, 0) + NOISE
    return (mean(a * b) - mean(a) * mean(b) + NOISE) / np.sqrt(power)


def is_cut(before: Sequence[CutFrame], after: Sequence[CutFrame]) -> bool:
    """Whether a cut lies between frames: the last `NEAR` before it and the first `NEAR` after it, or fewer."""
    if before[-1].change(after[0]) < CHANGE:
        return False
    sides = [list(pairwise(side)) for side in (before, after) if len(side) > 1]
    usual = min((float(np.median([b.score(a) for a, b in side])) for side in sides), default=0.0)
    return all(b.change(a) >= CHANGE and b.score(a) - usual > SCORE for a, b in product(before, after))


def with_cuts(frames: Iterable[Frame]) -> Iterator[tuple[Frame, NDArray[np.uint8], bool]]:
    """Frames with their thumbnails, and whether a scene begins with each; at most `NEAR` - 1 frames late.

    The first frame begins none.
    """
    views: list[CutFrame] = []
    waiting: deque[Frame] = deque()  # frames that were not given out, of the last views

    def next_one() -> tuple[Frame, NDArray[np.uint8], bool]:
        place = len(views) - len(waiting)
        view, cut = views[place], place > 0 and is_cut(views[:place], views[place : place + NEAR])
        # What lies before a cut says nothing about the next one.
        del views[: place if cut else max(0, place + 1 - NEAR)]
        return waiting.popleft(), view.thumbnail, cut

    for frame in frames:
        views.append(CutFrame(frame.image))
        waiting.append(frame)
        if len(waiting) >= NEAR:
            yield next_one()
    while waiting:
        yield next_one()
