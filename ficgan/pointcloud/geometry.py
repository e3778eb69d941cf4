"""What two clouds have in common in 3D: registration, distances, normals, curvature, identity by shape. Metres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Floats, Points, closest, moved, rigid, search, thinned, with_normals
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
    moving: Cloud,
    fixed: Cloud,
    start: Floats | None = None,
    *,
    reach: float = 0.02,
    iterations: int = 30,
    tolerance: float = 1e-6,
) -> Registration:
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


Vector = NDArray[np.float32]

_COEFFICIENTS = 6  # of a quadric
_RIDGE = 1e-10
_BINS = 11  # of each of the three angles of a feature


@dataclass(frozen=True)
class CloudDistances:
    """Distances between the points of two clouds and the nearest of the other."""

    chamfer: float  # the mean of both directions' means (not their sum, and of distances, not of their squares)
    hausdorff: float  # the largest of all
    hausdorff_95: float  # the larger of both directions' 95 % quantiles


def cloud_distances(first: Cloud, second: Cloud) -> CloudDistances:
    """All distances; InputError where a cloud has no points."""
    for cloud in (first, second):
        cloud.need(1, "a distance between clouds")
    there, back = closest(second.points, first.points)[0], closest(first.points, second.points)[0]
    quantile = max(np.quantile(there, 0.95), np.quantile(back, 0.95))
    return CloudDistances(float(there.mean() + back.mean()) / 2, float(max(there.max(), back.max())), float(quantile))


def normal_error(result: Cloud, source: Cloud) -> float:
    """The mean angle, 0…90, between a point's normal and that of the nearest point of the source; 57.3 by chance."""
    a, b = (cloud if cloud.normals is not None else with_normals(cloud) for cloud in (result, source))
    assert a.normals is not None and b.normals is not None
    cosines = np.abs((a.normals * b.normals[closest(b.points, a.points)[1]]).sum(axis=1))
    return float(np.degrees(np.arccos(np.clip(cosines, 0, 1))).mean())


def curvature(cloud: Cloud, *, neighbours: int = 60) -> tuple[Floats, Floats]:
    """Mean [N], 1/metre, and Gaussian curvature [N], 1/metre², by a quadric around every point (Do Carmo, §3-3).

    They are positive where the surface bulges to the side its normal looks.
    """
    if neighbours < _COEFFICIENTS:
        raise InputError(f"a quadric needs {_COEFFICIENTS} neighbours or more, not {neighbours}")
    cloud.need(_COEFFICIENTS, "curvature")
    if cloud.normals is None:
        cloud = with_normals(cloud)
    assert cloud.normals is not None
    rows = search(cloud.points, cloud.points, min(neighbours, len(cloud)))[1]
    offsets = cloud.points[rows] - cloud.points[:, None]
    size = np.sqrt(np.einsum("nkd,nkd->n", offsets, offsets) / rows.shape[1])
    size = np.where(size > 0, size, 1)
    across = np.cross(np.eye(3)[np.abs(cloud.normals).argmin(axis=1)], cloud.normals)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    axes = np.stack([across, np.cross(cloud.normals, across), cloud.normals], axis=2)
    u, v, z = np.moveaxis(offsets @ axes / size[:, None, None], 2, 0)
    basis = np.stack([u * u, u * v, v * v, u, v, np.ones_like(u)], axis=2)
    normal_matrix = basis.transpose(0, 2, 1) @ basis + _RIDGE * rows.shape[1] * np.eye(_COEFFICIENTS)
    fit = np.linalg.solve(normal_matrix, basis.transpose(0, 2, 1) @ z[..., None])[..., 0]
    a, b, c, d, e, _ = fit.T
    steep = 1 + d * d + e * e
    mean = -((1 + e * e) * a - d * e * b + (1 + d * d) * c) / steep**1.5 / size
    return mean, (4 * a * c - b * b) / steep**2 / size**2


