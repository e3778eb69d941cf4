"""A face as it is known beforehand: its landmarks and the frame they define, the mean face, and made heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.ndimage import map_coordinates
from scipy.spatial.distance import pdist

from ficgan import pretrained
from ficgan.anonymizers.base import generator
from ficgan.errors import InputError
from ficgan.frame import HI, LO, NUMBERS, Pose, Readings
from ficgan.frame.appearance import AppearanceModel, Moment
from ficgan.frame.file import load_appearance
from ficgan.pointcloud.cloud import Cloud, Points, blurred, closest, moved, rigid, sample_surface

# What follows a cloud's name, without its suffix, in the name of the file of its landmarks.
LANDMARK_ENDINGS = ("_landmarks_mm.txt", ".landmarks.txt")
FARTHEST = 0.01  # metres from the cloud beyond which a landmark is not on it
_UNITS = (1.0, 0.001)  # metres and millimetres
_EYES_APART = (0.03, 0.2)  # metres between the outer points of the eyes that a face may have
# Usual metres between every two of the five, in the order of SciPy's `pdist`.
_DISTANCES = np.array([0.064, 0.055, 0.067, 0.090, 0.055, 0.090, 0.067, 0.048, 0.048, 0.050])
_RATIOS = (0.5, 1.6)  # shares of the usual distance that a face may have

# Of the 68 points: outer and inner corners of the eye on the viewer's left, then right; nose tip; corners of the mouth.
_EYE_CORNERS = ((36, 39), (45, 42))
_NOSE_TIP, _MOUTH_CORNERS = 30, (48, 54)
_PAIRS_68 = np.array(
    [(i, 16 - i) for i in range(8)]
    + [(i, 43 - i) for i in range(17, 22)]
    + [(31, 35), (32, 34)]
    + [(36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46)]
    + [(48, 54), (49, 53), (50, 52), (59, 55), (58, 56), (60, 64), (61, 63), (67, 65)]
)


@dataclass(frozen=True)
class FaceLandmarks:
    """Named points of a face, metres."""

    five: Points  # [5,3]: eye on the viewer's left, eye on the viewer's right, nose tip, mouth corners likewise
    right: Points  # [P,3]: points of the person's right half
    left: Points  # [P,3]: their mirror points

    @property
    def size(self) -> float:
        """Of the face, in usual ones: the median over the pairs of the five. Twelve scans have .93 to 1.06."""
        return float(np.median(pdist(self.five) / _DISTANCES))

    @classmethod
    def of_points(cls, points: Points, what: str = "the landmarks") -> FaceLandmarks:
        """Of 5 points as in `five`, or 68 or 70 in the usual order, in metres or millimetres."""
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3 or len(points) not in (5, 68, 70) or not np.isfinite(points).all():
            raise InputError(f"{what} are {list(points.shape)} numbers; give 5 or 68 points of 3 finite coordinates")
        eyes = (0, 1) if len(points) == 5 else (_EYE_CORNERS[0][0], _EYE_CORNERS[1][0])
        apart = float(np.linalg.norm(points[eyes[0]] - points[eyes[1]]))
        unit = next((unit for unit in _UNITS if _EYES_APART[0] <= apart * unit <= _EYES_APART[1]), None)
        if unit is None:
            raise InputError(f"{what} set the eyes {apart:.4g} apart, neither in metres nor in millimetres a face")
        points = points * unit
        if len(points) == 5:
            return cls(points, points[[0, 3]], points[[1, 4]])
        eye_centres = [points[list(corners)].mean(axis=0) for corners in _EYE_CORNERS]
        five = np.stack([*eye_centres, points[_NOSE_TIP], points[_MOUTH_CORNERS[0]], points[_MOUTH_CORNERS[1]]])
        return cls(five, points[_PAIRS_68[:, 0]], points[_PAIRS_68[:, 1]])


def read_landmarks(path: Path | str) -> FaceLandmarks:
    """Landmarks of a file: one point a line, coordinates separated by spaces or commas."""
    try:
        points = np.loadtxt(Path(path).read_text(encoding="utf-8").replace(",", " ").splitlines(), ndmin=2)
        points = points.reshape(-1, 3)
    except (OSError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        raise InputError(f"{path}: the landmarks cannot be read ({error}); give three numbers a line") from None
    return FaceLandmarks.of_points(points, f"{path}: the landmarks")


def landmark_file_beside(cloud: Path) -> Path | None:
    """The first existing file of a cloud's landmarks, by `LANDMARK_ENDINGS`, or None."""
    candidates = (cloud.with_name(cloud.stem + ending) for ending in LANDMARK_ENDINGS)
    return next((path for path in candidates if path.is_file()), None)


