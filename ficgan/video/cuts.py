"""Scene cuts, as the frames come: no frame is waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.detection import check_image

__all__ = ["CutConfig", "CutDetector"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class CutConfig:
    """Numbers of cut detection.

    A cut that is seen wrongly cuts a pad short; one that is missed only leaves it long, so the thresholds are high.

    Args:
        change: mean absolute difference of two thumbnails, once place, brightness and contrast are equal, from which a
            cut is possible; in standard deviations of the picture.
        ratio: how many times the change must be that of the frames before.
        colours: distance of the colour histograms, 0 to 1, from which a cut is possible.
        memory: frames before that tell how much change is usual.
    """

    change: float = 0.6
    ratio: float = 2.5
    colours: float = 0.12
    memory: int = 8


class CutDetector:
    """Says of each frame whether a scene cut lies before it.

    A cut is a picture with another structure and other colours than the one before, and a far larger change than the
    frames before had. Brightness and contrast are taken out first, so that flashes and fades are no cuts, and a shift
    of the picture is tried, so that a fast pan is none.

    What it does not see: dissolves and wipes (no frame changes enough), cuts between pictures of like structure or like
    colours or between dark ones, and cuts during wild motion. A flash that bleaches the picture may count as one.

    Args:
        config: numbers.
    """

    def __init__(self, config: CutConfig | None = None):
        self._config = config or CutConfig()
        self._changes: deque[float] = deque(maxlen=self._config.memory)
        self._before: tuple[Floats, Floats] | None = None
        self.thumbnail: NDArray[np.uint8] = np.zeros((_HEIGHT, _WIDTH, 3), np.uint8)
        """Of the last frame, 36×64×3."""

    def step(self, image: NDArray[np.uint8]) -> bool:
        """Whether a new scene begins with this frame; never with the first.

        Args:
            image: H×W×3 uint8 RGB; the size may differ from that of the frame before.

        Raises:
            InputError: It is no picture.
        """
        self.thumbnail = thumbnail = _thumbnail(check_image(image))
        luma, colours = _normalised(thumbnail), _histogram(thumbnail)
        before, self._before = self._before, (luma, colours)
        if before is None:
            return False
        change = float(np.abs(luma - before[0]).mean())
        if change > _CALM:
            change = min(change, _change_after_shift(luma, before[0]))
        usual = float(np.median(self._changes)) if self._changes else 0.0
        config = self._config
        cut = (
            change > config.change
            and change > config.ratio * usual
            and float(np.abs(colours - before[1]).sum()) / 2 > config.colours
        )
        if cut:
            self._changes.clear()
        else:
            self._changes.append(change)
        return cut


_WIDTH, _HEIGHT = 64, 36
_BINS = 4
_CALM = 0.2  # changes below need no look at whether the picture moved
_REACH = 20  # columns, of 64, that a pan may move between two frames


def _thumbnail(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    # Every few pixels are enough, and many times faster to average than all.
    step = max(1, min(image.shape[1] // (4 * _WIDTH), image.shape[0] // (4 * _HEIGHT)))
    small: Any = cv2.resize(
        np.ascontiguousarray(image[::step, ::step]), (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA
    )
    return small


def _normalised(thumbnail: NDArray[np.uint8]) -> Floats:
    """Luma of mean 0 and deviation 1 [36,64]; a picture of one colour is 0."""
    luma = thumbnail.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    luma -= luma.mean()
    return luma / max(float(luma.std()), 4.0)  # below 4 of 255 it would be noise that is compared


def _histogram(thumbnail: NDArray[np.uint8]) -> Floats:
    """Shares of 4×4×4 colours [64]."""
    cell = (thumbnail // (256 // _BINS)).astype(np.int64) @ np.array([_BINS**2, _BINS, 1])
    return np.bincount(cell.ravel(), minlength=_BINS**3).astype(np.float32) / cell.size


def _change_after_shift(a: Floats, b: Floats) -> float:
    """Mean absolute difference over the common part, with the second thumbnail moved to where it fits best."""
    spectrum = np.fft.rfft2(a) * np.conj(np.fft.rfft2(b))
    fit = np.fft.irfft2(spectrum / np.maximum(np.abs(spectrum), 1e-6), s=a.shape)
    y, x = np.unravel_index(int(np.argmax(fit)), fit.shape)
    dy = int(y) - a.shape[0] if y > a.shape[0] // 2 else int(y)
    dx = int(x) - a.shape[1] if x > a.shape[1] // 2 else int(x)
    if abs(dx) > _REACH or abs(dy) > _REACH // 2:
        return float(np.abs(a - b).mean())
    rows, columns = slice(max(dy, 0), a.shape[0] + min(dy, 0)), slice(max(dx, 0), a.shape[1] + min(dx, 0))
    from_rows, from_columns = slice(rows.start - dy, rows.stop - dy), slice(columns.start - dx, columns.stop - dx)
    return float(np.abs(a[rows, columns] - b[from_rows, from_columns]).mean())
