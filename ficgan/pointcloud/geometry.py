"""What two clouds have in common in 3D: registration, identity by shape; and pictures of them.

Metres. Pictures are by the thesis' orthographic projection (§4.3.2), with light on clouds without colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Floats, Points, moved, pca_normals, relief, rigid
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


# -- identity by the shape of the upper face --------------------------------------------------------------------------

UPPER = (-0.02, 0.07)  # lowest and highest y of what expressions move least: nose, eyes and forehead; canonical frame
HALF = 0.05  # largest |z| of it
BEHIND = 0.08  # no point with x below −this belongs to it
_FEWEST = 30  # points of it
_STEP_WIDTH = 0.0025  # of the grid over it
_SMOOTH = 0.004  # standard deviation of the weights by which points around a node are averaged, at least
# y and z of the nodes [rows (upwards), columns (to the person's right), 2].
_AXES = [np.arange(low, high + _STEP_WIDTH / 2, _STEP_WIDTH) for low, high in (UPPER, (-HALF, HALF))]
_GRID = np.stack(np.meshgrid(*_AXES, indexing="ij"), axis=2)
# What tells people by shape without any training, and how many numbers each is.
DESCRIPTIONS = {"depth": _GRID.size // 2, "normals": _GRID.size // 2 * 3}


def describe(cloud: Cloud) -> dict[str, NDArray[np.float32]]:
    """The relief of the upper face of a cloud in the canonical frame, millimetres, and the normals of the relief.

    The normals tell more of noses and brows than of how wide a face is.
    """
    margin = 4 * _SMOOTH
    x, y, z = cloud.points.T
    inside = (y >= UPPER[0] - margin) & (y <= UPPER[1] + margin)
    inside &= (np.abs(z) <= HALF + margin) & (x >= -BEHIND - margin)
    if inside.sum() < _FEWEST:
        raise InputError("there are hardly points where nose, eyes and forehead are in the canonical frame")
    near, nodes = cloud.points[inside], _GRID.reshape(-1, 2)
    count = min(24, len(near))
    distances, index = cKDTree(near[:, 1:]).query(nodes, count)
    width = np.maximum(_SMOOTH, distances[:, min(3, count - 1)])
    weights = np.exp(-0.5 * (distances / width[:, None]) ** 2)
    depth = (weights * near[index, 0]).sum(axis=1) / weights.sum(axis=1)
    tilt = np.column_stack([np.ones(len(nodes)), nodes])
    depth = (depth - tilt @ np.linalg.lstsq(tilt, depth, rcond=None)[0]).reshape(_GRID.shape[:2])
    up, right = np.gradient(depth, _STEP_WIDTH)
    normals = np.stack([np.ones_like(up), -up, -right])
    normals /= np.linalg.norm(normals, axis=0)
    return {"depth": (1000 * depth).astype(np.float32).ravel(), "normals": normals.astype(np.float32).ravel()}


# -- pictures: light, chosen by the scores of YuNet, a detector, on twelve scans without colours ----------------------

Picture = NDArray[np.uint8]
# Direction of the lamp in the canonical frame: in front of and above the face.
LAMP = np.array([1.0, 0.6, 0.0]) / np.linalg.norm([1.0, 0.6, 0.0])
AMBIENT = 0.2  # share of the light that comes from everywhere
# How much a point `DEEP` metres behind the smoothed face is darkened, as an exponent; it may double, no more.
CAVITY, DEEP = 0.3, 0.003
REACH = 0.008  # metres; standard deviation of the Gaussian that smooths the face
SKIN = (224, 186, 160)  # RGB of fully lit skin
NEIGHBOURS = 20  # of a point, for its normal
CELL = 0.002  # metres; of the relief that cavities are read from
WIDEST = 8.0  # metres of a cloud; its relief then has 16 million cells


def shaded(cloud: Cloud) -> Cloud:
    """The cloud coloured as skin that a lamp shines on (Lambert's cosine law), darker in cavities."""
    if len(cloud) and (wide := float(np.ptp(cloud.points, axis=0).max())) > WIDEST:
        raise InputError(f"the cloud is {wide:.3g} m wide, too wide to be lit; remove stray points, or check its unit")
    normals = pca_normals(cloud.points, neighbours=NEIGHBOURS)
    light = AMBIENT + (1 - AMBIENT) * np.clip(normals @ LAMP, 0, 1)
    light = np.minimum(light * np.exp(-CAVITY * np.clip(-_in_front(cloud.points) / DEEP, -0.3, 2)), 1)
    return Cloud(cloud.points, np.round(light[:, None] * np.array(SKIN, np.float64)).astype(np.uint8))


def _in_front(points: Floats) -> Floats:
    """[N] metres by which points lie in front of the face smoothed over `REACH`, seen along x."""
    cells = np.floor((points[:, 1:] - points[:, 1:].min(axis=0) + 3 * REACH) / CELL).astype(np.intp)
    rows, columns = (cells.max(axis=0) + 3 * REACH / CELL + 2).astype(int).tolist()
    return points[:, 0] - relief(cells, points[:, 0], (rows, columns), REACH / CELL, 0.0)[tuple(cells.T)]


# -- the projection ---------------------------------------------------------------------------------------------------

THESIS_SIZE = (389, 515)  # width and height, pixels
LIMITS = (0.18, 0.25)  # metres from the nose tip to the side and to the upper edge of the drawn area
# The drawn area fills the same pixels as in a tight matplotlib figure. Of matplotlib's 640×480 pixels the axes take
# 496×369.6 from (80, 52.8). The tight box begins 10 pixels outside them and is cut to whole pixels. Of 516 the thesis
# has 515; the lost one is the upper edge, once turned. Middle and half size, pixels from the upper left edge:
_MIDDLE, _HALF = np.array([194.2, 257.0]), np.array([369.6 / 2, 496 / 2])
_PIXELS_PER_POINT = 100 / 72  # at matplotlib's 100 dots per inch
_LINE_WIDTH = 1.0  # points; matplotlib draws a line of this width around a marker, half of it outside
SAMPLES = 2  # cells per pixel in each direction


def project(cloud: Cloud, *, point_size: float = 25.0, order: Literal["y", "x"] = "y", yaw: float = 0.0) -> Picture:
    """The front view [515,389,3] uint8 RGB of a canonical face, along −z and −y (thesis, §4.3.2, eq. 4.3), on white.

    Args:
        cloud: without colours it is shaded first.
        point_size: marker area, points² (thesis: 25, and up to 60 for sparse results).
        order: what is drawn last lies on top: "y", the highest; "x", the nearest.
        yaw: degrees about the upright axis through the nose tip; above 0 towards the viewer's right.
    """
    cloud.need(1, "a picture")
    if cloud.colors is None:
        cloud = shaded(cloud)
    if yaw:
        s, c = np.sin(np.radians(yaw)), np.cos(np.radians(yaw))
        cloud = cloud.moved(rigid(np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]), np.zeros(3)))
    assert cloud.colors is not None
    sequence = np.argsort(cloud.points[:, 1 if order == "y" else 0], kind="stable")
    (left, top), (right, bottom) = (np.floor(_MIDDLE + way * _HALF + 0.5).astype(int).tolist() for way in (-1, 1))
    places = _MIDDLE - 0.5 - cloud.points[:, [2, 1]] * (_HALF / LIMITS) - (left, top)
    radius = float((np.sqrt(point_size) + _LINE_WIDTH) / 2 * _PIXELS_PER_POINT)
    picture = np.full((THESIS_SIZE[1], THESIS_SIZE[0], 3), 255, np.uint8)
    # Matplotlib clips to whole pixels.
    picture[top:bottom, left:right] = splat(
        places[sequence], cloud.colors[sequence], radius, (right - left, bottom - top), SAMPLES
    )
    return picture


