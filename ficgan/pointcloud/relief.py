"""What a face looks like: the relief of a made head, and how like it a cloud is. Nothing of it was scanned.

A face seen from the front is a relief x = T(y, z).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ficgan.pointcloud.landmarks import FaceLandmarks

__all__ = ["Relief", "face_likeness", "mean_relief", "weights"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CELL = 0.002
"""Metres of the grid's cell."""
_LOW, _HIGH = np.array([-0.065, -0.06]), np.array([0.075, 0.06])
_SHAPE: tuple[int, int] = tuple((np.rint((_HIGH - _LOW) / CELL).astype(int) + 1).tolist())
_BLUR = 2.0
"""Cells over which reliefs are smoothed before they are compared: noise goes; eyes, nose and lips stay."""
_NEAR = 0.025
"""Metres from the usual face within which a point may be of the skin."""
_MIDDLE, _WIDTH = np.array([0.008, 0.0]), np.array([0.03, 0.026])
"""Where, in (y, z), likeness looks: eyes, nose and mouth. Cheeks and jaw differ more between people than faces do from
other things: with the whole face, a smiling scan in its right pose was less alike than chins taken for noses."""
_FEWEST = 100
"""Cells below which nothing is compared."""


@dataclass(frozen=True)
class Relief:
    """x over a grid of (y, z), NaN where there is no face.

    Args:
        depth: [Y,Z], metres.
        slopes: [2,Y,Z], along y and z.
    """

    depth: Floats
    slopes: Floats

    def at(self, points: Floats) -> tuple[Floats, Floats, Mask]:
        """For points [...,3]: depth [...], slopes [2,...], and whether the relief is known there."""
        place = (points[..., 1:] - _LOW) / CELL
        top = np.array(_SHAPE) - 1
        cells = np.clip(np.rint(place), 0, top).astype(np.intp)
        row, column = cells[..., 0], cells[..., 1]
        known = ((place >= 0) & (place <= top)).all(axis=-1) & np.isfinite(self.depth[row, column])
        offset = (place - cells) * CELL
        slopes = self.slopes[:, row, column]
        return self.depth[row, column] + slopes[0] * offset[..., 0] + slopes[1] * offset[..., 1], slopes, known


@lru_cache(maxsize=1)
def mean_relief() -> Relief:
    """The face of the made head whose features are all usual, in the frame of its landmarks."""
    depth = _smoothed(*_usual(), 0.7)
    slopes = np.stack([np.gradient(depth, CELL, axis=axis) for axis in (0, 1)])
    return Relief(np.where(np.isfinite(slopes).all(axis=0), depth, np.nan), np.nan_to_num(slopes))


def face_likeness(placed: Floats) -> tuple[float, float]:
    """How like a face a cloud is, 0…1, and its distance from the made face.

    Both are smoothed, and what a bowl explains is taken from both, as many things are bowls. The likeness is the
    product of: the correlation of what is left, about eyes, nose and mouth; the part of these with points on it; the
    correlation with the own mirror image; and the fourth root of the ratio of sizes, smaller to larger.

    Args:
        placed: [N,3], metres, canonical frame, as it is believed.

    Returns:
        the likeness, and the root mean square of the distances of points within 2.5 cm from the made face, metres.
    """
    depth, slopes, known = mean_relief().at(placed)
    near = known & (np.abs(placed[:, 0] - depth) < _NEAR)
    skin = placed[near]
    cells = np.rint((skin[:, 1:] - _LOW) / CELL).astype(int) @ [_SHAPE[1], 1]
    count, total = (np.bincount(cells, of, _SHAPE[0] * _SHAPE[1]).reshape(_SHAPE) for of in (None, skin[:, 0]))
    relief, face, weight = _smoothed(total / np.maximum(count, 1), count > 0, _BLUR), *_compared()
    on = np.isfinite(relief) & (weight > 0.02)
    if on.sum() < _FEWEST:
        return 0.0, float("inf")
    detail, made = _details(np.stack([relief[on], face[on]], axis=1), on, weight[on])
    mirror = np.zeros(_SHAPE)
    mirror[on] = detail
    alike, even = _correlation(detail, made), _correlation(detail, mirror[:, ::-1][on])
    small, large = sorted((float(np.linalg.norm(detail)), float(np.linalg.norm(made))))
    covered = weight[on].sum() / weight[weight > 0.02].sum()
    likeness = max(alike, 0.0) * covered * max(even, 0.0) * (small / large) ** 0.25
    distance = (skin[:, 0] - depth[near]) / np.sqrt(1 + (slopes[:, near] ** 2).sum(axis=0))
    return float(likeness), float(np.sqrt((distance**2).mean()))


def weights(distance: Floats, scale: float) -> Floats:
    """1 at distance 0, 0 from `scale` on and where the distance is not known."""
    return np.where(np.abs(distance) < scale, 1 - (distance / scale) ** 2, 0.0)


@lru_cache(maxsize=1)
def _usual() -> tuple[Floats, Mask]:
    """The foremost x of the usual made head in each cell, and where there is one."""
    from ficgan.pointcloud.frame import landmark_frame
    from ficgan.pointcloud.heads import HEAD, Expression, Features, Surface, marked, mesh

    face = Surface(Features(), Expression())
    frame = landmark_frame(FaceLandmarks.of_points(marked(face)))
    vertices, triangles, parts = mesh(face)
    skin = vertices[np.unique(triangles[parts == HEAD])] / 1000.0 @ frame[:3, :3].T + frame[:3, 3]
    places = np.rint((skin[:, 1:] - _LOW) / CELL).astype(int)
    seen = (skin[:, 0] > -0.09) & ((places >= 0) & (places < _SHAPE)).all(axis=1)
    front = np.full(_SHAPE, -np.inf)
    np.maximum.at(front, tuple(places[seen].T), skin[seen, 0])
    return np.where(np.isfinite(front), front, 0.0), np.isfinite(front)


@lru_cache(maxsize=1)
def _compared() -> tuple[Floats, Floats]:
    """The usual face smoothed as clouds are, and the weights of its cells, 0 where it is not known."""
    face = _smoothed(*_usual(), _BLUR)
    weight = np.exp(-(((_places(np.ones(_SHAPE, bool)) - _MIDDLE) / _WIDTH) ** 2).sum(axis=1)).reshape(_SHAPE)
    return face, np.where(np.isfinite(face), weight, 0.0)


def _smoothed(depth: Floats, known: Mask, blur: float) -> Floats:
    weight = gaussian_filter(known.astype(float), blur)
    depth = gaussian_filter(np.where(known, depth, 0.0), blur) / np.maximum(weight, 1e-9)
    return np.where(weight > 0.01, depth, np.nan)


def _places(cells: Mask) -> Floats:
    """(y, z) of cells [K,2]."""
    return _LOW + CELL * np.argwhere(cells)


def _details(depths: Floats, cells: Mask, weight: Floats) -> Floats:
    """What a bowl leaves of depths [K,C], weighted: [C,K]."""
    y, z = _places(cells).T / _HIGH[:, None]
    root = np.sqrt(weight)[:, None]
    bowl = np.column_stack([np.ones_like(y), y, z, y * y, y * z, z * z]) * root
    return np.asarray((depths * root - bowl @ np.linalg.lstsq(bowl, depths * root)[0]).T, np.float64)


def _correlation(one: Floats, other: Floats) -> float:
    return float(one @ other / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-18))
