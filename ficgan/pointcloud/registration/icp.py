"""Point-to-plane ICP: a cloud is moved until its points lie on the planes of another's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import Tree, search, tree_order

__all__ = ["Alignment", "Icp", "alignment_of", "icp"]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_FREE = 1e-6
"""Directions in which the planes hold less than this share of what they hold in the strongest are left alone: along a
plane, about the axis of a cylinder, about a sphere's centre."""


@dataclass(frozen=True)
class Icp:
    """Settings of ICP.

    Args:
        reach: no point is drawn to one farther than this, metres.
        iterations: at most.
        tolerance: it ends where an iteration changes both fitness and RMSE (metres) by less.
        inlier: distance within which a point counts for the fitness and RMSE that are reported, metres; within `reach`.

    Raises:
        UsageError: values that cannot work.

    Source:
        Point-cloud thesis, §4.3.3.4: Open3D's convergence criterion at its defaults.
    """

    reach: float = 0.02
    iterations: int = 30
    tolerance: float = 1e-6
    inlier: float = 0.005

    def __post_init__(self) -> None:
        if not 0 < self.inlier <= self.reach:
            raise UsageError(f"ICP's reach is {self.reach} m and an inlier's {self.inlier} m; give 0 < inlier ≤ reach")
        if self.iterations < 0 or not self.tolerance >= 0:
            raise UsageError(f"ICP ran {self.iterations} iterations to {self.tolerance}; give neither below 0")


@dataclass(frozen=True)
class Alignment:
    """How a moved cloud lies on a fixed one.

    Args:
        transform: [4,4], that moves the cloud.
        fitness: share of the *moved* cloud's points that have a fixed one within reach.
        rmse: root mean square distance of those to their nearest fixed point, metres; 0 where there are none.
        iterations: that were made.
        before: fitness and RMSE where it began.
    """

    transform: Floats
    fitness: float
    rmse: float
    iterations: int = 0
    before: tuple[float, float] = (0.0, 0.0)


def icp(moving: Cloud, fixed: Cloud, start: Floats | None = None, setting: Icp | None = None) -> Alignment:
    """Point-to-plane ICP.

    Args:
        moving: the cloud to move.
        fixed: with normals; their signs are of no effect.
        start: [4,4]; None: where it is.
        setting: None: the defaults.

    Returns:
        The last iteration's, fitness and RMSE within `setting.inlier`.

    Raises:
        InputError: an empty cloud, or a fixed one without normals.

    Source:
        Chen, Medioni, "Object modelling by registration of multiple range images" (1992); thesis, equation 3.3.
    """
    setting = setting or Icp()
    if fixed.normals is None:
        raise InputError("point-to-plane ICP needs normals of the cloud that stays; make them with with_normals")
    moving.need(1, "ICP")
    fixed.need(1, "ICP")
    transform = np.eye(4) if start is None else np.array(start, np.float64)
    source = moving.points[tree_order(moving.points)]
    fixed = fixed.take(tree_order(fixed.points))
    assert fixed.normals is not None
    nearest = _Nearest(fixed.points, setting.reach)
    points = _moved(source, transform)
    rows = nearest(points)
    fitness, rmse = _quality(points, fixed.points, rows)
    begun = _quality(points, fixed.points, rows, setting.inlier)
    done = 0
    while done < setting.iterations and (rows >= 0).any():
        step = _step(points[rows >= 0], fixed.points[rows[rows >= 0]], fixed.normals[rows[rows >= 0]])
        transform = step @ transform
        points = _moved(source, transform)
        rows = nearest(points)
        before, (fitness, rmse) = (fitness, rmse), _quality(points, fixed.points, rows)
        done += 1
        if abs(before[0] - fitness) < setting.tolerance and abs(before[1] - rmse) < setting.tolerance:
            break
    return Alignment(transform, *_quality(points, fixed.points, rows, setting.inlier), done, begun)