def curvature_error(result: Cloud, source: Cloud) -> float:
    """The mean difference of mean curvature between a point and the nearest point of the source, 1/metre."""
    ours, theirs = (curvature(cloud)[0] for cloud in (result, source))
    return float(np.abs(ours - theirs[closest(source.points, result.points)[1]]).mean())


# -- identity by the shape of the upper face --------------------------------------------------------------------------

UPPER = (-0.02, 0.07)  # lowest and highest y of what expressions move least: nose, eyes and forehead; canonical frame
HALF = 0.05  # largest |z| of it
BEHIND = 0.08  # no point with x below −this belongs to it
_FEWEST = 30  # points of it
_STEP, _COARSE_STEP = 0.0025, 0.01  # of the grid over it, of depths and of features
_SMOOTH = 0.004  # standard deviation of the weights by which points around a node are averaged, at least
_VOXEL = 0.006  # clouds are thinned to this before features are taken, so that dense and sparse ones are alike
_RADIUS = 0.025  # of a feature
_AVERAGED = 5  # features that are averaged at a node


def _grid(step: float) -> tuple[tuple[int, int], Floats]:
    """Rows (upwards) and columns (to the person's right), and y, z [rows·columns,2] of the nodes."""
    y = np.arange(UPPER[0], UPPER[1] + step / 2, step)
    z = np.arange(-HALF, HALF + step / 2, step)
    return (len(y), len(z)), np.stack(np.meshgrid(y, z, indexing="ij"), axis=2).reshape(-1, 2)


def _upper_face(cloud: Cloud, margin: float) -> Cloud:
    """The points in it or no farther than `margin` from it; InputError where there are hardly any."""
    x, y, z = cloud.points.T
    inside = (y >= UPPER[0] - margin) & (y <= UPPER[1] + margin)
    inside &= (np.abs(z) <= HALF + margin) & (x >= -BEHIND - margin)
    if inside.sum() < _FEWEST:
        raise InputError(
            f"{int(inside.sum())} of {len(cloud)} points are where nose, eyes and forehead belong, and {_FEWEST} "
            "are needed; is the cloud in the canonical frame, in metres?"
        )
    return cloud.take(inside)


def _depth(cloud: Cloud) -> Floats:
    """Mean x [rows,columns] of the points about each node, less the tilt of the whole."""
    near = _upper_face(cloud, 4 * _SMOOTH)
    shape, nodes = _grid(_STEP)
    count = min(24, len(near))
    distances, index = search(near.points[:, 1:], nodes, count)
    width = np.maximum(_SMOOTH, distances[:, min(3, count - 1)])
    weights = np.exp(-0.5 * (distances / width[:, None]) ** 2)
    depth = (weights * near.points[index, 0]).sum(axis=1) / weights.sum(axis=1)
    tilt = np.column_stack([np.ones(len(nodes)), nodes])
    return (depth - tilt @ np.linalg.lstsq(tilt, depth, rcond=None)[0]).reshape(shape)


def describe_depth(cloud: Cloud) -> Vector:
    """The relief of the upper face, millimetres."""
    return (1000 * _depth(cloud)).astype(np.float32).ravel()


def describe_normals(cloud: Cloud) -> Vector:
    """The normals of the relief, which tell more of noses and brows than of how wide a face is."""
    up, right = np.gradient(_depth(cloud), _STEP)
    normals = np.stack([np.ones_like(up), -up, -right])
    return (normals / np.linalg.norm(normals, axis=0)).astype(np.float32).ravel()


def describe_features(cloud: Cloud) -> Vector:
    """FPFH features at the nodes of a coarse grid."""
    near = with_normals(Cloud(thinned(_upper_face(cloud, _RADIUS).points, _VOXEL)))
    features = fpfh(near, radius=_RADIUS)
    rows = search(near.points[:, 1:], _grid(_COARSE_STEP)[1], min(_AVERAGED, len(near)))[1]
    # Square roots of shares: a difference between these is Hellinger's, which rare bins do not drown in full ones.
    return np.sqrt(features[rows].mean(axis=1) / 200).astype(np.float32).ravel()


