"""Rigid registration: normals, features, a global start, point-to-plane ICP (thesis, §3.2.2.4, §4.3.3.4). Metres."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, Tree, closest, search, thinned

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Side = Literal["front", "outwards"]

INLIER = 0.005  # distance within which a point counts for the fitness and RMSE that are reported (thesis, §4.3.3.4)
POOR = 0.75  # fitness of ICP alone below which the global registration is tried
BINS = 11  # of each of the three angles of a feature
_FREE = 1e-6
"""Directions in which the planes hold less than this share of what they hold in the strongest are left alone: along a
plane, about the axis of a cylinder, about a sphere's centre."""

# The global registration.
_VOXEL = 0.007  # side of the cubes that both clouds are thinned by
_FEATURE_RADIUS = 0.03
_DRAWS = 30_000  # triples of matches
_SIMILAR_EDGES, _SIMILAR_NORMALS = 0.85, 0.8
"""Least ratio of the shorter to the longer of two edges that correspond; least cosine between normals."""
_AGREES = 0.01  # distance within which a match agrees with a motion
_CANDIDATES, _REFINED = 32, 3
"""Motions, best first by matches, that are tried on the clouds; of those, by points, that ICP refines."""


@dataclass(frozen=True)
class Registration:
    """How a moved cloud lies on a fixed one. What the thesis calls the target, Open3D calls the source: it moves."""

    transform: Floats  # [4,4], that moves the cloud
    fitness: float  # share of the *moved* cloud's points that have a fixed one within `INLIER`
    rmse: float  # root mean square distance of those to their nearest fixed point; 0 where there are none
    before: tuple[float, float] = (0.0, 0.0)  # fitness and RMSE where it began
    iterations: int = 0  # of ICP
    coarse: bool = False  # the transform came by way of the global registration


def register(
    source: Cloud, target: Cloud, *, coarse: Literal["auto", "always", "never"] = "auto", seed: int = 0
) -> Registration:
    """Lay a target, which moves, on a source, which stays (thesis, algorithm 4, lines 1–2).

    `coarse` is the global registration before ICP: always, never, or (auto) where ICP alone ends poorly.
    """
    if coarse not in ("auto", "always", "never"):
        raise UsageError(f"coarse is {coarse!r}; use auto, always or never")
    for cloud in (source, target):
        cloud.need(3, "registration")
    fixed = source if source.normals is not None else with_normals(source)
    local = None if coarse == "always" else icp(target, fixed)
    if local is not None and (coarse == "never" or local.fitness >= POOR):
        return local
    try:
        start = global_registration(target, fixed, seed=seed)
    except InputError:
        if local is None:
            raise
        return local  # "auto" promises no more
    lying = alignment_of(target, fixed)
    found = replace(icp(target, fixed, start), before=(lying.fitness, lying.rmse), coarse=True)
    return found if local is None or found.fitness > local.fitness else local


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
    fixed.need(1, "ICP")
    tree = Tree(fixed.points)
    transform = np.eye(4) if start is None else np.array(start, np.float64)
    points = _moved(moving.points, transform)
    distances, rows = tree.closest(points, within=reach)
    before, quality, done = _quality(distances, INLIER), _quality(distances, reach), 0
    while done < iterations and (near := np.isfinite(distances)).any():
        step = _step(points[near], fixed.points[rows[near]], fixed.normals[rows[near]])
        transform = step @ transform
        points = _moved(moving.points, transform)
        distances, rows = tree.closest(points, within=reach)
        last, quality = quality, _quality(distances, reach)
        done += 1
        if abs(last[0] - quality[0]) < tolerance and abs(last[1] - quality[1]) < tolerance:
            break
    return Registration(transform, *_quality(distances, INLIER), before, done)


def alignment_of(
    moving: Cloud, fixed: Cloud, transform: Floats | None = None, *, within: float = INLIER
) -> Registration:
    """How well a cloud lies on another, without moving it any further than by `transform`."""
    moving.need(1, "a measure of alignment")
    fixed.need(1, "a measure of alignment")
    transform = np.eye(4) if transform is None else transform
    distances, _ = closest(fixed.points, _moved(moving.points, transform), within=within)
    return Registration(transform, *_quality(distances, within))


def _quality(distances: Floats, within: float) -> tuple[float, float]:
    near = distances[distances <= within]
    return len(near) / len(distances), float(np.sqrt((near**2).mean())) if len(near) else 0.0


def _step(points: Floats, planes: Floats, normals: Floats) -> Floats:
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
    return _matrix(rotation, middle + answer[3:] - rotation @ middle)


