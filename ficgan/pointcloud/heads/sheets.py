"""The sheets a made head consists of, and a scanner that samples them."""

from __future__ import annotations

import numpy as np

from ficgan.pointcloud.heads.surface import CENTRE, Array, Surface

__all__ = ["EAR", "HEAD", "NECK", "mesh", "scanned"]

HEAD, EAR, NECK = 0, 1, 2
GRAZING = -0.1
"""Scanners look from the front and, a little, from the sides: facets whose normal's x is below this are not seen."""


def mesh(face: Surface) -> tuple[Array, Array, Array]:
    """A made head as triangles.

    Args:
        face: its surface.

    Returns:
        Vertices [V,3] in mm, triangles [T,3] whose normals point outwards, and what each triangle is part of [T].
    """
    sheets = [(_head(face), HEAD), (_ear(face, 1), EAR), (_ear(face, -1), EAR), (_neck(face), NECK)]
    vertices, triangles, parts, begin = [], [], [], 0
    for (spots, facets), part in sheets:
        kept = facets if part == HEAD else facets[_outside(face, spots)[facets].all(axis=1)]
        vertices.append(spots + (0.0 if part == HEAD else face.shift))
        triangles.append(kept + begin)
        parts.append(np.full(len(kept), part))
        begin += len(spots)
    return np.concatenate(vertices), np.concatenate(triangles), np.concatenate(parts)


def scanned(
    vertices: Array, triangles: Array, parts: Array, count: int, rng: np.random.Generator, holes: int
) -> tuple[Array, Array, Array]:
    """Points spread over what a scanner in front sees, somewhat unevenly.

    Args:
        vertices, triangles, parts: as of `mesh`.
        count: points.
        rng: of the places.
        holes: round places of 4–9 mm, on the front, that stay empty.

    Returns:
        Points [N,3], unit normals [N,3], parts [N].
    """
    corners = vertices[triangles]
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(across, axis=1)
    normals = across / np.maximum(area, 1e-12)[:, None]
    middle = corners.mean(axis=1)
    waves = rng.normal(0.0, 1 / 30.0, (3, 4))
    weight = area * np.clip((normals[:, 0] - GRAZING) / 0.3, 0.0, 1.0)
    weight *= 1.0 + 0.08 * np.cos(middle @ waves + rng.uniform(0.0, 2 * np.pi, 4)).sum(axis=1)
    front = np.flatnonzero(middle[:, 0] > -40.0)
    for _ in range(holes):
        away = np.linalg.norm(middle - middle[rng.choice(front)], axis=1)
        weight[away < rng.uniform(4.0, 9.0)] = 0.0
    ends = np.cumsum(weight)
    chosen = np.searchsorted(ends, (np.arange(count) + rng.random(count)) * (ends[-1] / count))
    a, b = np.sort(rng.random((2, count)), axis=0)
    shares = np.stack([a, b - a, 1.0 - b], axis=1)
    spots = np.einsum("nk,nkc->nc", shares, corners[chosen])
    order = rng.permutation(count)
    return spots[order], normals[chosen[order]], parts[chosen[order]]


def _head(face: Surface) -> tuple[Array, Array]:
    even = np.linspace(-1.0, 1.0, 211)
    turn = np.radians(112.0 * (0.8 * even + 0.2 * even**3))
    lat, lon = np.meshgrid(np.radians(np.linspace(-72.0, 89.5, 240)), turn, indexing="ij")
    rays = np.stack([np.cos(lat) * np.cos(lon), np.sin(lat), np.cos(lat) * np.sin(lon)], axis=-1)
    return face.at(rays.reshape(-1, 3)), _grid(*lat.shape)


def _ear(face: Surface, side: int) -> tuple[Array, Array]:
    """A tilted, flared leaf with a rim and a hollow."""
    rim, angle = np.repeat(np.linspace(0.02, 1.0, 26), 61), np.tile(np.linspace(0.0, 2 * np.pi, 61), 26)
    up, back = rim * np.sin(angle), rim * np.cos(angle)
    flare, size = np.radians(33.0), face.who.ear
    outwards = np.array([-np.cos(flare), 0.0, side * np.sin(flare)])
    facing = np.array([np.sin(flare), 0.0, side * np.cos(flare)])
    raised = 2.5 * np.exp(-(((rim - 0.88) / 0.12) ** 2)) * (back > -0.6)
    raised = raised - 4.0 * np.exp(-(((back + 0.15) / 0.4) ** 2) - ((up + 0.1) / 0.4) ** 2)
    middle = np.array([-96.0, 0.6 * face.eye - 5.0, side * 0.985 * face.who.skull]) + 0.25 * size * outwards
    spots = middle + np.outer(size * up, [0.12, 1.0, 0.0]) + np.outer(raised, facing)
    spots = spots + np.outer(0.58 * size * (1.0 + 0.22 * up) * back, outwards)
    return spots, _grid(26, 61)[:, ::-side]


def _neck(face: Surface) -> tuple[Array, Array]:
    down, turn = np.meshgrid(np.linspace(-128.0, -30.0, 60), np.radians(np.linspace(-100, 100, 120)), indexing="ij")
    radius = 0.78 * face.who.jaw + 4.0 * ((down + 75.0) / 50.0) ** 2
    spots = np.stack([radius * np.cos(turn) - 112.0, down, 1.05 * radius * np.sin(turn)], axis=-1)
    return spots.reshape(-1, 3), _grid(*down.shape)


def _outside(face: Surface, spots: Array) -> Array:
    rays = spots - CENTRE
    away = np.linalg.norm(rays, axis=1)
    return np.asarray(away > face.radius(rays / away[:, None]) - 0.5)


def _grid(rows: int, columns: int) -> Array:
    """Two triangles for each cell of a grid whose first index goes up and whose second goes to +z."""
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (part.ravel() for part in (at[:-1, :-1], at[:-1, 1:], at[1:, :-1], at[1:, 1:]))
    return np.concatenate([np.stack([a, c, b], axis=1), np.stack([b, c, d], axis=1)])
