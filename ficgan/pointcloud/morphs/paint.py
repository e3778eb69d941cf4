"""Colours of synthetic people whose scans have none: a skin tone, a pattern on it; lips, brows and eyes by landmark."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.neighbours import search

__all__ = ["albedo", "regions"]

Array = NDArray[Any]

SKINS = np.array([[98, 64, 48], [148, 98, 70], [192, 138, 106], [220, 173, 143], [238, 204, 184]], float)
HAIRS = np.array([[24, 20, 18], [54, 36, 24], [110, 78, 48], [150, 146, 140]], float)
IRISES = np.array([[46, 28, 18], [92, 62, 30], [70, 92, 70], [66, 104, 140]], float)
EDGE = 0.0006
"""Metres over which a region fades."""


def regions(points: Array, marks: Array) -> Array:
    """How much of each point is lip, brow, white of an eye, iris, pupil, lash [N,6], 0…1.

    Args:
        points: [N,3] of the template, canonical frame, metres.
        marks: [68,3] its landmarks.
    """
    flat, lines = points[:, 1:], marks[:, 1:]
    lip = np.clip(_inside(flat, lines[48:60]) - _inside(flat, lines[60:68]), 0.0, 1.0)
    brow = np.maximum(*(_near_line(flat, lines[part], 0.0028) for part in (slice(17, 22), slice(22, 27))))
    eyes = np.zeros((4, len(points)))
    for ring in (lines[36:42], lines[42:48]):
        middle, width = ring.mean(axis=0), np.linalg.norm(ring[0] - ring[3])
        white = _inside(flat, ring)
        away = np.linalg.norm(flat - middle, axis=1)
        iris, pupil = _fade(0.21 * width - away), _fade(0.09 * width - away)
        lash = 0.7 * _near_line(flat, ring[:4], 0.0008)
        eyes = np.maximum(eyes, np.stack([white, white * iris, white * pupil, lash]))
    shown = points[:, 0] > marks[[0, 16], 0].mean()
    return np.asarray((np.column_stack([lip, brow, *eyes]) * shown[:, None]).astype(np.float32))


def albedo(covers: Array, pattern: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Colours [N,3], without light, of somebody.

    Args:
        covers: as of `regions`.
        pattern: [N,2] smooth, of variance 1: brighter and darker, redder and paler places.
        rng: of the tones.
    """
    tone, hair, iris = rng.random(3)
    skin = _between(SKINS, tone)
    lips = skin * (0.55 - 0.2 * rng.random()) + np.array([150.0, 58.0, 62.0]) * (0.5 + 0.2 * tone)
    red = pattern[:, 1:] * np.array([[1.0, -1.5, -1.5]])
    colors = skin * (1.0 + 0.03 * pattern[:, :1]) + red
    dark = _between(HAIRS, hair)
    paints = [
        lips,
        dark,
        np.array([226.0, 222.0, 216.0]),
        _between(IRISES, iris),
        np.array([14.0, 12.0, 12.0]),
        0.6 * dark,
    ]
    shares = [0.8, 0.4 + 0.5 * rng.random(), 1.0, 1.0, 1.0, 0.9]
    for paint, share, cover in zip(paints, shares, covers.T, strict=True):
        colors = colors + (paint - colors) * (share * cover)[:, None]
    return np.clip(np.rint(colors), 0, 255).astype(np.uint8)


def _fade(depth: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(depth / EDGE))


def _inside(flat: Array, ring: Array) -> Array:
    """0…1: within a closed polygon in the plane, fading at its edge."""
    x, y = flat.T
    crossings = np.zeros(len(flat), int)
    for (ax, ay), (bx, by) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        spans = (ay > y) != (by > y)
        at = ax + (y - ay) * (bx - ax) / (by - ay if by != ay else 1.0)
        crossings += spans & (x < at)
    edge = _distance(flat, np.concatenate([ring, ring[:1]]))
    return _fade(np.where(crossings % 2 == 1, edge, -edge))


def _near_line(flat: Array, line: Array, width: float) -> Array:
    return _fade(width - _distance(flat, line))


def _distance(flat: Array, line: Array) -> Array:
    """From points in the plane to a line of stretches, to a tenth of a millimetre."""
    steps = np.linspace(0.0, 1.0, 200)[:, None]
    dense = np.concatenate([a + steps * (b - a) for a, b in pairwise(line)])
    return np.asarray(search(dense, flat)[0][:, 0])


def _between(stops: Array, at: float) -> Array:
    """A colour on a line of colours, at 0…1."""
    return np.array([np.interp(at, np.linspace(0.0, 1.0, len(stops)), channel) for channel in stops.T])