def _moved(points: Floats, transform: Floats) -> Floats:
    return points @ transform[:3, :3].T + transform[:3, 3]


def _matrix(rotation: Floats, shift: Floats) -> Floats:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, shift
    return matrix


def with_normals(cloud: Cloud, *, neighbours: int = 30, side: Side = "front") -> Cloud:
    """The cloud with a normal at every point; arguments and errors are those of `pca_normals` and `oriented`."""
    return replace(cloud, normals=oriented(cloud.points, pca_normals(cloud.points, neighbours=neighbours), side))


def pca_normals(points: Floats, *, neighbours: int = 30) -> Floats:
    """Unit normals [N,3] by principal components of each point's neighbours (Rusu 2009, §4.3); signs mean nothing."""
    if len(points) < 3:
        raise InputError(f"normals need at least 3 points, and the cloud has {len(points)}")
    extent = np.linalg.svd(np.cov(points.T), compute_uv=False)
    if extent[1] <= 1e-14 * max(extent[0], np.finfo(float).tiny):
        raise InputError(f"all {len(points)} points are on one line, so they have no normals; give a surface")
    rows = search(points, points, min(neighbours, len(points)))[1]
    # Covariances from means of products: one sparse product instead of an array [N,K,3]. Offsets from the middle of the
    # cloud, with neighbours that vary by a hundredth of its size, lose four of sixteen digits.
    middle = points - points.mean(axis=0)
    products = (middle[:, :, None] * middle[:, None, :]).reshape(-1, 9)
    starts = np.arange(0, rows.size + 1, rows.shape[1])
    mean = csr_array((np.full(rows.size, 1 / rows.shape[1]), rows.ravel(), starts), shape=(len(points),) * 2)
    means, second = mean @ middle, (mean @ products).reshape(-1, 3, 3)
    return np.asarray(np.linalg.eigh(second - means[:, :, None] * means[:, None, :])[1][:, :, 0], np.float64)


def oriented(points: Floats, normals: Floats, side: Side = "front") -> Floats:
    """Normals [N,3] turned to one side: "front", towards +x, or "outwards", away from the inside."""
    if side == "front":
        towards: Floats = np.array([[1.0, 0.0, 0.0]])
    else:  # the point behind: from the middle, along the direction that most normals share
        offsets = points - points.mean(axis=0)
        axis = np.linalg.eigh(normals.T @ normals)[1][:, 2]
        bulge = (np.sign(normals @ axis) * (normals * offsets).sum(axis=1)).sum()
        depth = 0.5 * np.sqrt((offsets**2).sum(axis=1).mean())
        towards = offsets + (-depth if bulge < 0 else depth) * axis
    return np.where((normals * towards).sum(axis=1, keepdims=True) < 0, -normals, normals)


def fpfh(cloud: Cloud, *, radius: float = 0.025, most: int = 100) -> Floats:
    """Fast point feature histograms [N,33] (Rusu, Blodow and Beetz, ICRA 2009, §III): 11 bins each of θ, α, φ.

    A point's own histogram and its neighbours' weighted sum add up to 100 each. Neighbours are the nearest `most`
    within `radius`; normals must have consistent sides (`oriented`).
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
    shares = (angles + np.array([np.pi, 1, 1])) * [BINS / (2 * np.pi), BINS / 2, BINS / 2]
    bins = np.clip(np.floor(shares), 0, BINS - 1).astype(np.int64) + BINS * np.arange(3)
    counts = np.bincount((bins + 3 * BINS * centres[:, None]).ravel(), minlength=3 * BINS * count)
    own = counts.reshape(count, -1) * (100 / np.maximum(degree, 1))[:, None]
    weights = np.divide(1.0, apart, out=np.zeros_like(apart), where=apart > 0)
    starts = np.concatenate([[0], np.cumsum(degree)])
    parts = (csr_array((weights, others, starts), shape=(count, count)) @ own).reshape(count, 3, BINS)
    totals = parts.sum(axis=2, keepdims=True)
    return (100 * parts / np.where(totals > 0, totals, 1)).reshape(count, -1) + own


def pair_features(points: Floats, normals: Floats, first: NDArray[np.integer], second: NDArray[np.integer]) -> Floats:
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


def global_registration(moving: Cloud, fixed: Cloud, *, seed: int = 0) -> Floats:
    """The motion [4,4] that lays a cloud roughly on another, wherever both are; the same seed gives the same motion.

    RANSAC (Fischler and Bolles 1981) over triples of FPFH matches, ranked by agreeing matches, then points; ICP on
    thinned clouds decides among the best.
    """
    a, b = (with_normals(Cloud(thinned(cloud.points, _VOXEL)), side="outwards") for cloud in (moving, fixed))
    pairs = matches(*(fpfh(cloud, radius=_FEATURE_RADIUS) for cloud in (a, b)))
    rotations, shifts = _hypotheses(a, b, pairs, np.random.default_rng(seed))
    if not len(rotations):
        raise InputError(
            f"no three of {len(pairs)} matches between the clouds fit one motion; are both faces, in metres?"
        )
    best, best_score = np.eye(4), -np.inf
    for row in _ranked(a, b, pairs, rotations, shifts):
        transform = icp(a, b, _matrix(rotations[row], shifts[row]), reach=4 * _VOXEL, iterations=10).transform
        found = alignment_of(a, b, transform, within=_AGREES)
        score = found.fitness - found.rmse / _AGREES
        if score > best_score:
            best, best_score = transform, score
    return best


def matches(first: Floats, second: Floats) -> Rows:
    """Pairs of features [N,D] and [M,D] that are each other's nearest: rows of first and second [K,2]."""
    first, second = first.astype(np.float32), second.astype(np.float32)
    gaps = (second**2).sum(axis=1) - 2 * first @ second.T
    there = gaps.argmin(axis=1)
    back = (gaps + (first**2).sum(axis=1)[:, None]).argmin(axis=0)
    own = np.arange(len(first))
    mutual = back[there] == own
    return np.stack([own[mutual], there[mutual]], axis=1)


