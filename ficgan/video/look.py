"""In which frames of a film the detector looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import Face
from ficgan.video.cuts import CutDetector
from ficgan.video.media import Frame
from ficgan.video.motion import measured

__all__ = ["look"]

Seen = tuple[Frame, list[Face] | None, bool]
"""A frame, the faces found in it (None where nobody looked), whether a new scene begins with it."""

MOVED = 0.75
"""Sizes by which a face may have moved from one look to the next and still count as the same, calm one."""
RESIZED = 0.4
"""The same for the logarithm of its size."""
LEAST = 24.0
"""Pixels: smaller faces come and go with the detector's mood and cause no look of their own."""
DIFFERENT = 24
"""Grey levels of one colour by which a cell of a thumbnail (1/64 of the width) differs."""
HELD = 32
"""Frames kept at most until it is known whether to look at them."""


def look(frames: Iterable[Frame], find: Callable[[Frame], list[Face]], stride: int) -> Iterator[Seen]:
    """Look at every n-th frame, at the first and last of each scene, and wherever two looks tell different stories.

    Where a face came, went or moved far between two looks, the frame in the middle is looked at too, and so on on both
    sides: what comes in a dash is followed frame by frame, and what rests costs one look in n. Where something came
    and went between two looks (the picture differs from both, which are alike), the frame that shows it best is looked
    at. What flashes up while the camera moves, for less than n frames, is not seen.

    Args:
        frames: of a film, in order.
        find: the detector.
        stride: n.

    Yields:
        Every frame once, in order, at most `stride` frames late.
    """
    cuts = CutDetector()
    held: list[_Held] = []  # since the last look
    since = 0
    last: _Held | None = None
    for frame in frames:
        cut = cuts.step(frame.image)
        if cut and last is not None:
            yield from _settled(last, held, find)
            held, last = [], None
        held.append(_Held(frame, cuts.thumbnail))
        since += 1
        if last is None:
            last = held[0]
            last.faces = find(frame)
            yield frame, last.faces, cut
        elif since >= stride:
            yield from _settled(last, held, find)
            last = held[-1]
        else:
            if len(held) > HELD:
                yield held.pop(0).frame, None, False
            continue
        held, since = [], 0
    if last is not None:
        yield from _settled(last, held, find)


@dataclass(eq=False)
class _Held:
    """A frame of which it is not yet known whether to look at it."""

    frame: Frame
    thumbnail: NDArray[np.uint8]
    faces: list[Face] | None = None


def _settled(last: _Held, held: Sequence[_Held], find: Callable[[Frame], list[Face]]) -> Iterator[Seen]:
    """The frames after a look, the last of which is looked at."""
    if not held:
        return
    line = [last, *held]

    def see(number: int) -> None:
        line[number].faces = find(line[number].frame)

    def between(a: int, b: int) -> None:
        before, after = line[a].faces, line[b].faces
        if b - a < 2 or before is None or after is None or _alike(before, after):
            return
        middle = (a + b) // 2
        see(middle)
        between(a, middle)
        between(middle, b)

    see(len(held))
    between(0, len(held))
    looks = [number for number, one in enumerate(line) if one.faces is not None]
    for a, b in pairwise(looks):
        odd = [_transient(line[a].thumbnail, one.thumbnail, line[b].thumbnail) for one in line[a + 1 : b]]
        worst = max(odd, default=0)
        if worst:
            most = a + 1 + odd.index(worst)
            see(most)
            between(a, most)
            between(most, b)
    for one in held:
        yield one.frame, one.faces, False


def _transient(before: NDArray[np.uint8], now: NDArray[np.uint8], after: NDArray[np.uint8]) -> int:
    """Squares of 2×2 cells unlike both other thumbnails, which are alike there; edges that shake are thinner."""
    a, x, b = (one.astype(np.int16) for one in (before, now, after))
    away = np.minimum(np.abs(x - a).max(-1), np.abs(x - b).max(-1))
    odd = (away >= DIFFERENT) & (3 * np.abs(a - b).max(-1) <= away)
    return int((odd[1:, 1:] & odd[:-1, 1:] & odd[1:, :-1] & odd[:-1, :-1]).sum())


def _alike(before: Sequence[Face], after: Sequence[Face]) -> bool:
    """Whether every face of one look is in the other one, near its place."""
    rest = list(before)
    for face in after:
        near = [other for other in rest if _near(face, other)]
        if near:
            rest.remove(near[0])
        elif _counts(face):
            return False
    return not any(_counts(face) for face in rest)


def _near(a: Face, b: Face) -> bool:
    (first, size), (second, other) = measured(a.box), measured(b.box)
    scale = math.exp(float((size.mean() + other.mean()) / 2))
    far = float(np.linalg.norm(first - second)) > MOVED * scale
    return not far and abs(float((size - other).mean())) <= RESIZED


def _counts(face: Face) -> bool:
    return float((face.box[2:] - face.box[:2]).min()) >= LEAST
