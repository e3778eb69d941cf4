"""What two clouds have in common in 3D: registration, distances, normals, curvature, identity by shape. Metres."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Floats, Points, closest, moved, pca_normals, rigid, search
from ficgan.pointcloud.frame import find_face

# -- registration -----------------------------------------------------------------------------------------------------

INLIER = 0.005  # distance within which a point counts for the fitness and RMSE that are reported (thesis, §4.3.3.4)
POOR = 0.75  # fitness of ICP alone below which the faces are looked for first
# Of ICP: farthest pairs, steps, and the change of fitness and RMSE at which it ends, as Open3D's.
_PAIRED, _STEPS, _SETTLED = 0.02, 30, 1e-6
# Directions in which the planes hold less than this share of what they hold in the strongest are left alone: along a
# plane, about the axis of a cylinder, about a sphere's centre.
_FREE = 1e-6


@dataclass(frozen=True)
class Registration:
    """How a moved cloud lies on a fixed one. What the thesis calls the target, Open3D calls the source: it moves."""

    transform: Floats  # [4,4], that moves the cloud
    fitness: float  # share of the *moved* cloud's points that have a fixed one within `INLIER`
    rmse: float  # root mean square distance of those to their nearest fixed point; 0 where there are none


def register(source: Cloud, target: Cloud) -> Registration:
    """Lay a target, which moves, on a source, which stays (thesis, algorithm 4, lines 1–2).

    Where ICP alone ends poorly, it starts again from the faces that are found in both.
    """
    for cloud in (source, target):
        cloud.need(3, "registration")
    moving, fixed, normals = target.points, source.points, pca_normals(source.points)
    local = icp(moving, fixed, normals, np.eye(4))
    if local.fitness >= POOR:
        return local
    try:
        start = np.linalg.inv(find_face(fixed).transform) @ find_face(moving).transform
    except InputError:
        return local
    return max(local, icp(moving, fixed, normals, start), key=lambda found: found.fitness)


def icp(moving: Points, fixed: Points, normals: Floats, start: Floats) -> Registration:
    """Point-to-plane ICP (Chen and Medioni 1992; thesis, eq. 3.3) from a start [4,4]; normals of the fixed points."""
    tree = cKDTree(fixed)
    transform, quality = start, (np.inf, np.inf)
    for step in range(_STEPS + 1):
        points = moved(moving, transform)
        distances, rows = tree.query(points, distance_upper_bound=_PAIRED)
        last, quality = quality, _quality(distances, _PAIRED)
        near = np.isfinite(distances)
        if step == _STEPS or not near.any() or np.abs(np.subtract(last, quality)).max() < _SETTLED:
            break
        transform = _step(points[near], fixed[rows[near]], normals[rows[near]]) @ transform
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


# -- distortion -------------------------------------------------------------------------------------------------------

_COEFFICIENTS = 6  # of a quadric
_RIDGE = 1e-10


@dataclass(frozen=True)
class Distortion:
    """How far a cloud is from its source."""

    chamfer: float  # metres: the mean of both directions' mean distances to the nearest point
    hausdorff: float  # metres: the largest of all these distances
    normals: float  # degrees: mean angle between the normals of a point and the nearest of the source; 57.3 by chance
    curvature: float  # 1/metre: mean difference of mean curvature likewise


def distortion(result: Cloud, source: Cloud) -> Distortion:
    """All distances. Angle and curvature are NaN where a cloud is no surface."""
    for cloud in (result, source):
        cloud.need(1, "a distance between clouds")
    (there, rows), (back, _) = closest(source.points, result.points), closest(result.points, source.points)
    try:
        (normals, bent), (others, straight) = _surface(result), _surface(source)
        angles = np.arccos(np.clip(np.abs((normals * others[rows]).sum(axis=1)), 0, 1))
        angle, curved = float(np.degrees(angles).mean()), float(np.abs(bent - straight[rows]).mean())
    except InputError:  # all on one line
        angle = curved = float("nan")
    return Distortion(float(there.mean() + back.mean()) / 2, float(max(there.max(), back.max())), angle, curved)


@lru_cache(maxsize=4)
def _surface(cloud: Cloud) -> tuple[Floats, Floats]:
    normals = pca_normals(cloud.points)
    return normals, curvature(cloud.points, normals)


def curvature(points: Points, normals: Floats, *, neighbours: int = 60) -> Floats:
    """Mean curvature [N], 1/metre, by a quadric around every point (Do Carmo, §3-3).

    It is positive where the surface bulges to the side its normal looks.
    """
    if len(points) < _COEFFICIENTS:
        raise InputError(f"the cloud has {len(points)} points, and curvature needs at least {_COEFFICIENTS}")
    rows = search(points, points, min(neighbours, len(points)))[1]
    offsets = points[rows] - points[:, None]
    size = np.sqrt(np.einsum("nkd,nkd->n", offsets, offsets) / rows.shape[1])
    size = np.where(size > 0, size, 1)
    across = np.cross(np.eye(3)[np.abs(normals).argmin(axis=1)], normals)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    axes = np.stack([across, np.cross(normals, across), normals], axis=2)
    u, v, z = np.moveaxis(offsets @ axes / size[:, None, None], 2, 0)
    basis = np.stack([u * u, u * v, v * v, u, v, np.ones_like(u)], axis=2)
    normal_matrix = basis.transpose(0, 2, 1) @ basis + _RIDGE * rows.shape[1] * np.eye(_COEFFICIENTS)
    fit = np.linalg.solve(normal_matrix, basis.transpose(0, 2, 1) @ z[..., None])[..., 0]
    a, b, c, d, e, _ = fit.T
    return -((1 + e * e) * a - d * e * b + (1 + d * d) * c) / (1 + d * d + e * e) ** 1.5 / size


# -- identity by the shape of the upper face --------------------------------------------------------------------------

Vector = NDArray[np.float32]

UPPER = (-0.02, 0.07)  # lowest and highest y of what expressions move least: nose, eyes and forehead; canonical frame
HALF = 0.05  # largest |z| of it
BEHIND = 0.08  # no point with x below −this belongs to it
_FEWEST = 30  # points of it
_STEP_WIDTH = 0.0025  # of the grid over it
_SMOOTH = 0.004  # standard deviation of the weights by which points around a node are averaged, at least
# y and z of the nodes [rows (upwards), columns (to the person's right), 2].
_GRID = np.stack(
    np.meshgrid(
        np.arange(UPPER[0], UPPER[1] + _STEP_WIDTH / 2, _STEP_WIDTH),
        np.arange(-HALF, HALF + _STEP_WIDTH / 2, _STEP_WIDTH),
        indexing="ij",
    ),
    axis=2,
)
# What tells people by shape without any training, and how many numbers each is.
DESCRIPTIONS = {"depth": _GRID.size // 2, "normals": _GRID.size // 2 * 3}


def describe(cloud: Cloud) -> dict[str, Vector]:
    """The relief of the upper face of a cloud in the canonical frame, millimetres, and the normals of the relief.

    The normals tell more of noses and brows than of how wide a face is.
    """
    margin = 4 * _SMOOTH
    x, y, z = cloud.points.T
    inside = (y >= UPPER[0] - margin) & (y <= UPPER[1] + margin)
    inside &= (np.abs(z) <= HALF + margin) & (x >= -BEHIND - margin)
    if inside.sum() < _FEWEST:
        raise InputError(
            f"{int(inside.sum())} of {len(cloud)} points are where nose, eyes and forehead belong, and {_FEWEST} "
            "are needed; is the cloud in the canonical frame, in metres?"
        )
    near, nodes = cloud.points[inside], _GRID.reshape(-1, 2)
    count = min(24, len(near))
    distances, index = search(near[:, 1:], nodes, count)
    width = np.maximum(_SMOOTH, distances[:, min(3, count - 1)])
    weights = np.exp(-0.5 * (distances / width[:, None]) ** 2)
    depth = (weights * near[index, 0]).sum(axis=1) / weights.sum(axis=1)
    tilt = np.column_stack([np.ones(len(nodes)), nodes])
    depth = (depth - tilt @ np.linalg.lstsq(tilt, depth, rcond=None)[0]).reshape(_GRID.shape[:2])
    up, right = np.gradient(depth, _STEP_WIDTH)
    normals = np.stack([np.ones_like(up), -up, -right])
    normals /= np.linalg.norm(normals, axis=0)
    return {"depth": (1000 * depth).astype(np.float32).ravel(), "normals": normals.astype(np.float32).ravel()}


def compare_descriptions(gallery: Vector, probes: Vector) -> Vector:
    """Scores [P,G], −1…1, of probes [P,D] and a gallery [G,D]: how alike they differ from the gallery's mean face."""
    middle = gallery.mean(axis=0)
    if len(gallery) < 2 or not np.abs(gallery - middle).max() > 0:
        raise InputError(f"a gallery of {len(gallery)} needs two different faces or more to compare with")
    return _units(probes - middle) @ _units(gallery - middle).T


def _units(vectors: Vector) -> Vector:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