DESCRIPTIONS: dict[str, Callable[[Cloud], Vector]] = {
    "depth": describe_depth,
    "normals": describe_normals,
    "fpfh": describe_features,
}
"""What tells people by shape without any training: a cloud in the canonical frame → a vector [D]."""


def compare_descriptions(gallery: Vector, probes: Vector) -> Vector:
    """Scores [P,G], −1…1, of probes [P,D] and a gallery [G,D]: how alike they differ from the gallery's mean face."""
    middle = gallery.mean(axis=0)
    if len(gallery) < 2 or not np.abs(gallery - middle).max() > 0:
        raise InputError(f"a gallery of {len(gallery)} needs two different faces or more to compare with")
    return _units(probes - middle) @ _units(gallery - middle).T


def _units(vectors: Vector) -> Vector:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def fpfh(cloud: Cloud, *, radius: float = 0.025, most: int = 100) -> Floats:
    """Fast point feature histograms [N,33] (Rusu, Blodow and Beetz, ICRA 2009, §III): 11 bins each of θ, α, φ.

    A point's own histogram and its neighbours' weighted sum add up to 100 each. Neighbours are the nearest `most`
    within `radius`; normals must have consistent sides (`facing_front`).
    """
    if cloud.normals is None:
        raise InputError("FPFH features need normals; make them with with_normals")
    cloud.need(1, "FPFH")
    count = len(cloud)
    distances, rows = search(cloud.points, cloud.points, min(most, count), within=radius)
    # The first column is the point itself (or its double, which tells as little).
    near = np.isfinite(distances[:, 1:])
    centres, column = np.nonzero(near)
    others, apart = rows[centres, column + 1], distances[centres, column + 1]
    degree = near.sum(axis=1)
    angles = pair_features(cloud.points, cloud.normals, centres, others)
    shares = (angles + np.array([np.pi, 1, 1])) * [_BINS / (2 * np.pi), _BINS / 2, _BINS / 2]
    bins = np.clip(np.floor(shares), 0, _BINS - 1).astype(np.int64) + _BINS * np.arange(3)
    counts = np.bincount((bins + 3 * _BINS * centres[:, None]).ravel(), minlength=3 * _BINS * count)
    own = counts.reshape(count, -1) * (100 / np.maximum(degree, 1))[:, None]
    weights = np.divide(1.0, apart, out=np.zeros_like(apart), where=apart > 0)
    starts = np.concatenate([[0], np.cumsum(degree)])
    parts = (csr_array((weights, others, starts), shape=(count, count)) @ own).reshape(count, 3, _BINS)
    totals = parts.sum(axis=2, keepdims=True)
    return (100 * parts / np.where(totals > 0, totals, 1)).reshape(count, -1) + own


def pair_features(points: Points, normals: Floats, first: NDArray[np.integer], second: NDArray[np.integer]) -> Floats:
    """Angles [M,3] of pairs of oriented points (Rusu et al. 2009, eq. 1): θ in −π…π, α and φ in −1…1."""
    line = points[second] - points[first]
    apart = np.linalg.norm(line, axis=1)
    line /= np.where(apart > 0, apart, 1)[:, None]
    a, b = normals[first], normals[second]
    slope_a, slope_b = (a * line).sum(axis=1), (b * line).sum(axis=1)
    # Near points may have one normal, and rounding must not choose between them.
    swap = np.abs(slope_a) < np.abs(slope_b) - 1e-9
    u, other = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
    line[swap] *= -1
    phi = np.where(swap, -slope_b, slope_a)
    v = np.cross(line, u)
    width = np.linalg.norm(v, axis=1)
    v /= np.where(width > 0, width, 1)[:, None]
    theta = np.arctan2((np.cross(u, v) * other).sum(axis=1), (u * other).sum(axis=1))
    found = np.stack([theta, (v * other).sum(axis=1), phi], axis=1)
    return np.where(((apart > 0) & (width > 0))[:, None], found, 0.0)
