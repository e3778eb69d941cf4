"""Colours of a made head: by region, softly lit from the front, as a photographing scanner records them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.heads.sheets import EAR, HEAD
from ficgan.pointcloud.heads.surface import Array, Surface, bump, step

__all__ = ["painted"]

SKINS = np.array([[92, 58, 42], [142, 92, 64], [192, 136, 102], [220, 171, 140], [240, 205, 184]], float)
HAIRS = np.array([[24, 20, 18], [54, 36, 24], [98, 66, 38], [186, 144, 84], [138, 134, 130]], float)
IRISES = np.array([[58, 34, 20], [92, 62, 30], [70, 92, 60], [66, 104, 140]], float)
LIGHT = np.array([0.86, 0.42, 0.28])
AMBIENT = 0.55


def painted(face: Surface, spots: Array, normals: Array, parts: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Colours [N,3] of points on a head.

    Args:
        face: the surface.
        spots: [N,3] mm, nose tip at the origin.
        normals: [N,3] unit.
        parts: [N], as of `ficgan.pointcloud.heads.sheets`.
        rng: of grain.
    """
    x, y, z = (spots - face.shift).T
    head = parts == HEAD
    front = head & (x > -70.0)
    grain = 1.0 + 0.02 * rng.standard_normal((len(spots), 1))
    colors = _skin(face, y, z, parts) * grain
    colors = _over(colors, _lip_colour(face), front * _lips(face, y, z))
    colors = _over(colors, np.array([60.0, 22.0, 22.0]), front * face.mouth_open(y, z))
    colors = _eyes(face, colors, y, z, front)
    strands = _between(HAIRS, face.who.hair) * (1.0 + 5.0 * (grain - 1.0))
    colors = _over(colors, 0.85 * strands, 0.9 * front * face.brow(y, z))
    colors = _over(colors, strands, head * face.hair(x, y, z))
    lit = AMBIENT + (1.0 - AMBIENT) * np.clip(normals @ (LIGHT / np.linalg.norm(LIGHT)), 0.0, 1.0)
    return np.clip(np.rint(colors * (1.08 * lit)[:, None]), 0, 255).astype(np.uint8)


def _skin(face: Surface, y: Array, z: Array, parts: Array) -> Array:
    who = face.who
    skin = np.broadcast_to(_between(SKINS, who.tone), (len(y), 3))
    red = bump(y, z, (-4.0, 40.0), (12.0, 14.0)) + 0.7 * bump(y, z, (-2.0, 0.0), (8.0, 12.0)) + 0.6 * (parts == EAR)
    skin = _over(skin, np.array([205.0, 96.0, 84.0]) * (0.5 + 0.5 * who.tone), (0.08 + 0.14 * who.redness) * red)
    dark = 0.75 * bump(y, z, (-10.5, 6.4), (1.6, 2.6)) + 0.25 * bump(y, z, (-12.0, 0.0), (1.6, 8.0))
    dark = dark + 0.12 * bump(y, z, (face.eye + 1.0, who.eye_distance - 2.0), (8.0, 13.0))
    return _over(skin, 0.25 * _between(SKINS, who.tone), np.clip(dark, 0.0, 1.0))


def _lip_colour(face: Surface) -> Array:
    pale = _between(SKINS, face.who.tone)
    return np.asarray((1.0 - 0.65) * pale + 0.65 * np.array([176.0, 62.0, 66.0]) * (0.6 + 0.4 * face.who.tone))


def _lips(face: Surface, y: Array, z: Array) -> Array:
    top, _, _, bottom = face.lips(z)
    return step(top - y, 0.5) * step(y - bottom, 0.5) * step(face.half - np.abs(z), 0.5)


def _eyes(face: Surface, colors: Array, y: Array, z: Array, front: Array) -> Array:
    up, side = face.eye_frame(y, z)
    shown = front * face.eye_open(y, z)
    away = np.hypot(up - 0.3, side)
    colors = _over(colors, np.array([236.0, 232.0, 226.0]), shown)
    colors = _over(colors, _between(IRISES, face.who.iris), shown * step(5.6 - away, 0.4))
    colors = _over(colors, np.array([14.0, 12.0, 12.0]), shown * step(2.4 - away, 0.4))
    glint = step(0.9 - np.hypot(up - 1.8, z - np.sign(z) * face.who.eye_distance + 1.6), 0.3)
    colors = _over(colors, np.array([250.0, 250.0, 250.0]), shown * glint)
    inside = np.clip(1.0 - (side / face.who.eye_width) ** 2, 0.0, 1.0)
    lash = np.exp(-(((up - face.opening * inside**0.75 - 0.4) / 0.9) ** 2)) * (inside > 0)
    under = 0.4 * np.exp(-(((up + 0.72 * face.opening * inside + 0.3) / 0.7) ** 2)) * (inside > 0)
    return _over(colors, np.array([30.0, 22.0, 20.0]), 0.9 * front * np.maximum(lash, under))


def _over(colors: Array, paint: Array, cover: Array) -> Array:
    """Paint over colours [N,3], as far as `cover` [N] says."""
    return np.asarray(colors + (paint - colors) * np.asarray(cover, float)[:, None])


def _between(stops: Array, at: float) -> Array:
    """A colour on a line of colours, at 0…1."""
    return np.array([np.interp(at, np.linspace(0.0, 1.0, len(stops)), channel) for channel in stops.T])
