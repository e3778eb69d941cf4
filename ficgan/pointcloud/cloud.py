"""A point cloud in memory, and what its points' neighbours tell: means, normals, outliers, samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError

Floats = NDArray[np.float64]
Points = Floats
Colors = NDArray[np.uint8]
Rows = NDArray[np.intp]

OUTLIER_NEIGHBOURS = 50
OUTLIER_RATIO = 4.0
_CHUNK = 16384  # queries answered at a time, to bound memory
_ALL_POINTS_STEPS = 200
"""Steps of farthest-point sampling that update every point; later only few points change, and a tree finds them."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points [N,3] float64 with colours [N,3] uint8 RGB and unit normals [N,3] where they are known.

    A cloud equals itself only, so that results can be remembered for it; its arrays are not to be changed.

    In the canonical frame (thesis, §3.2.2, §4.1.4.2) the unit is the metre, the nose tip is the origin, the face looks
    towards +x, +y is up and +z is the person's right.
    """

    points: Points  # [N,3] float64, finite
    colors: Colors | None = None  # [N,3] uint8 RGB, or None
    normals: Points | None = None  # [N,3] float64 of unit length, or None

    def __post_init__(self) -> None:
        points = np.asarray(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or not np.issubdtype(points.dtype, np.number):
            raise InputError(f"a cloud's points must be numbers [N,3], not {points.dtype} {list(points.shape)}")
        points = np.ascontiguousarray(points, np.float64)
        if not np.isfinite(points).all():
            bad = ~np.isfinite(points).all(axis=1)
            raise InputError(
                f"{int(bad.sum())} of {len(points)} points have coordinates that are not finite, the first is point "
                f"{int(bad.argmax())}; remove them"
            )
        object.__setattr__(self, "points", points)
        if self.colors is not None:
            colors = np.asarray(self.colors)
            if colors.shape != points.shape or colors.dtype != np.uint8:
                raise InputError(
                    f"a cloud of {len(points)} points needs colours [{len(points)},3] uint8, not {colors.dtype} "
                    f"{list(colors.shape)}"
                )
            object.__setattr__(self, "colors", np.ascontiguousarray(colors))
        if self.normals is not None:
            normals = np.asarray(self.normals)
            if normals.shape != points.shape or not np.issubdtype(normals.dtype, np.number):
                raise InputError(f"a cloud of {len(points)} points needs normals [{len(points)},3]")
            object.__setattr__(self, "normals", np.ascontiguousarray(normals, np.float64))

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Cloud:
        """The points at `rows` (indices or a mask) in that order, with their colours and normals."""
        colors = None if self.colors is None else self.colors[rows]
        return Cloud(self.points[rows], colors, None if self.normals is None else self.normals[rows])

    def moved(self, transform: NDArray[np.floating]) -> Cloud:
        """The cloud after a rigid motion [4,4]."""
        normals = None if self.normals is None else self.normals @ transform[:3, :3].T
        return Cloud(moved(self.points, transform), self.colors, normals)

    def scaled(self, factor: float) -> Cloud:
        """The cloud with coordinates multiplied by a factor."""
        return self if factor == 1 else replace(self, points=self.points * factor)

    def with_points(self, points: Points, colors: Colors | None = None) -> Cloud:
        """As many other points in the same order; colours None: unchanged. Normals no longer hold and are dropped."""
        return replace(self, points=points, colors=self.colors if colors is None else colors, normals=None)

    def need(self, count: int, what: str) -> None:
        """Raise an InputError where the cloud has fewer points than `what` needs."""
        if len(self) < count:
            raise InputError(f"the cloud has {len(self)} points, and {what} needs at least {count}")


def merged(*clouds: Cloud) -> Cloud:
    """All points of one or more clouds, in order. Colours or normals that one cloud lacks are dropped for all."""
    colors = [cloud.colors for cloud in clouds if cloud.colors is not None]
    normals = [cloud.normals for cloud in clouds if cloud.normals is not None]
    return Cloud(
        np.concatenate([cloud.points for cloud in clouds]),
        np.concatenate(colors) if len(colors) == len(clouds) else None,
        np.concatenate(normals) if len(normals) == len(clouds) else None,
    )


def moved(points: Points, transform: NDArray[np.floating]) -> Points:
    """Points [...,3] after a rigid motion [4,4]."""
    return np.asarray(points @ transform[:3, :3].T + transform[:3, 3], np.float64)


def rigid(rotation: Floats, shift: Floats) -> Floats:
    """The motion [4,4] of a rotation [3,3] and a shift [3]."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, shift
    return matrix