def splat(places: NDArray[np.floating], colors: Picture, radius: float, size: tuple[int, int], samples: int) -> Picture:
    """Draw points as filled discs on white, each over all that come before it: [height,width,3] RGB.

    Places [N,2] are columns and rows, pixel centres at integers; those outside of the size (width, height) are cut.
    Edges are blended over samples² cells of a pixel.
    """
    width, height = size
    # A cell's centre lies at (index + .5)/samples − .5 pixels.
    cells = np.floor((np.asarray(places, np.float64) + 0.5) * samples)
    margin = int(radius * samples)
    ranks = np.flatnonzero(((cells >= -margin) & (cells < np.array(size) * samples + margin)).all(axis=1))
    columns, rows = (cells[ranks] + margin).astype(np.intp).T
    # 1 + the row of the last point in each cell; 0: none.
    kind = np.uint16 if len(places) < 2**16 - 1 else np.float64  # that OpenCV dilates
    last = np.zeros((height * samples + 2 * margin, width * samples + 2 * margin), kind)
    np.maximum.at(last, (rows, columns), (ranks + 1).astype(kind))
    across = np.arange(-margin, margin + 1) ** 2
    disc = (across[:, None] + across <= (radius * samples) ** 2).astype(np.uint8)
    last = cv2.dilate(last, disc)[margin : margin + height * samples, margin : margin + width * samples]
    palette = np.vstack([np.full((1, 3), 255, np.uint8), colors])
    blocks = np.take(palette, last.astype(np.intp), axis=0).reshape(height, samples, width, samples, 3)
    total = np.zeros((height, width, 3), np.uint16)
    for row, column in np.ndindex(samples, samples):
        total += blocks[:, row, :, column]
    return ((total + samples**2 // 2) // samples**2).astype(np.uint8)
