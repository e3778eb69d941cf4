"""The canonical frame of a face: found in any orientation, or given by landmarks, and what makes it doubtful. Metres.

A face is found in three stages. 1. Proposals: strong peaks as nose tips, in many orientations. 2. Fit: the poses that
agree best with the relief x = T(y, z) of the mean face are refined, then corrected by the person's own symmetry.
3. Score: how like a face the result is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.sparse import coo_array, csr_array, eye_array
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud import cloud as clouds
from ficgan.pointcloud.cloud import Cloud, Floats, Points, closest, moved, pca_normals, rigid
from ficgan.pointcloud.face import FaceLandmarks, face_mesh, landmark_frame, need_on_cloud

Mask = NDArray[np.bool_]

FEWEST = 500  # points a cloud must have to be taken for a face
CONVINCING = 0.6  # likeness below which no face is claimed
SURE = 0.7  # likeness below which a face is doubtful, and above which no other size is tried
USUAL = (0.6, 1.35)  # sizes, in usual faces, beyond which a face is doubtful; children's are smaller by up to a third
POSSIBLE = (0.4, 1.6)  # sizes beyond which a face is refused: of a larger one, much would lie outside the sphere
UNCOVERED = 0.1  # part of the points in front that may lie outside the sphere about the nose tip
# Metres along x, y and z: a face seen from the front, and what may be above it.
_FRONT = np.array([[-0.06, 0.1], [-0.08, np.inf], [-0.1, 0.1]])
_AROUND = 0.14  # metres from the nose tip within which there is no other face


@dataclass(frozen=True)
class Placed:
    """A cloud in the canonical frame."""

    cloud: Cloud  # there
    transform: Floats  # [4,4], from the frame it came in
    how: str  # "landmarks", "automatic", or "given"
    likeness: float = 1.0  # to a face, 0…1, see `face_likeness`
    size: float = 1.0  # of the face, in usual ones
    doubts: tuple[str, ...] = ()  # sentences, each a reason why the frame or the scale may be wrong
    duplicates: int = 0  # points of the cloud that lay exactly on others, and are no longer in it


def canonical(cloud: Cloud, landmarks: FaceLandmarks | None = None) -> Placed:
    """Bring a cloud into the canonical frame, see `Cloud` (thesis, §4.1.4.2).

    Args:
        cloud: metres, in any frame, with the nose and its surroundings.
        landmarks: of the face; None: it is looked for.

    Raises:
        InputError: there is no face, the landmarks do not fit, or the size is no person's.
    """
    cloud, duplicates = clouds.without_duplicates(cloud)
    cloud.need(FEWEST, "a face" + (f" ({duplicates} that lie exactly on others do not count)" if duplicates else ""))
    clouds.check_size(cloud)
    if landmarks is not None:
        need_on_cloud(landmarks, cloud)
        transform, how, size = landmark_frame(landmarks), "landmarks", landmarks.size
        there = cloud.moved(transform)
        likeness = face_likeness(there.points)
    else:
        transform, likeness = find_face(cloud.points)
        if likeness < CONVINCING:
            raise InputError(
                f"no face was found in the cloud (likeness {likeness:.2f}, at least {CONVINCING} is needed); "
                "give --landmarks, or a cloud in which the nose and its surroundings can be seen"
            )
        there, how = cloud.moved(transform), "automatic"
        size = face_size(there.points)
    wrong, doubts = f"the face is {size:.2g} times as large as a usual one: check the scan's unit and scale", []
    if not POSSIBLE[0] <= size <= POSSIBLE[1]:
        raise InputError(wrong)
    if how == "automatic" and likeness < SURE:
        doubts.append("the face was found with little certainty: look at the result, or give landmarks")
    if not USUAL[0] <= size <= USUAL[1]:
        doubts.append(wrong)
    front = there.points[((there.points >= _FRONT[:, 0]) & (there.points <= _FRONT[:, 1])).all(axis=1)]
    outside = float((np.linalg.norm(front, axis=1) > _AROUND).mean()) if len(front) else 0.0
    if outside > UNCOVERED:
        doubts.append(f"{outside:.0%} of what is in front is farther than 14 cm from the nose tip: look at the result")
    return Placed(there, transform, how, likeness, size, tuple(doubts), duplicates)


def has_other_face(placed: Placed) -> bool:
    """Whether what lies farther than 14 cm from the nose tip has a face of its own."""
    rest = placed.cloud.points[np.linalg.norm(placed.cloud.points, axis=1) > _AROUND]
    try:
        return len(rest) >= FEWEST and find_face(rest, sizes=(1.0,)).likeness >= CONVINCING
    except InputError:
        return False


# -- finding a face ---------------------------------------------------------------------------------------------------

SIZES = (1.0, 0.75, 1.25)  # of the face, in usual ones, tried in turn until one is surely a face
_SIZE_LIMITS = (0.3, 2.6)  # sizes that are measured
_FEW = 50  # points below which nothing is fitted

# Proposals.
_COARSE = 0.006  # side of the cubes that the cloud is thinned by
_MOST = 80_000  # points after thinning; the cubes of larger clouds are larger
_PEAK = 0.025  # radius over which a point's protrusion is measured
_TIP = 0.009  # radius over which protrusion is averaged, against noise
_CROWD = 10  # points within `_PEAK`; fewer are strays and no peak
_PEAKS, _SHARE = (16, 60), 400  # least and most peaks; between them one for every 400 points
_ROLLS, _NODS = 24, (-30.0, 0.0, 30.0)  # orientations about the direction of a peak; nods, degrees
_ROLLS_KEPT = 3  # of the rolls about one peak

# Fit.
_REACH = 0.075  # distance from the nose tip up to which points are compared with the relief
_FINE = 0.003  # side of the cubes that the surroundings of the last candidates are thinned by
_FITTED, _POSES_KEPT = 20, 2  # poses that are refined; different ones among which likeness decides
_BOUNDS, _STEPS = (0.03, 0.015, 0.01), 5  # residuals beyond which a point counts no more; refinements for each

# Score.
_CELL = 0.002  # side of a cell of the relief's grid
_LOW, _HIGH = np.array([-0.065, -0.06]), np.array([0.075, 0.06])
_SHAPE: tuple[int, int] = tuple((np.rint((_HIGH - _LOW) / _CELL).astype(int) + 1).tolist())
_BLUR = 2.0  # cells over which reliefs are smoothed before they are compared: noise goes; eyes, nose and lips stay
_NEAR = 0.025  # distance from the usual face within which a point may be of the skin
_MIDDLE, _WIDTH = np.array([0.008, 0.0]), np.array([0.03, 0.026])  # where, in (y, z), likeness looks: eyes, nose, mouth
_FEWEST_CELLS = 100


class FoundCloudFace(NamedTuple):
    """A face that was found."""

    transform: Floats  # [4,4], the cloud's frame → the canonical one
    likeness: float  # to a face, 0…1


def find_face(points: Points, sizes: Sequence[float] = SIZES) -> FoundCloudFace:
    """The most face-like place of a cloud [N,3]; InputError where nothing protrudes."""
    centre = np.median(points, axis=0)
    centred = points - centre  # far from the origin squares of coordinates would have no digits left for a face
    best = FoundCloudFace(np.eye(4), -1.0)
    for size in sizes:
        for pose in _poses(centred / size):
            found = _finished(centred / size, pose, _FINE)
            if found.likeness > best.likeness:
                turn, shift = found.transform[:3, :3], found.transform[:3, 3]
                best = FoundCloudFace(rigid(turn, size * shift - turn @ centre), found.likeness)
        if best.likeness >= SURE:
            break
    if best.likeness < 0:
        raise InputError("no point of the cloud protrudes as a nose does; give --landmarks")
    return best


def face_size(placed: Points) -> float:
    """How large a face [N,3] in the canonical frame is, in usual ones: the size at which it is most like a face."""
    near = placed[np.linalg.norm(placed, axis=1) < _SIZE_LIMITS[1] * (_REACH + _PEAK)]
    if len(near) < _FEW:
        return 1.0
    near = _thinned(near, _COARSE / 2)
    step = np.log(1.2)

    @lru_cache(None)
    def likeness(at: int) -> float:
        return _finished(near / np.exp(step * at), np.eye(4), _COARSE).likeness

    steps = range(int(np.log(_SIZE_LIMITS[0]) / step), int(np.log(_SIZE_LIMITS[1]) / step) + 1)
    at = max((0, -2, 2, 4), key=likeness)  # from size 1 alone the search may stop at a lesser summit
    while at in steps and (best := max((at, at - 1, at + 1), key=likeness)) != at:
        at = best
    low, middle, high = (likeness(at + offset) for offset in (-1, 0, 1))
    bend = low - 2 * middle + high  # a parabola through three sizes has its top between them
    return float(np.clip(np.exp(step * (at + (0.5 * (low - high) / bend if bend < 0 else 0.0))), *_SIZE_LIMITS))


def _thinned(points: Points, cell: float) -> Points:
    while len(found := clouds.voxels(points, cell, points.min(axis=0))[1]) > _MOST:
        cell *= 1.5
    return found


# Stage 1: proposals.


def _poses(points: Points) -> list[Floats]:
    coarse = _thinned(points, _COARSE)
    proposals: list[tuple[float, Floats, Points]] = []
    for tip, outward in _peaks(coarse):
        near = coarse[np.linalg.norm(coarse - tip, axis=1) < _REACH + _PEAK]
        proposals += [(support, pose, near) for support, pose in _rolled(near, tip, outward)]
    best = sorted(proposals, key=lambda proposal: -proposal[0])[:_FITTED]
    fits = [(_fitted(near, pose), near) for _, pose, near in best]
    kept: list[Floats] = []
    for pose, _ in sorted(fits, key=lambda fit: -_agreement(fit[1], fit[0])):
        if len(kept) < _POSES_KEPT and not any(_same(pose, other) for other in kept):
            kept.append(pose)
    return kept


def _peaks(sample: Points) -> list[tuple[Floats, Floats]]:
    """Points that protrude most, and the directions in which they do."""
    pairs = cKDTree(sample).query_pairs(_PEAK, output_type="ndarray")
    close = np.linalg.norm(sample[pairs[:, 0]] - sample[pairs[:, 1]], axis=1) < _TIP
    near, beside = _adjacency(pairs, len(sample)), _adjacency(pairs[close], len(sample))
    count = near.sum(axis=1)[:, None]
    products = (sample[:, :, None] * sample[:, None, :]).reshape(-1, 9)
    mean, second = near @ sample / count, near @ products / count
    spread = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    normals = np.linalg.eigh(spread)[1][:, :, 0]
    height = (beside @ (sample - mean) / beside.sum(axis=1)[:, None] * normals).sum(axis=1)
    outward = normals * np.sign(height)[:, None]
    height = np.where(count[:, 0] >= _CROWD, np.abs(height), 0.0)
    wanted = int(np.clip(len(sample) // _SHARE, *_PEAKS))
    found: list[int] = []
    for row in np.argsort(-height):
        if len(found) == wanted or height[row] == 0:
            break
        if all(np.linalg.norm(sample[row] - sample[other]) > 0.6 * _PEAK for other in found):
            found.append(int(row))
    return [(sample[row], outward[row]) for row in found]


def _adjacency(pairs: NDArray[np.intp], count: int) -> csr_array:
    """[N,N], 1 where two points are a pair, or the same."""
    near = coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count))
    return (near + near.T + eye_array(count)).tocsr()


def _rolled(sample: Points, tip: Floats, outward: Floats) -> list[tuple[float, Floats]]:
    """The best poses with a nose tip there that points outwards, and how many points agree with each."""
    near = sample[np.linalg.norm(sample - tip, axis=1) < _REACH] - tip
    rolls = Rotation.from_euler("x", np.arange(_ROLLS)[:, None] * 360.0 / _ROLLS, degrees=True)
    nods = Rotation.from_euler("z", np.array(_NODS)[:, None], degrees=True)
    up = np.cross(outward, np.eye(3)[np.abs(outward).argmin()])
    up /= np.linalg.norm(up)
    facing = np.stack([outward, up, np.cross(outward, up)])
    rotations = np.stack([(nod * rolls).as_matrix() for nod in nods]) @ facing
    placed = near @ rotations.swapaxes(-1, -2)
    depth, _, known = _relief(placed)
    support = _weights(np.where(known, placed[..., 0] - depth, np.nan), _BOUNDS[1]).sum(axis=-1)
    nod, best = support.argmax(axis=0), support.max(axis=0)
    summits = np.flatnonzero((best >= np.roll(best, 1)) & (best > np.roll(best, -1)))
    summits = summits[np.argsort(-best[summits])][:_ROLLS_KEPT]
    return [(float(best[roll]), rigid(turn := rotations[nod[roll], roll], -turn @ tip)) for roll in summits]


def _same(pose: Floats, other: Floats) -> bool:
    between = pose @ np.linalg.inv(other)
    return bool(np.linalg.norm(between[:3, 3]) < 0.02 and np.trace(between[:3, :3]) > 1 + 2 * np.cos(np.radians(25)))


# Stage 2: fit.


def _finished(points: Points, pose: Floats, cell: float) -> FoundCloudFace:
    near = points[np.linalg.norm(moved(points, pose), axis=1) < _REACH + _PEAK]
    if len(near) < _FEW:
        return FoundCloudFace(pose, 0.0)
    sample = _thinned(near, cell)
    pose = _tip_at_origin(near, _symmetric(sample, _fitted(sample, pose)))
    return FoundCloudFace(pose, face_likeness(moved(near, pose)))


def _fitted(sample: Points, pose: Floats) -> Floats:
    """The pose after robust point-to-plane steps onto the relief."""
    for bound in _BOUNDS:
        for _ in range(_STEPS):
            placed = _within_reach(sample, pose)
            depth, slopes, known = _relief(placed)
            gradient = np.column_stack([np.ones(len(placed)), *(-slopes)])[known]
            length = np.linalg.norm(gradient, axis=1)
            distance = (placed[:, 0] - depth)[known] / length
            weight = _weights(distance, bound)
            gradient /= length[:, None]
            columns = np.hstack([np.cross(placed[known], gradient), gradient]) * weight[:, None]
            if len(columns) < _FEW:
                break
            damping = 1e-6 * len(columns) * np.diag([1e-3, 1e-3, 1e-3, 1.0, 1.0, 1.0])
            motion = np.linalg.solve(columns.T @ columns + damping, columns.T @ (-distance * weight))
            pose = rigid(Rotation.from_rotvec(motion[:3]).as_matrix(), motion[3:]) @ pose
    return pose


def _agreement(sample: Points, pose: Floats) -> float:
    placed = _within_reach(sample, pose)
    depth, slopes, known = _relief(placed)
    distance = np.where(known, (placed[:, 0] - depth) / np.sqrt(1 + (slopes**2).sum(axis=0)), np.nan)
    near = np.abs(distance) < _BOUNDS[1]
    if near.sum() < _FEW:
        return -1.0
    detail = _without_bowl(np.column_stack([placed[near, 0], depth[near]]), placed[near, 1:] / 0.06)
    return float(_weights(distance, _BOUNDS[-1]).sum() * _correlation(*detail.T))


def _symmetric(sample: Points, pose: Floats) -> Floats:
    """The pose in which the face is most like its own mirror image."""
    mirror = np.array([1.0, 1.0, -1.0])
    around = sample[np.linalg.norm(moved(sample, pose), axis=1) < _REACH + 0.01]
    if len(around) < _FEW:
        return pose
    normals = pca_normals(around, neighbours=16)
    for _ in range(10):
        placed, turned = moved(around, pose), normals @ pose[:3, :3].T
        near = np.linalg.norm(placed, axis=1) < _REACH
        placed, turned = placed[near], turned[near]
        if len(placed) < _FEW:
            break
        away, partner = closest(placed, placed * mirror)
        normal, other = turned[partner], placed[partner]
        gap = ((placed * mirror - other) * normal).sum(axis=1)
        weight = _weights(away, 0.01)
        lever = np.cross(placed, normal * mirror) - np.cross(other, normal)
        across = (normal * (mirror - 1))[:, 2]
        columns = np.column_stack([lever[:, :2], across]) * weight[:, None]
        yaw, roll, shift = np.linalg.lstsq(columns, -gap * weight)[0]
        pose = rigid(Rotation.from_rotvec([yaw, roll, 0.0]).as_matrix(), np.array([0.0, 0.0, shift])) @ pose
    return pose


def _tip_at_origin(points: Points, pose: Floats) -> Floats:
    for reach in (0.03, 0.015):
        placed = moved(points, pose)
        near = placed[(np.abs(placed[:, 2]) < 0.004) & (np.linalg.norm(placed, axis=1) < reach)]
        if not len(near):
            break
        tip = near[clouds.mean_of_neighbours(near, near[:, :1], min(8, len(near))).argmax()]
        pose = rigid(np.eye(3), -np.array([tip[0], tip[1], 0.0])) @ pose
    return pose


def _within_reach(sample: Points, pose: Floats) -> Points:
    placed = moved(sample, pose)
    return placed[np.linalg.norm(placed, axis=1) < _REACH]


def _weights(distance: Floats, scale: float) -> Floats:
    return np.where(np.abs(distance) < scale, 1 - (distance / scale) ** 2, 0.0)


# Stage 3: score.


class MeanRelief(NamedTuple):
    """The embedded model's mean face as x over a grid of (y, z), metres, NaN where there is no face."""

    depth: Floats  # [Y,Z]
    slopes: Floats  # [2,Y,Z], along y and z
    smooth: Floats  # [Y,Z], the depth smoothed over `_BLUR`
    weight: Floats  # [Y,Z], of each cell in the likeness


