"""Rigid registration of faces, from where both are by point-to-plane ICP (thesis, §3.2.2.4). Metres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Floats, Points, moved, rigid, with_normals
from ficgan.pointcloud.frame import find_face

Coarse = Literal["auto", "always", "never"]

INLIER = 0.005  # distance within which a point counts for the fitness and RMSE that are reported (thesis, §4.3.3.4)
POOR = 0.75  # fitness of ICP alone below which the faces are looked for first
_FREE = 1e-6
"""Directions in which the planes hold less than this share of what they hold in the strongest are left alone: along a
plane, about the axis of a cylinder, about a sphere's centre."""


@dataclass(frozen=True)
class Registration:
    """How a moved cloud lies on a fixed one. What the thesis calls the target, Open3D calls the source: it moves."""

    transform: Floats  # [4,4], that moves the cloud
    fitness: float  # share of the *moved* cloud's points that have a fixed one within `INLIER`
    rmse: float  # root mean square distance of those to their nearest fixed point; 0 where there are none


def register(source: Cloud, target: Cloud, *, coarse: Coarse = "auto") -> Registration:
    """Lay a target, which moves, on a source, which stays (thesis, algorithm 4, lines 1–2).

    `coarse` is whether the faces are looked for before ICP: always, never, or (auto) where ICP alone ends poorly.
    """
    for cloud in (source, target):
        cloud.need(3, "registration")
    fixed = source if source.normals is not None else with_normals(source)
    local = icp(target, fixed)
    if coarse == "never" or (coarse == "auto" and local.fitness >= POOR):
        return local
    try:
        found = icp(target, fixed, global_start(target, fixed))
    except InputError:
        if coarse == "always":
            raise
        return local  # "auto" promises no more
    return found if coarse == "always" or found.fitness > local.fitness else local


def global_start(moving: Cloud, fixed: Cloud) -> Floats:
    """The motion [4,4] that lays the face of one cloud on that of another, wherever both are."""
    return np.asarray(np.linalg.inv(find_face(fixed.points).transform) @ find_face(moving.points).transform)


def icp(
    moving: Cloud, fixed: Cloud, start: Floats | None = None, *, reach: float = 0.02, iterations: int = 30,
    tolerance: float = 1e-6,
) -> Registration:  # fmt: skip
    """Point-to-plane ICP (Chen and Medioni 1992; thesis, eq. 3.3) from a start [4,4], with pairs within `reach`.

    It ends as Open3D's: where fitness and RMSE within `reach` change by less than `tolerance`.
    """
    if fixed.normals is None:
        raise InputError("point-to-plane ICP needs normals of the cloud that stays; make them with with_normals")
    moving.need(1, "ICP")
    tree = cKDTree(fixed.points)
    transform = np.eye(4) if start is None else start
    quality = (np.inf, np.inf)
    for step in range(iterations + 1):
        points = moved(moving.points, transform)
        distances, rows = tree.query(points, distance_upper_bound=reach)
        last, quality = quality, _quality(distances, reach)
        near = np.isfinite(distances)
        if step == iterations or not near.any() or np.abs(np.subtract(last, quality)).max() < tolerance:
            break
        transform = _step(points[near], fixed.points[rows[near]], fixed.normals[rows[near]]) @ transform
    return Registration(transform, *_quality(distances, INLIER))


def _quality(distances: Floats, within: float) -> tuple[float, float]:
    near = distances[distances <= within]
    return len(near) / len(distances), float(np.sqrt((near**2).mean())) if len(near) else 0.0


def _step(points: Points, planes: Points, normals: Floats) -> Floats:
    """The small motion [4,4] that brings points nearest to their planes, none in directions that these leave free."""
    middle = points.mean(axis=0)
    arms = points - middle
    # Rotations are measured in ways at the cloud's own size, so that rotations and shifts weigh alike.
    size = max(float(np.sqrt((arms**2).sum(axis=1).mean())), np.finfo(float).tiny)
    columns = np.hstack([np.cross(arms / size, normals), normals])
    gaps = ((planes - points) * normals).sum(axis=1)
    values, vectors = np.linalg.eigh(columns.T @ columns)
    held = values > _FREE * values[-1]
    answer = vectors[:, held] @ ((vectors[:, held].T @ (columns.T @ gaps)) / values[held])
    rotation = Rotation.from_rotvec(answer[:3] / size).as_matrix()
    return rigid(rotation, middle + answer[3:] - rotation @ middle)


def rigid_fit(moving: Points, fixed: Points) -> Floats:
    """The motion [4,4] that lays points [N,3] nearest to other points [N,3], in pairs (Kabsch 1976)."""
    here, there = moving.mean(axis=0), fixed.mean(axis=0)
    rotation = Rotation.align_vectors(fixed - there, moving - here)[0].as_matrix()
    return rigid(rotation, there - rotation @ here)
