"""Where the face is in a cloud in any orientation and surroundings.

Candidates for the nose tip are the cloud's strongest peaks; what surrounds each is tried in many orientations, and
those that fit the relief of a made face best are refined. The person's own symmetry then corrects what the relief,
which is nobody's, gets wrong; last it is measured how like a face that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, eye_array
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.neighbours import mean_of_neighbours, nearest
from ficgan.pointcloud.relief import Relief, face_likeness, mean_relief, weights

__all__ = ["Found", "Search", "face_size", "find_face"]

Floats = NDArray[np.float64]

_FEW = 50
"""Points below which nothing is fitted."""


@dataclass(frozen=True)
class Search:
    """Numbers of the search; lengths in metres, angles in degrees.

    Args:
        coarse: cubes that the cloud is thinned to before peaks are looked for, and candidates are fitted.
        fine: cubes that the surroundings of the last candidates are thinned to.
        most: points of the coarse cloud; the cubes of larger ones are larger.
        peak: radius over which a point's protrusion is measured.
        tip: radius over which protrusion is averaged, against noise.
        crowd: points within it, fewer of which are no peak but strays.
        peaks: candidates for the nose tip, least and most; between them one per `share` coarse points.
        rolls: orientations tried about the direction of a peak.
        pitches: nods tried, as a nose's tip points up or down.
        reach: distance from the nose tip up to which points are compared with the relief.
        tried: of the rolls about one peak, how many compete.
        fitted: of all of them, how many are refined.
        kept: different poses among which likeness decides.
        bounds: residuals beyond which a point counts no more, from coarse to fine.
        steps: refinements per bound.
        sizes: of the face, in usual ones, tried in turn until one is surely a face.
        sure: likeness that ends the trying.
    """

    coarse: float = 0.006
    fine: float = 0.003
    most: int = 80_000
    peak: float = 0.025
    tip: float = 0.009
    crowd: int = 10
    peaks: tuple[int, int] = (16, 60)
    share: int = 400
    rolls: int = 24
    pitches: tuple[float, ...] = (-30.0, 0.0, 30.0)
    reach: float = 0.085
    tried: int = 3
    fitted: int = 20
    kept: int = 2
    bounds: tuple[float, ...] = (0.03, 0.015, 0.01)
    steps: int = 5
    sizes: tuple[float, ...] = (1.0, 0.75, 1.25)
    sure: float = 0.7


@dataclass(frozen=True)
class Found:
    """A face that was found.

    Args:
        transform: [4,4], the cloud's frame → the canonical one.
        residual: root mean square distance from the made relief, with the nose tips on each other, metres.
        likeness: to a face, 0…1; see `ficgan.pointcloud.relief.face_likeness`.
    """

    transform: Floats
    residual: float
    likeness: float


def find_face(points: Floats, search: Search | None = None) -> Found:
    """The most face-like place of a cloud.

    Args:
        points: [N,3], metres, in any orientation and anywhere.
        search: numbers of the search.

    Raises:
        InputError: nothing protrudes, so there is nothing to try.
    """
    search = search or Search()
    centre = np.median(points, axis=0)
    centred = points - centre  # far from the origin squares of coordinates would have no digits left for a face
    best = None
    for size in search.sizes:
        found = _of_size(centred / size, search)
        if found is not None and (best is None or found.likeness > best.likeness):
            pose = found.transform.copy()
            pose[:3, 3] = size * pose[:3, 3] - pose[:3, :3] @ centre
            best = Found(pose, size * found.residual, found.likeness)
        if best is not None and best.likeness >= search.sure:
            break
    if best is None:
        raise InputError("no point of the cloud protrudes as a nose does; give --landmarks")
    return best


def face_size(placed: Floats, search: Search | None = None) -> float:
    """How large a face is, in usual ones: the size at which it is most like a face, other things fitted anew.

    Of twelve scans it is .83 to 1.10; where they are 1.5 or twice as large, as many times that, within a tenth.

    Args:
        placed: [N,3], metres, canonical frame, which may be off as it is where the size is.
        search: numbers of the search.

    Returns:
        within `_SIZES`.
    """
    search = search or Search()
    search = replace(search, fine=search.coarse)  # a fifth of the work of finding the face, and sizes within .05 of it
    near = placed[np.linalg.norm(placed, axis=1) < _SIZES[1] * (search.reach + search.peak)]
    if len(near) < _FEW:
        return 1.0
    near, relief = _thinned(near, search.fine / 2, search.most), mean_relief()
    step, tried = np.log(1.2), dict[int, float]()

    def likeness(at: int) -> float:
        if at not in tried:
            tried[at] = _finished(near / np.exp(step * at), np.eye(4), relief, search).likeness
        return tried[at]

    steps = range(int(np.log(_SIZES[0]) / step), int(np.log(_SIZES[1]) / step) + 1)
    at = max((0, -2, 2, 4), key=likeness)  # from size 1 alone, one head twice as large stopped at 1.1
    while at in steps and (best := max((at, at - 1, at + 1), key=likeness)) != at:
        at = best
    low, middle, high = (likeness(at + off) for off in (-1, 0, 1))
    bend = low - 2 * middle + high  # a parabola through three sizes has its top between them
    return float(np.clip(np.exp(step * (at + (0.5 * (low - high) / bend if bend < 0 else 0.0))), *_SIZES))


_SIZES = (0.3, 2.6)
"""Of faces, in usual ones, beyond which none is measured."""


def _of_size(points: Floats, search: Search) -> Found | None:
    """The most face-like place, for a face of the usual size; None: nothing protrudes."""
    relief, tried = mean_relief(), []
    coarse = _thinned(points, search.coarse, search.most)
    for tip, outward in _peaks(coarse, search):
        near = coarse[np.linalg.norm(coarse - tip, axis=1) < search.reach + search.peak]
        tried += [(support, pose, near) for support, pose in _rough(near, tip, outward, relief, search)]
    tried.sort(key=lambda one: -one[0])
    fits = [(_fitted(near, pose, relief, search), near) for _, pose, near in tried[: search.fitted]]
    fits.sort(key=lambda one: -_match(one[1], one[0], relief, search))
    kept: list[Floats] = []
    for pose, _ in fits:
        if len(kept) < search.kept and not any(_same(pose, other) for other in kept):
            kept.append(pose)
    return max((_finished(points, pose, relief, search) for pose in kept), key=lambda one: one.likeness, default=None)


def _thinned(points: Floats, cell: float, most: int) -> Floats:
    """The mean of the points in each cube that has any: evenly dense, less noisy, and not more than `most`."""
    while True:
        cubes = np.floor((points - points.min(axis=0)) / cell).astype(np.int64)
        size = cubes.max(axis=0) + 1
        keys = (cubes[:, 0] * size[1] + cubes[:, 1]) * size[2] + cubes[:, 2]
        _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
        if len(count) <= most:
            return np.column_stack([np.bincount(group, column) for column in points.T]) / count[:, None]
        cell *= 1.5


def _same(pose: Floats, other: Floats) -> bool:
    """Whether two poses put the nose tip within 2 cm and face within 25 degrees of each other."""
    between = pose @ np.linalg.inv(other)
    return bool(np.linalg.norm(between[:3, 3]) < 0.02 and np.trace(between[:3, :3]) > 1 + 2 * np.cos(np.radians(25)))


def _finished(points: Floats, pose: Floats, relief: Relief, search: Search) -> Found:
    near = points[np.linalg.norm(points @ pose[:3, :3].T + pose[:3, 3], axis=1) < search.reach + search.peak]
    if len(near) < _FEW:
        return Found(pose, float("inf"), 0.0)
    fine = _thinned(near, search.fine, search.most)
    pose = _tip_at_origin(near, _symmetric(fine, _fitted(fine, pose, relief, search), search))
    likeness, residual = face_likeness(near @ pose[:3, :3].T + pose[:3, 3])
    return Found(pose, residual, likeness)


def _peaks(sample: Floats, search: Search) -> list[tuple[Floats, Floats]]:
    """The points that protrude most, apart from each other, with the direction they protrude in."""
    pairs = cKDTree(sample).query_pairs(search.peak, output_type="ndarray")
    close = np.linalg.norm(sample[pairs[:, 0]] - sample[pairs[:, 1]], axis=1) < search.tip
    near, beside = _neighbourhood(pairs, len(sample)), _neighbourhood(pairs[close], len(sample))
    count = near.sum(axis=1)[:, None]
    products = (sample[:, :, None] * sample[:, None, :]).reshape(-1, 9)
    mean, second = near @ sample / count, near @ products / count
    spread = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    normals = np.linalg.eigh(spread)[1][:, :, 0]
    height = (beside @ (sample - mean) / beside.sum(axis=1)[:, None] * normals).sum(axis=1)
    outward = normals * np.sign(height)[:, None]
    height = np.where(count[:, 0] >= search.crowd, np.abs(height), 0.0)
    wanted = int(np.clip(len(sample) // search.share, *search.peaks))
    found: list[int] = []
    for row in np.argsort(-height):
        if len(found) == wanted or height[row] == 0:
            break
        if all(np.linalg.norm(sample[row] - sample[other]) > 0.6 * search.peak for other in found):
            found.append(int(row))
    return [(sample[row], outward[row]) for row in found]


def _neighbourhood(pairs: NDArray[np.intp], count: int) -> csr_array:
    """[N,N], 1 where two points are a pair, or the same."""
    near = coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count))
    return (near + near.T + eye_array(count)).tocsr()


def _rough(sample: Floats, tip: Floats, outward: Floats, relief: Relief, search: Search) -> list[tuple[float, Floats]]:
    """Poses with one peak as the nose tip: the rolls that more points support than the rolls beside them."""
    near = sample[np.linalg.norm(sample - tip, axis=1) < search.reach] - tip
    turns = Rotation.from_euler("x", np.arange(search.rolls)[:, None] * 360.0 / search.rolls, degrees=True)
    nods = Rotation.from_euler("z", np.array(search.pitches)[:, None], degrees=True)
    rotations = np.stack([(nod * turns).as_matrix() for nod in nods]) @ _facing(outward)
    placed = near @ rotations.swapaxes(-1, -2)
    depth, _, known = relief.at(placed)
    support = weights(np.where(known, placed[..., 0] - depth, np.nan), search.bounds[1]).sum(axis=-1)
    nod, best = support.argmax(axis=0), support.max(axis=0)
    summits = np.flatnonzero((best >= np.roll(best, 1)) & (best > np.roll(best, -1)))
    summits = summits[np.argsort(-best[summits])][: search.tried]
    return [(float(best[roll]), _pose(rotations[nod[roll], roll], tip)) for roll in summits]


def _fitted(sample: Floats, pose: Floats, relief: Relief, search: Search) -> Floats:
    """The pose after weighted least squares of the distances to the relief (Gauss-Newton, Tukey's weights)."""
    for scale in search.bounds:
        for _ in range(search.steps):
            placed = _within(sample, pose, search.reach)
            depth, slopes, known = relief.at(placed)
            gradient = np.column_stack([np.ones(len(placed)), *(-slopes)])[known]
            length = np.linalg.norm(gradient, axis=1)
            distance = (placed[:, 0] - depth)[known] / length
            weight = weights(distance, scale)
            gradient /= length[:, None]
            columns = np.hstack([np.cross(placed[known], gradient), gradient])
            pose = _step(columns * weight[:, None], -distance * weight) @ pose
    return pose


def _match(sample: Floats, pose: Floats, relief: Relief, search: Search) -> float:
    """How good a pose is, by comparison: many points lie on the relief, and what no bowl explains is alike."""
    placed = _within(sample, pose, search.reach)
    depth, slopes, known = relief.at(placed)
    distance = np.where(known, (placed[:, 0] - depth) / np.sqrt(1 + (slopes**2).sum(axis=0)), np.nan)
    near = np.abs(distance) < search.bounds[1]
    if near.sum() < _FEW:
        return -1.0
    both = np.column_stack([placed[near, 0], depth[near]])
    y, z = placed[near, 1:].T / 0.06
    columns = np.column_stack([np.ones_like(y), y, z, y * y, y * z, z * z])
    detail = both - columns @ np.linalg.lstsq(columns, both)[0]
    cloud, made = np.maximum(np.linalg.norm(detail, axis=0), 1e-12)
    return float(weights(distance, search.bounds[-1]).sum() * detail[:, 0] @ detail[:, 1] / (cloud * made))


def _symmetric(sample: Floats, pose: Floats, search: Search) -> Floats:
    """The pose whose plane z = 0 mirrors the face onto itself best, by iterated closest points.

    Yaw, roll and the shift sideways change; a mirror says nothing of the others.
    """
    mirror = np.array([1.0, 1.0, -1.0])
    around = sample[np.linalg.norm(sample @ pose[:3, :3].T + pose[:3, 3], axis=1) < search.reach + 0.01]
    normals = _normals(around)
    for _ in range(10):
        placed, turned = around @ pose[:3, :3].T + pose[:3, 3], normals @ pose[:3, :3].T
        near = np.linalg.norm(placed, axis=1) < search.reach
        placed, turned = placed[near], turned[near]
        if len(placed) < _FEW:
            break
        distances, indices = nearest(placed, placed * mirror, 1)
        away, partner = distances[:, 0], indices[:, 0]
        normal, other = turned[partner], placed[partner]
        gap = ((placed * mirror - other) * normal).sum(axis=1)
        weight = weights(away, 0.01)
        lever = np.cross(placed, normal * mirror) - np.cross(other, normal)
        across = (normal * (mirror - 1))[:, 2]
        columns = np.column_stack([lever[:, :2], across]) * weight[:, None]
        yaw, roll, shift = np.linalg.lstsq(columns, -gap * weight)[0]
        pose = _motion(np.array([yaw, roll, 0.0]), np.array([0.0, 0.0, shift])) @ pose
    return pose


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