def alignment_of(moving: Cloud, fixed: Cloud, transform: Floats | None = None, *, within: float = 0.005) -> Alignment:
    """How well a cloud lies on another, without moving it any further.

    Args:
        moving, fixed: at least one point each.
        transform: [4,4] of the moving cloud; None: as it lies.
        within: distance of an inlier, metres.

    Source:
        Point-cloud thesis, §4.3.3.4: 5 mm, over the points of its target, which is the cloud that moves.
    """
    moving.need(1, "a measure of alignment")
    fixed.need(1, "a measure of alignment")
    transform = np.eye(4) if transform is None else transform
    points = _moved(moving.points, transform)
    distances, _ = search(fixed.points, points, within=within)
    inliers = distances[np.isfinite(distances)]
    return Alignment(
        transform, len(inliers) / len(points), float(np.sqrt((inliers**2).mean())) if len(inliers) else 0.0
    )


class _Nearest:
    """The nearest fixed point of each moving one, −1 where none is within reach, for points that move little by little.

    A point's nearest is the same as long as twice its way is shorter than the gap to its second nearest; the tree is
    asked only for the others. In the last iterations of ICP those are few.
    """

    def __init__(self, fixed: Floats, reach: float) -> None:
        self._tree, self._fixed, self._reach = Tree(fixed), fixed, reach

    def __call__(self, points: Floats) -> Rows:
        if not hasattr(self, "_asked"):
            self._asked = np.full_like(points, np.inf)
            self._rows = np.empty(len(points), np.int64)
            self._gap = np.empty(len(points))
            stale = np.arange(len(points))
        else:
            way = points - self._asked
            stale = np.flatnonzero(4 * np.einsum("nd,nd->n", way, way) >= self._gap**2)
        if len(stale):
            self._ask(points[stale], stale)
        rows = self._rows.copy()
        found = np.flatnonzero(rows >= 0)
        offsets = points[found] - self._fixed[rows[found]]
        rows[found[np.einsum("nd,nd->n", offsets, offsets) > self._reach**2]] = -1
        return rows

    def _ask(self, points: Floats, places: Rows) -> None:
        bound = 2 * self._reach
        distances, rows = self._tree.nearest(points, 2, within=bound)
        first, second = np.minimum(distances, bound).T
        far = ~np.isfinite(distances[:, 0])
        self._asked[places] = points
        self._rows[places] = np.where(far, -1, rows[:, 0])
        self._gap[places] = np.where(far, 2 * (bound - self._reach), second - first)


def _step(points: Floats, planes: Floats, normals: Floats) -> Floats:
    """The small motion [4,4] that brings points nearest to their planes, none in directions that these leave free."""
    middle = points.mean(axis=0)
    arms = points - middle
    # Turns are measured in ways at the cloud's own size, so that turns and shifts weigh alike.
    size = max(float(np.sqrt((arms**2).sum(axis=1).mean())), np.finfo(float).tiny)
    arms /= size
    rows = np.empty((len(points), 6))
    rows[:, 0] = arms[:, 1] * normals[:, 2] - arms[:, 2] * normals[:, 1]
    rows[:, 1] = arms[:, 2] * normals[:, 0] - arms[:, 0] * normals[:, 2]
    rows[:, 2] = arms[:, 0] * normals[:, 1] - arms[:, 1] * normals[:, 0]
    rows[:, 3:] = normals
    gaps = np.einsum("nd,nd->n", planes - points, normals)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    held = values > _FREE * values[-1]
    answer = vectors[:, held] @ ((vectors[:, held].T @ (rows.T @ gaps)) / values[held])
    rotation = _rotation(answer[:3] / size)
    step = np.eye(4)
    step[:3, :3] = rotation
    step[:3, 3] = middle + answer[3:] - rotation @ middle
    return step


def _rotation(turn: Floats) -> Floats:
    """The rotation [3,3] about an axis, by its length in radians."""
    angle = float(np.linalg.norm(turn))
    if angle == 0:
        return np.eye(3)
    x, y, z = turn / angle
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * across + (1 - np.cos(angle)) * (across @ across)


def _moved(points: Floats, transform: Floats) -> Floats:
    return points @ transform[:3, :3].T + transform[:3, 3]


def _quality(points: Floats, fixed: Floats, rows: Rows, within: float = np.inf) -> tuple[float, float]:
    """Fitness and RMSE of the points whose nearest lies within a distance."""
    found = np.flatnonzero(rows >= 0)
    offsets = points[found] - fixed[rows[found]]
    squared = np.einsum("nd,nd->n", offsets, offsets)
    squared = squared[squared <= within**2]
    return len(squared) / len(points), float(np.sqrt(squared.mean())) if len(squared) else 0.0
