"""Where the face is in a cloud in any orientation, found by the relief of a made head: nothing of it was scanned.

A face seen from the front is a relief x = T(y, z). Candidates for the nose tip are the cloud's strongest peaks; each is
tried as the tip in many orientations, and those that fit the relief best are refined. The person's own symmetry then
corrects what the relief, which is nobody's, gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array, eye_array
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.landmarks import FaceLandmarks
from ficgan.pointcloud.neighbours import mean_of_neighbours, nearest
from ficgan.pointcloud.sampling import farthest_point_sample

__all__ = ["Found", "Search", "find_face"]

Floats = NDArray[np.float64]

_FEW = 50
"""Points below which nothing is fitted."""


@dataclass(frozen=True)
class Search:
    """Numbers of the search; lengths in metres, angles in degrees.

    Args:
        cell: of the relief's grid.
        sample: points of the cloud that peaks are looked for among, and that are fitted in the end.
        coarse: points that candidates are fitted to.
        peak: radius over which a point's protrusion is measured.
        peaks: candidates for the nose tip.
        rolls: orientations tried about the direction of a peak.
        pitches: nods tried, as a nose's tip points up or down.
        reach: distance from the nose tip up to which points are compared with the relief.
        tried: of the rolls about one peak, how many are refined.
        kept: different poses among which likeness decides.
        block: side of the squares by which the part of the relief with points on it is counted.
        touching: distance from the relief up to which a point is on it.
        asymmetry: distance from the mirror image, exceeded by a fifth of the points, that divides likeness by e.
        scales: residuals beyond which a point counts no more, from coarse to fine.
        steps: refinements per scale.
    """

    cell: float = 0.002
    sample: int = 3000
    coarse: int = 1000
    peak: float = 0.025
    peaks: int = 8
    rolls: int = 24
    pitches: tuple[float, ...] = (-30.0, 0.0, 30.0)
    reach: float = 0.085
    tried: int = 4
    kept: int = 3
    block: float = 0.008
    touching: float = 0.008
    asymmetry: float = 0.004
    scales: tuple[float, ...] = (0.03, 0.015, 0.01)
    steps: int = 6


@dataclass(frozen=True)
class Found:
    """A face that was found.

    Args:
        transform: [4,4], the cloud's frame → the canonical one.
        residual: root mean square distance from the made relief, with the nose tips on each other, metres.
        likeness: to a face, 0…1; see `_face_likeness`.
    """

    transform: Floats
    residual: float
    likeness: float


@dataclass(frozen=True)
class Relief:
    """x over a grid of (y, z), NaN where there is no face.

    Args:
        depth: [Y,Z], metres.
        slopes: [2,Y,Z], along y and z.
        low: (y, z) of the first cell.
        cell: metres.
    """

    depth: Floats
    slopes: Floats
    low: Floats
    cell: float

    def at(self, points: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """For points [...,3]: depth [...], slopes [2,...], and whether the relief is known there."""
        place = (points[..., 1:] - self.low) / self.cell
        top = np.array(self.depth.shape) - 1
        cells = np.clip(np.rint(place), 0, top).astype(np.intp)
        row, column = cells[..., 0], cells[..., 1]
        known = ((place >= 0) & (place <= top)).all(axis=-1) & np.isfinite(self.depth[row, column])
        offset = (place - cells) * self.cell
        slopes = self.slopes[:, row, column]
        return self.depth[row, column] + slopes[0] * offset[..., 0] + slopes[1] * offset[..., 1], slopes, known


@lru_cache(maxsize=4)
def mean_relief(cell: float) -> Relief:
    """The face of the made head whose features are all usual, in the frame of its landmarks.

    Args:
        cell: of the grid, metres.
    """
    from ficgan.pointcloud.frame import landmark_frame
    from ficgan.pointcloud.heads.features import Expression, Features
    from ficgan.pointcloud.heads.marks import marked
    from ficgan.pointcloud.heads.sheets import HEAD, mesh
    from ficgan.pointcloud.heads.surface import Surface

    face = Surface(Features(), Expression())
    frame = landmark_frame(FaceLandmarks.of_points(marked(face)))
    vertices, triangles, parts = mesh(face)
    skin = vertices[np.unique(triangles[parts == HEAD])] / 1000.0 @ frame[:3, :3].T + frame[:3, 3]
    low, high = np.array([-0.065, -0.06]), np.array([0.075, 0.06])
    shape = np.rint((high - low) / cell).astype(int) + 1
    places = np.rint((skin[:, 1:] - low) / cell).astype(int)
    seen = (skin[:, 0] > -0.09) & ((places >= 0) & (places < shape)).all(axis=1)
    front = np.full(shape, -np.inf)
    np.maximum.at(front, tuple(places[seen].T), skin[seen, 0])
    known = np.isfinite(front)
    weight = gaussian_filter(known.astype(float), 0.7)
    depth = np.where(known, gaussian_filter(np.where(known, front, 0.0), 0.7) / np.maximum(weight, 1e-9), np.nan)
    slopes = np.stack([np.gradient(depth, cell, axis=axis) for axis in (0, 1)])
    return Relief(np.where(np.isfinite(slopes).all(axis=0), depth, np.nan), np.nan_to_num(slopes), low, cell)


def find_face(points: Floats, search: Search | None = None) -> Found:
    """The most face-like place of a cloud.

    Args:
        points: [N,3], metres, in any orientation.
        search: numbers of the search.

    Raises:
        InputError: nothing protrudes, so there is nothing to try.
    """
    search = search or Search()
    relief = mean_relief(search.cell)
    sample = points[farthest_point_sample(points, min(search.sample, len(points)))]
    coarse = sample[: search.coarse]  # the first of a farthest-point sample are one themselves
    tried = [pose for tip, outward in _peaks(sample, search) for pose in _rough(coarse, tip, outward, relief, search)]
    if not tried:
        raise InputError("no point of the cloud protrudes as a nose does; give --landmarks")
    fits = [_fitted(coarse, pose, relief, search) for pose in tried]
    fits.sort(key=lambda pose: -_match(coarse, pose, relief, search))
    kept: list[Floats] = []
    for pose in fits:
        if len(kept) < search.kept and not any(_same(pose, other) for other in kept):
            kept.append(pose)
    return max((_finished(points, sample, pose, relief, search) for pose in kept), key=lambda found: found.likeness)


def _same(pose: Floats, other: Floats) -> bool:
    """Whether two poses put the nose tip within 2 cm and face within 25 degrees of each other."""
    between = pose @ np.linalg.inv(other)
    return bool(np.linalg.norm(between[:3, 3]) < 0.02 and np.trace(between[:3, :3]) > 1 + 2 * np.cos(np.radians(25)))


def _finished(points: Floats, sample: Floats, pose: Floats, relief: Relief, search: Search) -> Found:
    pose, asymmetry = _symmetric(sample, _fitted(sample, pose, relief, search), search)
    pose = _tip_at_origin(points, pose)
    likeness, residual = _face_likeness(sample, pose, relief, asymmetry, search)
    return Found(pose, residual, likeness)


def _peaks(sample: Floats, search: Search) -> list[tuple[Floats, Floats]]:
    """The points that protrude most, apart from each other, with the direction they protrude in."""
    pairs = cKDTree(sample).query_pairs(search.peak, output_type="ndarray")
    near = coo_array((np.ones(len(pairs)), pairs.T), shape=(len(sample),) * 2)
    near = (near + near.T + eye_array(len(sample))).tocsr()
    count = near.sum(axis=1)[:, None]
    products = (sample[:, :, None] * sample[:, None, :]).reshape(-1, 9)
    mean, second = near @ sample / count, near @ products / count
    spread = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    normals = np.linalg.eigh(spread)[1][:, :, 0]
    height = ((sample - mean) * normals).sum(axis=1)
    outward = normals * np.sign(height)[:, None]
    found: list[int] = []
    for row in np.argsort(-np.abs(height)):
        if len(found) == search.peaks or height[row] == 0:
            break
        if all(np.linalg.norm(sample[row] - sample[other]) > 0.6 * search.peak for other in found):
            found.append(int(row))
    return [(sample[row], outward[row]) for row in found]


def _rough(sample: Floats, tip: Floats, outward: Floats, relief: Relief, search: Search) -> list[Floats]:
    """Poses with one peak as the nose tip: the rolls that more points support than the rolls beside them."""
    near = sample[np.linalg.norm(sample - tip, axis=1) < search.reach] - tip
    turns = Rotation.from_euler("x", np.arange(search.rolls)[:, None] * 360.0 / search.rolls, degrees=True)
    nods = Rotation.from_euler("z", np.array(search.pitches)[:, None], degrees=True)
    rotations = np.stack([(nod * turns).as_matrix() for nod in nods]) @ _facing(outward)
    placed = near @ rotations.swapaxes(-1, -2)
    depth = relief.at(placed)[0]
    support = _weights(placed[..., 0] - depth, search.scales[1]).sum(axis=-1)
    nod, best = support.argmax(axis=0), support.max(axis=0)
    summits = np.flatnonzero((best >= np.roll(best, 1)) & (best > np.roll(best, -1)))
    summits = summits[np.argsort(-best[summits])][: search.tried]
    return [_pose(rotations[nod[roll], roll], tip) for roll in summits]


def _fitted(sample: Floats, pose: Floats, relief: Relief, search: Search) -> Floats:
    """The pose after weighted least squares of the distances to the relief (Gauss-Newton, Tukey's weights)."""
    for scale in search.scales:
        for _ in range(search.steps):
            placed = _within(sample, pose, search.reach)
            depth, slopes, known = relief.at(placed)
            gradient = np.column_stack([np.ones(len(placed)), *(-slopes)])[known]
            length = np.linalg.norm(gradient, axis=1)
            distance = (placed[:, 0] - depth)[known] / length
            weight = _weights(distance, scale)
            gradient /= length[:, None]
            columns = np.hstack([np.cross(placed[known], gradient), gradient])
            pose = _step(columns * weight[:, None], -distance * weight) @ pose
    return pose


def _symmetric(sample: Floats, pose: Floats, search: Search) -> tuple[Floats, float]:
    """The pose whose plane z = 0 mirrors the face onto itself best, by iterated closest points, and the asymmetry left.

    Yaw, roll and the shift sideways change; a mirror says nothing of the others.
    """
    mirror = np.array([1.0, 1.0, -1.0])
    for _ in range(10):
        placed = _within(sample, pose, search.reach)
        normals = _normals(placed)
        distances, indices = nearest(placed, placed * mirror, 1)
        away, partner = distances[:, 0], indices[:, 0]
        normal, other = normals[partner], placed[partner]
        gap = ((placed * mirror - other) * normal).sum(axis=1)
        weight = _weights(away, 0.01)
        lever = np.cross(placed, normal * mirror) - np.cross(other, normal)
        across = (normal * (mirror - 1))[:, 2]
        columns = np.column_stack([lever[:, :2], across]) * weight[:, None]
        yaw, roll, shift = np.linalg.lstsq(columns, -gap * weight)[0]
        pose = _motion(np.array([yaw, roll, 0.0]), np.array([0.0, 0.0, shift])) @ pose
    return pose, float(np.percentile(np.abs(gap), 80))


def _match(sample: Floats, pose: Floats, relief: Relief, search: Search) -> float:
    """How good a pose is, by comparison: many points lie on the relief, and what is uneven in both is alike."""
    placed, distance = _distances(sample, pose, relief, search)
    near = np.abs(distance) < search.scales[1]
    if near.sum() < _FEW:
        return -1.0
    return float(_weights(distance, search.scales[-1]).sum() * _alike(placed[near], relief, _bowl)[0])


def _face_likeness(
    sample: Floats, pose: Floats, relief: Relief, asymmetry: float, search: Search
) -> tuple[float, float]:
    """How like a face the cloud is in a pose, 0…1, and the residual.

    The product of: how alike the cloud and the relief are in what a bowl does not explain, and in what a bowl with a
    round peak does not explain (many bodies have one; faces have eyes and lips too); how alike the size of that is; the
    part of the relief with points on it; symmetry.
    """
    placed, distance = _distances(sample, pose, relief, search)
    near = np.abs(distance) < search.scales[1]
    if near.sum() < _FEW:
        return 0.0, float("inf")
    peaked, _ = _alike(placed[near], relief, _bowl)
    detailed, ratio = _alike(placed[near], relief, _bowl_and_peak)
    on = placed[np.abs(distance) < search.touching, 1:]
    whole = relief.low + relief.cell * np.argwhere(np.isfinite(relief.depth))
    blocks = [len(np.unique(np.floor(where / search.block), axis=0)) for where in (on, whole)]
    even = np.exp(-((asymmetry / search.asymmetry) ** 2))
    likeness = (peaked + detailed) / 2 * min(ratio, 1 / ratio) ** 2 * blocks[0] / blocks[1] * even
    return max(float(likeness), 0.0), float(np.sqrt((distance[near] ** 2).mean()))


def _distances(sample: Floats, pose: Floats, relief: Relief, search: Search) -> tuple[Floats, Floats]:
    """Points near the nose tip, in the pose, and their distances from the relief, NaN where that is not known."""
    placed = _within(sample, pose, search.reach)
    depth, slopes, known = relief.at(placed)
    return placed, np.where(known, (placed[:, 0] - depth) / np.sqrt(1 + (slopes**2).sum(axis=0)), np.nan)


def _alike(placed: Floats, relief: Relief, trend: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
    """Correlation of the points' depths with the relief's, and the ratio of their deviations, both after a trend."""
    both = np.column_stack([placed[:, 0], relief.at(placed)[0]])
    columns = trend(placed[:, 1], placed[:, 2])
    detail = both - columns @ np.linalg.lstsq(columns, both)[0]
    cloud, made = np.maximum(np.linalg.norm(detail, axis=0), 1e-12)
    return float(detail[:, 0] @ detail[:, 1] / (cloud * made)), float(cloud / made)


def _bowl(y: Floats, z: Floats) -> Floats:
    return np.column_stack([np.ones_like(y), y, z, y * y, y * z, z * z])


def _bowl_and_peak(y: Floats, z: Floats) -> Floats:
    return np.column_stack(
        [_bowl(y, z), *(np.exp(-(y * y + z * z) / (2 * width**2)) for width in (0.008, 0.016, 0.03))]
    )


def _weights(distance: Floats, scale: float) -> Floats:
    """1 at distance 0, 0 from `scale` on and where the distance is not known."""
    return np.where(np.abs(distance) < scale, 1 - (distance / scale) ** 2, 0.0)


def _tip_at_origin(points: Floats, pose: Floats) -> Floats:
    """The pose with the origin moved to the nose tip: what protrudes most near the plane of symmetry."""
    for reach in (0.03, 0.015):
        placed = points @ pose[:3, :3].T + pose[:3, 3]
        near = placed[(np.abs(placed[:, 2]) < 0.004) & (np.linalg.norm(placed, axis=1) < reach)]
        if not len(near):
            break
        smooth = mean_of_neighbours(near, near, min(8, len(near)))
        tip = near[smooth[:, 0].argmax()]
        pose = _motion(np.zeros(3), -np.array([tip[0], tip[1], 0.0])) @ pose
    return pose


def _normals(points: Floats) -> Floats:
    """Unit normals [N,3] of either sign, by the planes through 16 neighbours."""
    around = points[nearest(points, points, min(16, len(points)))[1]]
    around = around - around.mean(axis=1, keepdims=True)
    return np.linalg.eigh(around.transpose(0, 2, 1) @ around)[1][:, :, 0]


def _within(sample: Floats, pose: Floats, reach: float) -> Floats:
    placed = sample @ pose[:3, :3].T + pose[:3, 3]
    return placed[np.linalg.norm(placed, axis=1) < reach]


def _facing(direction: Floats) -> Floats:
    """A rotation [3,3] that turns a unit vector to +x."""
    other = np.eye(3)[np.abs(direction).argmin()]
    up = np.cross(direction, other)
    up /= np.linalg.norm(up)
    return np.stack([direction, up, np.cross(direction, up)])


def _pose(rotation: Floats, origin: Floats) -> Floats:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ origin
    return pose


def _step(columns: Floats, target: Floats) -> Floats:
    """The small motion that solves columns [N,6] · (turn, shift) = target; none where nothing is left to fit."""
    if len(columns) < _FEW:
        return np.eye(4)
    damped = columns.T @ columns + 1e-6 * len(columns) * np.diag([1e-3, 1e-3, 1e-3, 1.0, 1.0, 1.0])
    motion = np.asarray(np.linalg.solve(damped, columns.T @ target), np.float64)
    return _motion(motion[:3], motion[3:])


def _motion(turn: Floats, shift: Floats) -> Floats:
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = Rotation.from_rotvec(turn).as_matrix(), shift
    return motion