def rigid_fits(moving: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Rotations [H,3,3] and shifts [H,3] with moving [H,K,3] · Rᵀ + shift ≈ fixed [H,K,3] (Kabsch, 1976)."""
    from_middle, to_middle = moving.mean(axis=1), fixed.mean(axis=1)
    spread = (moving - from_middle[:, None]).transpose(0, 2, 1) @ (fixed - to_middle[:, None])
    u, _, vt = np.linalg.svd(spread)
    u[:, :, 2] *= np.sign(np.linalg.det(u @ vt))[:, None]
    rotations = (u @ vt).transpose(0, 2, 1)
    return rotations, to_middle - np.einsum("hij,hj->hi", rotations, from_middle)


def _hypotheses(a: Cloud, b: Cloud, pairs: Rows, rng: np.random.Generator) -> tuple[Floats, Floats]:
    if len(pairs) < 3:
        return np.empty((0, 3, 3)), np.empty((0, 3))
    assert a.normals is not None and b.normals is not None
    triples = pairs[rng.integers(0, len(pairs), (_DRAWS, 3))]
    corners = a.points[triples[..., 0]], b.points[triples[..., 1]]
    sides, others = (np.linalg.norm(triangle - np.roll(triangle, 1, axis=1), axis=2) for triangle in corners)
    # Short edges say little about a rotation.
    long = np.minimum(sides, others).min(axis=1) > 4 * _VOXEL
    fits = long & (np.minimum(sides, others) >= _SIMILAR_EDGES * np.maximum(sides, others)).all(axis=1)
    rotations, shifts = rigid_fits(corners[0][fits], corners[1][fits])
    turned = a.normals[triples[fits][..., 0]] @ rotations.transpose(0, 2, 1)
    agree = ((turned * b.normals[triples[fits][..., 1]]).sum(axis=2) >= _SIMILAR_NORMALS).all(axis=1)
    return rotations[agree], shifts[agree]


def _ranked(a: Cloud, b: Cloud, pairs: Rows, rotations: Floats, shifts: Floats) -> list[int]:
    here, there = a.points[pairs[:, 0]], b.points[pairs[:, 1]]
    votes = np.empty(len(rotations), np.int64)
    for start in range(0, len(rotations), 256):
        part = slice(start, start + 256)
        gaps = here @ rotations[part].transpose(0, 2, 1) + shifts[part, None] - there
        votes[part] = ((gaps**2).sum(axis=2) < _AGREES**2).sum(axis=1)
    top = np.argsort(-votes, kind="stable")[:_CANDIDATES]
    some = a.points[:: max(1, len(a) // 400)]
    laid = some @ rotations[top].transpose(0, 2, 1) + shifts[top, None]
    distances, _ = closest(b.points, laid.reshape(-1, 3), within=_AGREES)
    closeness = 1 - np.minimum(distances, _AGREES).reshape(len(top), -1) / _AGREES
    best = np.argsort(-closeness.sum(axis=1), kind="stable")
    return [int(top[row]) for row in best[:_REFINED]]