def need_on_cloud(landmarks: FaceLandmarks, cloud: Cloud) -> None:
    """Refuse landmarks of another cloud: distances as in no face, or points too far off."""
    share = pdist(landmarks.five) / _DISTANCES
    away = closest(cloud.points, np.concatenate([landmarks.five, landmarks.right, landmarks.left]))[0]
    if away[:5].max() > FARTHEST or np.median(away) > FARTHEST:
        raise InputError(f"the landmarks lie up to {away.max():.3g} m from the cloud; give those of this cloud")
    if share.min() < _RATIOS[0] or share.max() > _RATIOS[1]:
        raise InputError("the landmarks are as far apart as in no face; check where the points lie, and their order")


def landmark_frame(landmarks: FaceLandmarks) -> Points:
    """The rigid motion [4,4] to the canonical frame that landmarks define.

    +z is the mean direction from points of the person's left half to their mirror points, +y goes from the mouth to the
    eyes, +x is the remaining axis, the nose tip the origin.
    """
    five = landmarks.five
    sideways = (landmarks.right - landmarks.left).sum(axis=0)
    upwards = five[:2].mean(axis=0) - five[3:].mean(axis=0)
    across = np.cross(upwards, sideways)
    if np.linalg.norm(across) < 1e-3 * np.linalg.norm(upwards) * np.linalg.norm(sideways) or not across.any():
        raise InputError("the landmarks' eyes and mouth lie in one line; check the points")
    z = sideways / np.linalg.norm(sideways)
    x = across / np.linalg.norm(across)
    rotation = np.stack([x, np.cross(z, x), z])
    if rotation[0] @ (five[2] - five[[0, 1, 3, 4]].mean(axis=0)) <= 0:
        raise InputError("the landmarks' nose tip lies behind eyes and mouth: left and right may be exchanged")
    return rigid(rotation, -rotation @ five[2])


# -- the mean face, and made heads ------------------------------------------------------------------------------------

NEUTRAL = np.zeros(0)  # the mean in everything
METRES = 0.00137  # in one unit of the model's frame, so that the mean face's eyes are 62 mm apart
# Numbers of expression of a smile, standard deviations.
_SMILE = {"mouth width": 2.0, "mouth corners": 2.0, "lids": -0.5}
_SPREAD = 1.2  # standard deviations of what is drawn, against the model's people
_NOISE = 0.0001  # standard deviation of a point along each axis, metres
_STEP = 0.0015  # metres between the nodes of a surface
_SOFT = 1.2  # nodes over which a surface is smoothed: the mesh has edges
# Of the skull: y and z of its middle; half its height and width; x of its rim. Metres.
_SKULL = (np.array([0.012, 0.0]), np.array([0.135, 0.083]), -0.1)


@dataclass(frozen=True)
class MadeHead:
    """A made head, as if scanned: cloud with colours, and landmarks [5,3], in the canonical frame, metres."""

    cloud: Cloud
    landmarks: Points


def made_head(seed: int = 0, *, smiling: bool = False, points: int = 45_000, scan: int = 0) -> MadeHead:
    """A head of nobody, its nose tip at the origin: the mean face, moved along the model's shapes, on a plain skull.

    The seed says who it is; another `scan` gives other points, so many, of the same surface.
    """
    draw, model = generator("made head", seed), _model()
    code = (_SPREAD * draw.standard_normal((1, model.code_size))).astype(np.float32)
    numbers = np.array([[_SMILE.get(name, 0.0) if smiling else 0.0 for name in NUMBERS]], np.float32)
    face, five = face_mesh(code[0, : len(model.shape.basis)], numbers[0])
    nodes, triangles = _surface(face)
    rng = generator("scan of a made head", seed, scan)
    rows, weights = sample_surface(nodes, triangles, points, rng)
    spots = np.einsum("nc,ncd->nd", weights, nodes[rows])
    colors = _colors(model, code, numbers, face, spots[:, 1:])
    return MadeHead(Cloud(spots + _NOISE * rng.standard_normal(spots.shape), colors), five)