def rounded_colors(levels: NDArray[np.floating]) -> Colors:
    """Levels 0…255 to the nearest uint8, halves up."""
    return np.floor(levels + 0.5).clip(0, 255).astype(np.uint8)


def closest(points: Points, queries: Points, *, within: float = np.inf) -> tuple[Floats, Rows]:
    """Of each query [M,3] the distance to the nearest point [N,3], and its row: inf and N where none is within."""
    return cKDTree(points).query(queries, distance_upper_bound=within)


def search(
    points: NDArray[np.floating], queries: NDArray[np.floating], k: int, *, within: float = np.inf
) -> tuple[Floats, Rows]:
    """As `closest`, of the `k` nearest points, in order: [M,k] and [M,k]."""
    return cKDTree(points).query(queries, np.arange(1, k + 1), distance_upper_bound=within)


def mean_of_neighbours(points: Points, values: Floats, k: int) -> Floats:
    """For each point [N,3], the mean of `values` [N,C] or [N] over its k nearest points, of which it is one."""
    values = np.asarray(values, np.float64)
    columns = values.reshape(len(values), -1)
    mean = np.empty_like(columns)
    for part, _, rows in _neighbourhoods(points, k):
        starts = np.arange(0, rows.size + 1, k)
        mean[part] = csr_array((np.ones(rows.size), rows.ravel(), starts), shape=(len(part), len(points))) @ columns / k
    return mean.reshape(values.shape)


def _neighbourhoods(points: Points, k: int) -> Iterator[tuple[Rows, Floats, Rows]]:
    """Some points [C], the distances to their k nearest points [C,k] and the rows of these [C,k], until all had it."""
    if k < 1:
        raise UsageError(f"the number of neighbours is {k}; it must be at least 1")
    if len(points) < k:
        raise InputError(
            f"the cloud has {len(points)} points, too few for {k} neighbours; give a denser cloud or a smaller k"
        )
    tree = cKDTree(points)
    for start in range(0, len(points), _CHUNK):
        part = tree.indices[start : start + _CHUNK]  # points near each other are answered faster together
        yield part, *tree.query(points[part], np.arange(1, k + 1))


def with_normals(cloud: Cloud, *, neighbours: int = 30) -> Cloud:
    """The cloud with a normal at every point, none of which looks backwards (−x); see `pca_normals`."""
    return replace(cloud, normals=facing_front(pca_normals(cloud.points, neighbours=neighbours)))


def pca_normals(points: Points, *, neighbours: int = 30) -> Floats:
    """Unit normals [N,3] by principal components of each point's neighbours (Rusu 2009, §4.3); signs mean nothing."""
    if len(points) < 3:
        raise InputError(f"normals need at least 3 points, and the cloud has {len(points)}")
    extent = np.linalg.svd(np.cov(points.T), compute_uv=False)
    if extent[1] <= 1e-14 * max(extent[0], np.finfo(float).tiny):
        raise InputError(f"all {len(points)} points are on one line, so they have no normals; give a surface")
    # Covariances from means of products. Offsets from the middle of the cloud, with neighbours that vary by a hundredth
    # of its size, lose four of sixteen digits.
    middle = points - points.mean(axis=0)
    products = (middle[:, :, None] * middle[:, None, :]).reshape(-1, 9)
    means = mean_of_neighbours(points, np.hstack([middle, products]), min(neighbours, len(points)))
    mean, second = means[:, :3], means[:, 3:]
    spread = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    return np.asarray(np.linalg.eigh(spread)[1][:, :, 0], np.float64)


def facing_front(normals: Floats) -> Floats:
    """Normals [N,3] turned towards +x."""
    return np.where(normals[:, :1] < 0, -normals, normals)


