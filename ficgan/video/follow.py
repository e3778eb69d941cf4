"""A box that a person drew in one frame of a film, followed through the frames around it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.video.decisions import Region
from ficgan.video.project import Project
from ficgan.video.read import open_video
from ficgan.video.tracks import scene_bounds

__all__ = ["follow_box"]

Box = NDArray[np.floating]
Grey = NDArray[np.uint8]
_SIDE = 480
"""Longest side of the frames in which points are followed, pixels."""
_POINTS, _FEWEST = 60, 6
_EVERY, _MOST = 3, 900
"""Frames between two keys, and frames to either side at most."""


def follow_box(path: Path, film: Project, frame: int, box: Box, first: int, last: int) -> Region:
    """A region that follows what is in a box: by the median motion and scale of points in it (Lucas and Kanade).

    Args:
        path: the film.
        film: its project; the box is followed within the scene, and 30 s at most to either side.
        frame: number of the frame in which the box was drawn.
        box: float32 [4], x0, y0, x1, y1.
        first, last: frames to be covered.

    Returns:
        The region. Where the points are lost the box rests.
    """
    begin, end = scene_bounds(film.cuts, len(film.pts), frame)
    first, last = max(first, begin, frame - _MOST), min(last, end, frame + _MOST)
    keys, earlier, place, before, factor = {frame: box}, [], box, None, 1.0
    half = (film.times[1] if len(film.pts) > 1 else 0.0) / 2
    with open_video(path, start=max(0.0, float(film.times[first]) - half) or None) as source:
        for picture in source.frames():
            number = int(np.searchsorted(film.pts, picture.pts))
            if number > last:
                break
            grey, factor = _reduced(picture.image)
            if number < frame:
                earlier.append((number, grey))
                continue
            if before is not None:
                place = _moved(before, grey, place * factor) / factor
                keys[number] = place
            elif earlier:
                keys |= _back([*earlier, (number, grey)], box, factor)
                earlier = []
            before = grey
    kept = [n for n in sorted(keys) if (n - frame) % _EVERY == 0 or n in (first, last)]
    return Region.model_validate({
        "first": first, "last": last, "keys": [
            {"frame": n, "box": [round(float(value), 1) for value in keys[n]]} for n in kept
        ],
    })  # fmt: skip


def _back(greys: list[tuple[int, Grey]], box: Box, factor: float) -> dict[int, Box]:
    """Places in earlier frames, from the last one of these back to the first."""
    keys, place = {}, box
    for (_, later), (number, grey) in pairwise(reversed(greys)):
        place = _moved(later, grey, place * factor) / factor
        keys[number] = place
    return keys


def _reduced(image: Grey) -> tuple[Grey, float]:
    """A frame in grey, its longer side reduced to `_SIDE`, and the factor."""
    import cv2

    height, width = image.shape[:2]
    factor = min(1.0, _SIDE / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    grey: Any = cv2.cvtColor(cv2.resize(image, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
    return grey, factor


def _moved(before: Grey, now: Grey, box: Box) -> Box:
    """The box in the next grey frame; the same one where its points are lost."""
    import cv2

    find, flow = cv2.goodFeaturesToTrack, cv2.calcOpticalFlowPyrLK
    height, width = before.shape
    x0, y0, x1, y1 = (int(v) for v in np.rint(box).clip(0, (width, height) * 2))
    if x1 - x0 < 4 or y1 - y0 < 4:
        return box
    mask = np.zeros_like(before)
    mask[y0:y1, x0:x1] = 255
    points = find(before, _POINTS, 0.01, 2, mask=mask)
    if points is None or len(points) < _FEWEST:
        return box
    there, found, _ = flow(before, now, points, None, winSize=(15, 15), maxLevel=3)
    back, again, _ = flow(now, before, there, None, winSize=(15, 15), maxLevel=3)
    there, back, points = (array.reshape(-1, 2) for array in (there, back, points))
    good = (found.ravel() == 1) & (again.ravel() == 1) & (np.abs(points - back).max(1) < 1)  # forth and back
    if good.sum() < _FEWEST:
        return box
    old, new = points[good], there[good]
    scale = 1.0
    apart = np.linalg.norm(old - np.median(old, 0), axis=1)
    if (apart > 2).sum() >= _FEWEST:
        ratio = np.linalg.norm(new - np.median(new, 0), axis=1)[apart > 2] / apart[apart > 2]
        scale = float(np.clip(np.median(ratio), 0.95, 1.05))
    middle = (box[:2] + box[2:]) / 2
    half = (box[2:] - box[:2]) / 2 * scale
    middle = middle + np.median(new - old, 0)
    moved: Box = np.concatenate([middle - half, middle + half])
    return moved