def face_mesh(
    identity: NDArray[np.floating] = NEUTRAL, numbers: NDArray[np.floating] = NEUTRAL
) -> tuple[Points, Points]:
    """A face of the model [468,3] and its five landmarks [5,3], metres, in the canonical frame.

    Its coefficients of shape and numbers of expression are standard deviations; those that are not given are 0.
    """
    shape = _model().shape
    mesh = shape.mean.astype(np.float64)
    for values, ways in ((identity, shape.basis), (numbers, shape.moves[1:])):
        mesh = mesh + np.tensordot(np.asarray(values, np.float64), ways[: len(values)], 1)
    mesh = mesh * METRES * [1.0, -1.0, -1.0]
    five = np.stack([mesh[[33, 133]].mean(0), mesh[[362, 263]].mean(0), mesh[4], mesh[61], mesh[291]])
    frame = landmark_frame(FaceLandmarks.of_points(five))
    return moved(mesh, frame), moved(five, frame)


@lru_cache(maxsize=1)
def _model() -> AppearanceModel:
    return load_appearance(pretrained.path("model"))[0]


def _surface(face: Points) -> tuple[Points, NDArray[np.intp]]:
    """The front of a head: nodes [N,3] of a grid over (y, z), and triangles [T,3] between them."""
    middle, half, back = _SKULL
    turn = np.arange(0, 2 * np.pi, np.pi / 24)
    rim = middle + half * np.column_stack([np.sin(turn), np.cos(turn)])
    shown = face[face[:, 0] > back]
    at = np.concatenate([shown[:, 1:], rim])
    grid = np.stack(np.meshgrid(*(np.arange(-h, h, _STEP) for h in half), indexing="ij"), -1) + middle
    depth = LinearNDInterpolator(at, np.concatenate([shown[:, 0], np.full(len(rim), back)]))(grid)
    soft = np.where(np.isfinite(depth), blurred(depth, _SOFT), np.nan)
    nodes = np.concatenate([soft[..., None], grid], axis=2)
    row = np.arange(depth.size).reshape(depth.shape)
    a, b, c, d = (part.ravel() for part in (row[:-1, :-1], row[:-1, 1:], row[1:, :-1], row[1:, 1:]))
    triangles = np.concatenate([np.stack([a, c, b], axis=1), np.stack([b, c, d], axis=1)])
    nodes = nodes.reshape(-1, 3)
    return nodes, triangles[np.isfinite(nodes[triangles, 0]).all(axis=1)]


def _colors(
    model: AppearanceModel, code: NDArray[np.float32], numbers: NDArray[np.float32], face: Points, places: Points
) -> NDArray[np.uint8]:
    """Colours [N,3] of places (y, z) [N,2]: the texture of the code; its median colour outside the face."""
    one = np.zeros((1, 6), np.float32)
    pose = Pose(np.ones(1), np.eye(3)[None], np.zeros((1, 3)))
    read = Readings(pose, np.zeros((1, 2, 3)), face[None], numbers, code[:, : len(model.shape.basis)])
    moment = Moment(read, numbers, one, np.zeros((1, len(model.names)), np.float32), np.zeros(1, np.float32))
    written = model.decode(0.5 * code, moment)[0]
    skin = np.median(written, axis=0)
    texture = np.tile(skin, (model.size * model.size, 1))
    texture[model.pixels] = written
    front = LinearNDInterpolator(face[:, 1:], model.shape.front)(places)
    cells = (front - LO) / (np.array(HI) - LO) * (model.size - 1)
    known = np.isfinite(cells).all(axis=1)
    out = np.tile(skin, (len(places), 1))
    for channel in range(3):
        picture = texture[:, channel].reshape(model.size, model.size)
        out[known, channel] = map_coordinates(picture, cells[known][:, ::-1].T, order=1, mode="nearest")
    return np.rint(255 * np.clip(out, 0, 1)).astype(np.uint8)
