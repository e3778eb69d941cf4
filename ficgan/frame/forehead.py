"""The forehead above the mask: skin that goes on up to the hairline is made anew, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.blend import crop
from ficgan.faces.mesh import FACE_OVAL

__all__ = ["Forehead", "read_forehead", "steadied"]

Floats = NDArray[np.float32]

SIDE, SHIFT = 144, (8.0, 58.0)
"""Side of the upright picture in which a forehead is looked for, one pixel a unit, and where upright (0, 0) lies."""
_BROWS, _CHEEKS = (105, 334), (50, 280, 101, 330)
"""Mesh points at the top of the brows, and on cheeks that glasses and beards leave free."""
_HUE, _LIT = 0.05, (0.5, 1.9)
"""How far skin may be from the cheeks' colour at the same brightness, and how dark and how bright it may be, of theirs.
"""
_NEAR = 0.11
"""Difference in [0,1] from the forehead nearby beyond which it is no skin any more."""
_RAMP = 10.0
"""Units below the mask's upper edge over which it gives way to the new face's own forehead."""
_LEAST = 0.2
"""Share of the forehead under the mask that must be skin: else a fringe or a hat lies on it."""


_COARSE = 4
"""Blurs are made in a picture so many times smaller."""


@dataclass(frozen=True, eq=False)
class Forehead:
    """Skin above the mask, in a picture of the head brought upright.

    Args:
        matrix: float64 [2,3], photo → picture.
        fill: float32 [S,S,3] in [0,1], the skin without what is anybody's: smooth, in the light of the source.
        weight: float32 [S,S] in [0,1], how much of each pixel it is; it fades out under the mask's upper edge.
    """

    matrix: NDArray[np.float64]
    fill: Floats
    weight: Floats


def read_forehead(photo: NDArray[np.uint8], upright: NDArray[np.float64], points: NDArray[np.float64]) -> Forehead:
    """The bare forehead of a face; its weight is 0 where hair or a hat begins at the mask.

    Args:
        photo: uint8 [H,W,3] RGB.
        upright: float64 [2,3], photo → upright units.
        points: [468,3], the mesh in upright units.
    """
    import cv2

    matrix = np.column_stack([upright[:, :2], upright[:, 2] + SHIFT])
    image = crop(photo, matrix, SIDE)
    mesh = points[:, :2] + SHIFT
    face = np.zeros((SIDE, SIDE), np.uint8)
    cv2.fillPoly(face, [np.rint(mesh[FACE_OVAL] * 16).astype(np.int32)], 1, shift=4)
    (x0, y0), (x1, y1) = mesh[list(_BROWS)]
    columns, rows = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    above = rows < y0 + (y1 - y0) / max(x1 - x0, 1.0) * (columns - x0) - 3
    oval = mesh[FACE_OVAL]
    temples = np.append(oval[oval[:, 1] < (y0 + y1) / 2, 0], (x0 + x1) / 2)
    between = (columns > temples.min() + 1) & (columns < temples.max() - 1)

    colours = cv2.GaussianBlur(image, (0, 0), 1.0).astype(np.float32) / np.float32(255)
    at = np.clip(np.rint(mesh[list(_CHEEKS)]).astype(int), 2, SIDE - 3)
    cheek = np.median([colours[y - 2 : y + 3, x - 2 : x + 3].reshape(-1, 3).mean(0) for x, y in at], axis=0)
    bright = colours.mean(2) / max(float(cheek.mean()), 0.02)
    hue = np.abs(colours / np.maximum(colours.mean(2, keepdims=True), 0.02) - cheek / max(float(cheek.mean()), 0.02))
    skin = (hue.max(2) * cheek.mean() < _HUE) & (bright > _LIT[0]) & (bright < _LIT[1])
    zone = (face > 0) & above
    seeds = zone & skin
    if seeds.sum() < max(_LEAST * zone.sum(), 20):
        return Forehead(matrix, colours, np.zeros((SIDE, SIDE), np.float32))
    near = _smooth(colours, seeds.astype(np.float32), 20.0)
    like = skin & (np.abs(colours - near).max(2) < _NEAR) & above & between
    count, label = cv2.connectedComponents((like | seeds).astype(np.uint8), connectivity=4)
    reached = np.zeros(count, bool)
    reached[np.unique(label[seeds])] = True
    reached[0] = False
    found = cv2.morphologyEx(reached[label].astype(np.uint8), cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    found = cv2.erode(found | zone.astype(np.uint8), np.ones((3, 3), np.uint8))
    inner: Any = cv2.GaussianBlur(found.astype(np.float32), (0, 0), 1.2)
    known = (found > 0) & skin
    fill = _smooth(colours, known.astype(np.float32), 6.0)
    depth = cv2.distanceTransform(face, cv2.DIST_L2, 3)
    ramp = np.clip(1 - depth / _RAMP, 0, 1) * np.clip((y0 + y1) / 2 - 3 - rows, 0, 6) / 6
    return Forehead(matrix, fill, (inner * ramp * between).astype(np.float32))


def steadied(foreheads: Sequence[Forehead], at: int) -> Forehead:
    """One of the foreheads of consecutive frames: the mean of all, in its place."""
    weights: Floats = np.stack([one.weight for one in foreheads])
    shares = np.expand_dims(weights + np.float32(1e-3), 3)  # colours count where they are skin
    sums: Floats = np.einsum("nhwo,nhwc->hwc", shares, np.stack([one.fill for one in foreheads]))
    weight: Floats = np.einsum("nhw->hw", weights) / np.float32(len(weights))
    return replace(foreheads[at], fill=sums / np.einsum("nhwo->hwo", shares), weight=weight)


def _smooth(image: Floats, weight: Floats, sigma: float) -> Floats:
    """An image [S,S,3] blurred under a weight [S,S], and carried on beyond it."""
    import cv2

    packed = np.dstack([image * weight[..., None], weight])
    coarse: Any = cv2.resize(packed, (SIDE // _COARSE, SIDE // _COARSE), interpolation=cv2.INTER_AREA)
    total: Floats = np.zeros_like(coarse)
    for times, trust in ((1, 1.0), (4, 1e-3)):
        total += np.float32(trust) * cv2.GaussianBlur(coarse, (0, 0), times * sigma / _COARSE)
    blurred = total[..., :3] / np.maximum(total[..., 3:], 1e-9)
    return np.asarray(cv2.resize(blurred, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC), np.float32)
