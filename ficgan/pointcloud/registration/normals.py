"""Normals of a cloud: the direction in which the neighbours of a point vary least."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import search, tree_order

__all__ = ["Side", "oriented", "pca_normals", "smallest_eigenvector", "with_normals"]

Floats = NDArray[np.float64]
Side = Literal["front", "outwards"]
_FIRST, _SECOND = [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]
"""Rows and columns of the six different elements of a symmetric 3×3 matrix."""
_SQUARE = [0, 1, 2, 1, 3, 4, 2, 4, 5]
"""Which of the six each element of the matrix is."""


def with_normals(
    cloud: Cloud, *, neighbours: int = 30, radius: float | None = None, side: Side | ArrayLike = "front"
) -> Cloud:
    """The cloud with a normal at every point.

    Args:
        cloud: at least three points that are not all on one line.
        neighbours: points that a plane is fitted to, the point itself among them.
        radius: no neighbour is farther than this, metres; None: however far they are.
        side: which way normals look, see `oriented`.

    Raises:
        InputError: fewer than three points, or all of them on one line.
    """
    return Cloud(
        cloud.points,
        cloud.colors,
        oriented(cloud.points, pca_normals(cloud.points, neighbours=neighbours, radius=radius), side),
    )


def pca_normals(points: Floats, *, neighbours: int = 30, radius: float | None = None) -> Floats:
    """Unit normals by principal components of each point's neighbours; their signs mean nothing.

    Where the neighbours are on one line or one spot, the normal is some unit vector.

    Args:
        points: [N,3].
        neighbours: points that a plane is fitted to, the point itself among them; all where there are fewer.
        radius: no neighbour is farther than this, metres; a point with fewer than three within takes its three nearest.

    Returns:
        [N,3].

    Raises:
        InputError: fewer than three points, or all of them on one line.

    Source:
        Rusu, "Semantic 3D Object Maps" (2009), §4.3.
    """
    _refuse_line(points)
    order = tree_order(points)
    points = points[order]
    distances, rows = search(points, points, min(neighbours, len(points)))
    kept = np.ones(rows.shape) if radius is None else distances <= radius
    kept[:, :3] = 1
    normals = np.empty_like(points)
    normals[order] = smallest_eigenvector(_covariances(points, rows, kept / kept.sum(axis=1, keepdims=True)))
    return normals


def _covariances(points: Floats, rows: NDArray[np.int64], weights: Floats) -> Floats:
    """Of the neighbours of each point [N,3,3], from the sums of their coordinates and products: one sparse product.

    Products are of ways from the middle of the cloud: with neighbours that vary by a hundredth of its size, four of
    sixteen digits are lost.
    """
    middle = points - points.mean(axis=0)
    terms = np.concatenate([middle, middle[:, _FIRST] * middle[:, _SECOND]], axis=1)
    starts = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    table = csr_array((weights.ravel(), rows.ravel().astype(np.int32), starts), shape=(len(rows), len(points)))
    means = table @ terms
    spread = means[:, 3:] - means[:, _FIRST] * means[:, _SECOND]
    return spread[:, _SQUARE].reshape(-1, 3, 3)


def smallest_eigenvector(matrices: Floats) -> Floats:
    """The unit eigenvector of the smallest eigenvalue of symmetric 3×3 matrices.

    The cubic is solved in closed form, in a third of the time of `np.linalg.eigh`, which takes what the closed form
    cannot tell apart.

    Args:
        matrices: [N,3,3], positive semidefinite.

    Returns:
        [N,3].

    Source:
        Smith, "Eigenvalues of a symmetric 3×3 matrix", Communications of the ACM 4 (1961).
    """
    scale = np.trace(matrices, axis1=1, axis2=2)[:, None, None]
    scaled = matrices / np.where(scale > 0, scale, 1)
    xx, yy, zz = scaled[:, 0, 0] - 1 / 3, scaled[:, 1, 1] - 1 / 3, scaled[:, 2, 2] - 1 / 3
    xy, xz, yz = scaled[:, 0, 1], scaled[:, 0, 2], scaled[:, 1, 2]
    spread = np.sqrt((xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)) / 6)
    determinant = xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = np.arccos(np.clip(determinant / (2 * spread**3), -1, 1)) / 3
    least = 2 * spread * np.cos(angle + 2 * np.pi / 3)
    x, y, z = xx - least, yy - least, zz - least
    # The adjugate of (A − λI) is a multiple of v·vᵀ: its longest row is the eigenvector, most exactly.
    across = [xz * yz - xy * z, xy * yz - xz * y, xy * xz - x * yz]
    rows = [y * z - yz * yz, across[0], across[1], across[0], x * z - xz * xz, across[2], *across[1:], x * y - xy * xy]
    adjugate = np.stack(rows, axis=1).reshape(-1, 3, 3)
    diagonal = np.abs(np.einsum("nii->ni", adjugate))
    found = adjugate[np.arange(len(adjugate)), np.nan_to_num(diagonal).argmax(axis=1)]
    length = np.linalg.norm(found, axis=1)
    unsure = ~(length > 1e-6)
    found /= np.where(unsure, 1, length)[:, None]
    if unsure.any():
        found[unsure] = np.linalg.eigh(scaled[unsure])[1][:, :, 0]
    return found


def oriented(points: Floats, normals: Floats, side: Side | ArrayLike = "front") -> Floats:
    """Normals turned to one side.

    Args:
        points: [N,3].
        normals: [N,3].
        side: "front": towards +x, for a face in the canonical frame. "outwards": away from a point behind the surface,
            which turns with the cloud, so a face in any pose has the normals of the same face in another; of a closed
            surface, the outside. Else a viewpoint [3], metres, that all normals look at.

    Returns:
        [N,3].

    Raises:
        InputError: a viewpoint that is none.
    """
    if isinstance(side, str) and side == "front":
        towards: Floats = np.array([[1.0, 0.0, 0.0]])
    elif isinstance(side, str) and side == "outwards":
        towards = points - _behind(points, normals)
    else:
        viewpoint = np.asarray(side, np.float64) if not isinstance(side, str) else np.empty(0)
        if viewpoint.shape != (3,) or not np.isfinite(viewpoint).all():
            raise InputError(f"normals cannot look at {side!r}; give front, outwards or a point [3]")
        towards = viewpoint - points
    return np.where((normals * towards).sum(axis=1, keepdims=True) < 0, -normals, normals)


def _behind(points: Floats, normals: Floats) -> Floats:
    """A point inside the surface: behind the middle, along the direction that most normals share."""
    offsets = points - points.mean(axis=0)
    axis = np.linalg.eigh(normals.T @ normals)[1][:, 2]
    bulge = (np.sign(normals @ axis) * (normals * offsets).sum(axis=1)).sum()
    depth = 0.5 * np.sqrt((offsets**2).sum(axis=1).mean())
    return points.mean(axis=0) - np.where(bulge < 0, -depth, depth) * axis


def _refuse_line(points: Floats) -> None:
    if len(points) < 3:
        raise InputError(f"normals need at least 3 points, and the cloud has {len(points)}")
    extent = np.linalg.svd(np.cov(points.T), compute_uv=False)
    if extent[1] <= 1e-14 * max(extent[0], np.finfo(float).tiny):
        raise InputError(f"all {len(points)} points are on one line, so they have no normals; give a surface")
