"""The 68 landmarks of a made head, from its formulas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.heads.surface import CENTRE, Array, Surface

__all__ = ["marked"]

JAW = np.array([[33, 88], [10, 87], [-12, 85], [-30, 78], [-42, 68], [-53, 54], [-61, 38], [-67, 19]], float)
"""Where rays from `CENTRE` go: height at 75 mm, and degrees to the person's right; the jaw's points 0–7."""


def marked(face: Surface) -> NDArray[np.float64]:
    """Landmarks [68,3] in mm: jaw 0–16 from the person's right, brows 17–26, nose 27–35, eyes 36–47, lips 48–67.

    Args:
        face: the surface.
    """
    return np.concatenate([_jaw(face), _dropped(face, np.array(_front(face)))])


def _jaw(face: Surface) -> Array:
    stretch = (face.who.jaw_length + 25.0) / 84.0
    height, turn = JAW[:, 0].copy(), np.radians(JAW[:, 1])
    height[height < 0] *= stretch
    height = height - 0.6 * face.gap * np.clip(-height / 67.0, 0.0, 1.0)
    right = np.stack([75 * np.cos(turn), height - CENTRE[1], 75 * np.sin(turn)], axis=1)
    low = np.radians(np.linspace(-62.0, -35.0, 109))
    line = face.at(np.stack([np.cos(low), np.sin(low), np.zeros_like(low)], axis=1))
    chin = line[(line[:, 0] - 0.9 * line[:, 1]).argmax()]
    return np.concatenate([face.at(right), chin[None], face.at(right[::-1] * [1.0, 1.0, -1.0])])


def _front(face: Surface) -> list[tuple[float, float]]:
    """(y, z) of the points 17–67, before the head is shifted."""
    who = face.who
    z = who.eye_distance + np.array([17.0, 10.0, 2.0, -6.0, -13.0])
    brow = list(zip(face.brow_line(z).tolist(), z.tolist(), strict=True))
    bridge = [(y, 0.0) for y in np.linspace(0.95 * who.nose_length, -face.shift[1], 4)]
    base = [(-10.5 - 2.0 * (1 - abs(share)), share * who.nose_width) for share in (0.95, 0.5, 0.0, -0.5, -0.95)]
    eye = []
    for side, lid in ((1.0, 0.0), (0.4, 1.0), (-0.4, 1.0), (-1.0, 0.0), (-0.4, -0.72), (0.4, -0.72)):
        lift = lid * face.opening * (1.0 - side**2) ** (0.75 if lid > 0 else 1.0)
        eye.append((face.eye + who.eye_slant * side + lift, who.eye_distance + side * who.eye_width))
    return (
        brow
        + _mirrored(brow[::-1])
        + bridge
        + base
        + eye
        + _mirrored([eye[k] for k in (3, 2, 1, 0, 5, 4)])
        + _lips(face)
    )


def _mirrored(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(y, -z) for y, z in spots]


def _lips(face: Surface) -> list[tuple[float, float]]:
    shares = [(0, s) for s in (1.0, 0.6, 0.2, 0.0, -0.2, -0.6, -1.0)] + [(3, s) for s in (-0.6, -0.2, 0.0, 0.2, 0.6)]
    shares += [(1, s) for s in (0.85, 0.25, 0.0, -0.25, -0.85)] + [(2, s) for s in (-0.25, 0.0, 0.25)]
    return [(float(face.lips(np.array([s * face.half]))[edge][0]), s * face.half) for edge, s in shares]


def _dropped(face: Surface, flat: Array) -> Array:
    """Points of the surface above (y, z) of the front: rays to them, found by fixed-point iteration."""
    spots = np.column_stack([np.full(len(flat), -25.0), flat])
    for _ in range(12):
        rays = spots - CENTRE
        away = np.linalg.norm(rays, axis=1)
        bare = CENTRE + rays * (face.radius(rays / away[:, None]) / away)[:, None]
        spots = np.column_stack([bare[:, 0], flat])
    return face.at(spots - CENTRE)
