"""In which frames of a film the detector looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

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
HELD = 32
"""Frames kept at most until it is known whether to look at them."""


def look(frames: Iterable[Frame], find: Callable[[Frame], list[Face]], stride: int) -> Iterator[Seen]:
    """Look at every n-th frame, at the first and last of each scene, and wherever two looks tell different stories.

    Where a face came, went or moved far between two looks, the frame in the middle is looked at too, and so on on both
    sides: what comes in a dash is followed frame by frame, and what rests costs one look in n.

    Args:
        frames: of a film, in order.
        find: the detector.
        stride: n.

    Yields:
        Every frame once, in order, at most `stride` frames late.
    """
    cuts = CutDetector()
    held: list[Frame] = []  # since the last look
    since = 0
    last: list[Face] | None = None
    for frame in frames:
        cut = cuts.step(frame.image)
        if cut:
            yield from _settled(last or [], held, find)
            held, last = [], None
        held.append(frame)
        since += 1
        if last is None:
            last = find(frame)
            yield frame, last, cut
        elif since >= stride:
            *_, end = settled = list(_settled(last, held, find))
            yield from settled
            last = end[1]
        else:
            if len(held) > HELD:
                yield held.pop(0), None, False
            continue
        held, since = [], 0
    yield from _settled(last or [], held, find)


def _settled(before: list[Face], held: Sequence[Frame], find: Callable[[Frame], list[Face]]) -> Iterator[Seen]:
    """The frames after a look, the last of which is looked at."""
    if not held:
        return
    found = {-1: before, len(held) - 1: find(held[-1])}

    def between(a: int, b: int) -> None:
        if b - a < 2 or _alike(found[a], found[b]):
            return
        middle = (a + b) // 2
        found[middle] = find(held[middle])
        between(a, middle)
        between(middle, b)

    between(-1, len(held) - 1)
    for number, frame in enumerate(held):
        yield frame, found.get(number), False


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