def inliers(cloud: Cloud, *, neighbours: int = OUTLIER_NEIGHBOURS, ratio: float = OUTLIER_RATIO) -> NDArray[np.bool_]:
    """Which points [N] are no outliers by mean neighbour distance (thesis, algorithm 7; as Open3D)."""
    if neighbours < 2 or not ratio > 0:
        raise UsageError(f"outliers by {neighbours} neighbours and {ratio} deviations; give at least 2 and more than 0")
    cloud.need(neighbours, f"removal of outliers by {neighbours} neighbours")
    mean = np.empty(len(cloud))
    for part, distances, _ in _neighbourhoods(cloud.points, neighbours):
        mean[part] = distances.mean(axis=1)
    return mean <= mean.mean() + ratio * mean.std(ddof=1) + np.spacing(mean.max())


def without_outliers(cloud: Cloud, *, neighbours: int = OUTLIER_NEIGHBOURS, ratio: float = OUTLIER_RATIO) -> Cloud:
    """The cloud without its outliers; see `inliers`."""
    return cloud.take(inliers(cloud, neighbours=neighbours, ratio=ratio))


def farthest_point_sample(points: Points, count: int, *, start: int = 0) -> Rows:
    """Indices of `count` points [N,3], each the farthest from those before it (Gonzalez 1985)."""
    if count < 1:
        raise UsageError(f"a sample of {count} points was asked for; it must have at least 1")
    if len(points) < count:
        raise InputError(f"the cloud has {len(points)} points, and a sample of {count} was asked for; ask for fewer")
    if not 0 <= start < len(points):
        raise UsageError(f"the sample is to start at point {start} of {len(points)}; start at 0 to {len(points) - 1}")
    points = np.asarray(points, np.float64) - np.mean(points, axis=0)
    tree = cKDTree(points)
    squared = np.full(len(points), np.inf)
    chosen = np.empty(count, np.intp)
    for step in range(count):
        chosen[step] = start
        # A point changes only where the new one is nearer than those before, so within the largest distance left.
        rows: slice | list[int] = slice(None)
        if step >= _ALL_POINTS_STEPS:
            rows = tree.query_ball_point(points[start], np.sqrt(squared[start]) * (1 + 1e-9), return_sorted=False)
        squared[rows] = np.minimum(squared[rows], ((points[rows] - points[start]) ** 2).sum(axis=1))
        squared[start] = -1.0  # a duplicate of a chosen point may follow, the point itself may not
        start = int(squared.argmax())
    return chosen


def without_duplicates(cloud: Cloud) -> tuple[Cloud, int]:
    """The cloud with each place once, and how many points were left out: of exactly equal ones the first stays."""
    x, y, z = cloud.points.T
    order = np.lexsort((z, y, x))  # stable: equal points stay in their order
    again = np.zeros(len(cloud), bool)
    again[order[1:]] = (cloud.points[order[1:]] == cloud.points[order[:-1]]).all(axis=1)
    count = int(again.sum())
    return (cloud.take(~again), count) if count else (cloud, 0)


def thinned(points: Floats, cell: float) -> Floats:
    """The mean of the points in each occupied cube of side `cell` (metres), in the order of the cubes."""
    cubes = np.floor((points - points.min(axis=0, initial=np.inf)) / cell).astype(np.int64)
    size = cubes.max(axis=0, initial=0) + 1
    keys = (cubes[:, 0] * size[1] + cubes[:, 1]) * size[2] + cubes[:, 2]
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    return np.column_stack([np.bincount(group, axis, len(count)) for axis in points.T]) / count[:, None]


def sample_surface(
    points: Points, triangles: NDArray[np.integer], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
    """Corners [count,3], rows of `points`, and weights [count,3] of points drawn uniformly on triangles [F,3]."""
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    upto = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    total = upto[-1] if upto[-1] > 0 else 1.0
    chosen = np.searchsorted(upto, rng.random(count) * total, side="right").clip(max=len(triangles) - 1)
    # The root makes equal areas equally likely: the triangle widens from its first corner in proportion.
    root, along = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - root, root * (1 - along), root * along], axis=1)
    return triangles[chosen], weights
