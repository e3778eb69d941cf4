"""α-shapes: the surface of all Delaunay tetrahedra of a cloud that are small enough, and points sampled on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from ficgan.errors import InputError

__all__ = ["Tetrahedra", "alpha_shape", "sample_surface", "tetrahedra"]

Points = NDArray[np.float64]
_OPPOSITE = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


@dataclass(frozen=True)
class Tetrahedra:
    """The Delaunay tetrahedra of a cloud, which do not depend on α.

    Args:
        corners: [T,4] rows of the cloud's points.
        neighbours: [T,4] tetrahedron on the other side of the face opposite each corner, −1 outside.
        radii: [T] radii of the circumscribed spheres, ∞ where the four corners lie in a plane.
    """

    corners: NDArray[np.int32]
    neighbours: NDArray[np.int32]
    radii: NDArray[np.float64]

    def surface(self, alpha: float) -> NDArray[np.int32]:
        """Triangles [F,3], rows of points in ascending order, that bound the tetrahedra with a radius of at most α."""
        kept = self.radii <= alpha
        ours = np.flatnonzero(kept)
        beyond = self.neighbours[ours]
        tetra, face = np.nonzero((beyond < 0) | ~kept[beyond])
        corners = np.take_along_axis(self.corners[ours[tetra]], _OPPOSITE[face], axis=1)
        return np.sort(corners, axis=1)


def tetrahedra(points: Points) -> Tetrahedra:
    """Delaunay tetrahedra; those of the last four clouds are kept, so that a sweep over α computes them once.

    Args:
        points: [N,3].

    Raises:
        InputError: fewer than four different points, or all in a plane.
    """
    return _tetrahedra(np.ascontiguousarray(points, np.float64).tobytes())


def alpha_shape(points: Points, alpha: float) -> NDArray[np.int32]:
    """Triangles of the α-shape.

    Args:
        points: [N,3].
        alpha: largest circumradius of a tetrahedron that is kept, in the unit of the points; ∞: the convex hull.

    Returns:
        [F,3] rows of `points`, without orientation; none where α is too small.

    Raises:
        InputError: fewer than four different points, or all in a plane.

    Source:
        Point-cloud thesis, §3.2.2.6; Edelsbrunner and Mücke, "Three-Dimensional Alpha Shapes", 1994. The rule
        (radius ≤ α, then the faces that belong to one tetrahedron only) is Open3D's, which the thesis used.
    """
    return tetrahedra(points).surface(alpha)


def sample_surface(
    points: Points, triangles: NDArray[np.integer], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Points drawn uniformly on triangles.

    Args:
        points: [N,3].
        triangles: [F,3] rows of `points`, at least one.
        count: how many are drawn.
        rng: where from.

    Returns:
        Corners [count,3], rows of `points`, and the corners' weights [count,3], at least 0, of sum 1.
    """
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    upto = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    total = upto[-1] if upto[-1] > 0 else 1.0
    chosen = np.searchsorted(upto, rng.random(count) * total, side="right").clip(max=len(triangles) - 1)
    # The root makes equal areas equally likely: the triangle widens from its first corner in proportion.
    root, along = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - root, root * (1 - along), root * along], axis=1)
    return np.asarray(triangles[chosen], np.int32), weights


@lru_cache(maxsize=4)
def _tetrahedra(data: bytes) -> Tetrahedra:
    """By the coordinates' bytes: no digest that two clouds could share."""
    points = np.frombuffer(data).reshape(-1, 3)
    _refuse_flat(points)
    middle = points - points.mean(axis=0)
    try:
        mesh = Delaunay(middle)
    except QhullError as error:
        raise InputError(f"the cloud's {len(points)} points lie too nearly in a plane for tetrahedra") from error
    return Tetrahedra(mesh.simplices, mesh.neighbors, _circumradii(middle[mesh.simplices]))


def _refuse_flat(points: Points) -> None:
    """A sentence for what has no tetrahedra."""
    if len(points) < 4:
        raise InputError(f"the cloud has {len(points)} points, and a tetrahedron needs at least 4")
    spread = points - points[0]
    widths = np.sqrt(np.linalg.svd(spread.T @ spread, compute_uv=False))
    rank = int((widths > 1e-7 * widths[0]).sum())
    if rank < 3:
        shape = ("are all the same", "lie on a line", "lie in a plane")[rank]
        raise InputError(
            f"the cloud's {len(points)} points {shape}: there are no tetrahedra between them; give a surface"
        )


def _circumradii(corners: Points) -> NDArray[np.float64]:
    """Radii of the spheres through four corners [T,4,3], from the edges at the first: |Σ e²·(f×g)| / 2|e·(f×g)|."""
    e, f, g = (corners[:, corner] - corners[:, 0] for corner in (1, 2, 3))
    square = [np.einsum("td,td->t", edge, edge)[:, None] for edge in (e, f, g)]
    fg, ge, ef = _cross(f, g), _cross(g, e), _cross(e, f)
    volume = np.abs(np.einsum("td,td->t", e, fg))
    numerator = np.linalg.norm(square[0] * fg + square[1] * ge + square[2] * ef, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(volume > 0, numerator / (2 * volume), np.inf)


def _cross(a: Points, b: Points) -> Points:
    """As np.cross for [T,3], in a third of its time."""
    return np.stack(
        [
            a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1],
            a[:, 2] * b[:, 0] - a[:, 0] * b[:, 2],
            a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0],
        ],
        axis=1,
    )