@lru_cache(maxsize=1)
def _mean_face() -> MeanRelief:
    face, places = face_mesh()[0], _places(np.ones(_SHAPE, bool))
    x = np.asarray(LinearNDInterpolator(face[:, 1:], face[:, 0])(places).reshape(_SHAPE), np.float64)
    depth, smooth = clouds.blurred(x, 0.7), clouds.blurred(x, _BLUR)
    slopes = np.stack([np.gradient(depth, _CELL, axis=axis) for axis in (0, 1)])
    weight = np.exp(-(((places - _MIDDLE) / _WIDTH) ** 2).sum(axis=1)).reshape(_SHAPE)
    depth = np.where(np.isfinite(slopes).all(axis=0), depth, np.nan)
    return MeanRelief(depth, np.nan_to_num(slopes), smooth, np.where(np.isfinite(smooth), weight, 0.0))


def _relief(points: Floats) -> tuple[Floats, Floats, Mask]:
    """For points [...,3]: depth [...] and slopes [2,...] of the mean face, and whether they are known there."""
    place, top, mean = (points[..., 1:] - _LOW) / _CELL, np.array(_SHAPE) - 1, _mean_face()
    cells = np.clip(np.rint(place), 0, top).astype(np.intp)
    row, column = cells[..., 0], cells[..., 1]
    depth, slopes = mean.depth[row, column], mean.slopes[:, row, column]
    known = ((place >= 0) & (place <= top)).all(axis=-1) & np.isfinite(depth)
    offset = (place - cells) * _CELL
    return depth + slopes[0] * offset[..., 0] + slopes[1] * offset[..., 1], slopes, known


def face_likeness(placed: Floats) -> float:
    """How like a face points [N,3] in the canonical frame are, 0…1.

    The likeness is a product: the correlation with the relief about eyes, nose and mouth, less what a bowl explains;
    the part of these with points on it; the correlation with the mirror image; and the fourth root of the ratio of
    sizes.
    """
    depth, _, known = _relief(placed)
    near = known & (np.abs(placed[:, 0] - depth) < _NEAR)
    skin = placed[near]
    relief = clouds.relief(np.rint((skin[:, 1:] - _LOW) / _CELL).astype(int), skin[:, 0], _SHAPE, _BLUR)
    _, _, face, weight = _mean_face()
    on = np.isfinite(relief) & (weight > 0.02)
    if on.sum() < _FEWEST_CELLS:
        return 0.0
    depths = np.stack([relief[on], face[on]], axis=1)
    detail, mean = _without_bowl(depths, _places(on) / _HIGH, weight[on]).T
    mirror = np.zeros(_SHAPE)
    mirror[on] = detail
    alike, even = _correlation(detail, mean), _correlation(detail, mirror[:, ::-1][on])
    small, large = sorted((float(np.linalg.norm(detail)), float(np.linalg.norm(mean))))
    covered = weight[on].sum() / weight[weight > 0.02].sum()
    return float(max(alike, 0.0) * covered * max(even, 0.0) * (small / large) ** 0.25)


def _places(cells: Mask) -> Floats:
    """(y, z) of cells [K,2]."""
    return _LOW + _CELL * np.argwhere(cells)


def _without_bowl(depths: Floats, places: Floats, weight: Floats | None = None) -> Floats:
    """What is left of depths [K,C] at places [K,2] after the best quadric, times the root of the weights [K]."""
    y, z = places.T
    root = np.ones((len(y), 1)) if weight is None else np.sqrt(weight)[:, None]
    bowl = np.column_stack([np.ones_like(y), y, z, y * y, y * z, z * z]) * root
    return np.asarray(depths * root - bowl @ np.linalg.lstsq(bowl, depths * root)[0], np.float64)


def _correlation(first: Floats, second: Floats) -> float:
    return float(first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-18))
