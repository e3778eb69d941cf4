"""Made heads: the embedded model's mean face, moved along its shapes, on a plain skull. For tests and targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.ndimage import gaussian_filter, map_coordinates

from ficgan import pretrained
from ficgan.anonymizers.base import generator
from ficgan.errors import UsageError
from ficgan.frame.appearance import AppearanceModel, Moment
from ficgan.frame.file import load_appearance
from ficgan.frame.geometry import HI, LO, NUMBERS, Pose, Readings
from ficgan.pointcloud.cloud import Cloud, Points, moved, sample_surface
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_frame

METRES = 0.00137  # in one unit of the model's frame, so that the mean face's eyes are 62 mm apart
# Numbers of expression, standard deviations.
EXPRESSIONS: dict[str, dict[str, float]] = {
    "neutral": {},
    "smiling": {"mouth width": 2.0, "mouth corners": 2.0, "lids": -0.5},
    "angry": {"mouth corners": -1.0, "brows": -1.5, "frown": -2.0},
    "surprised": {"mouth opening": 2.5, "lids": 1.5, "brows": 2.0},
    "eyes-closed": {"lids": -2.5},
    "pouting": {"mouth width": -2.0, "brows": -0.3},
}
_SPREAD = 1.2  # standard deviations of what is drawn, against the model's people
_STEP = 0.0015  # metres between the nodes of a surface
_SOFT = 1.2  # nodes over which a surface is smoothed: the mesh has edges
_SKULL = (
    np.array([0.012, 0.0]),
    np.array([0.135, 0.083]),
    -0.1,
)  # y, z of the middle; half height, width; x of the rim


@dataclass(frozen=True)
class MadeHead:
    """A made head, as if scanned: cloud with colours, and landmarks [5,3], in the canonical frame, metres."""

    cloud: Cloud
    landmarks: Points


def made_head(
    seed: int = 0, *, expression: str = "neutral", points: int = 45_000, scan: int = 0, noise: float = 0.0
) -> MadeHead:
    """A head of nobody, its nose tip at the origin.

    Args:
        seed: who it is.
        expression: one of `EXPRESSIONS`.
        points: of the cloud, at least 100.
        scan: seed of the sampling: another one gives other points of the same surface.
        noise: standard deviation of a point along each axis, metres.
    """
    if expression not in EXPRESSIONS:
        raise UsageError(f"there is no expression {expression!r}; use one of {', '.join(EXPRESSIONS)}")
    if points < 100 or noise < 0:
        raise UsageError(f"a made head has 100 points or more and noise of 0 or more, not {points} and {noise}")
    draw, model = generator("made head", seed), _model()
    code = (_SPREAD * draw.standard_normal((1, model.code_size))).astype(np.float32)
    numbers = np.array([[EXPRESSIONS[expression].get(name, 0.0) for name in NUMBERS]], np.float32)
    face, five = face_mesh(code[0, : len(model.shape.basis)], numbers[0])
    nodes, triangles = _surface(face)
    rng = generator("scan of a made head", seed, scan)
    rows, weights = sample_surface(nodes, triangles, points, rng)
    spots = np.einsum("nc,ncd->nd", weights, nodes[rows])
    colors = _colors(model, code, numbers, face, spots[:, 1:])
    return MadeHead(Cloud(spots + noise * rng.standard_normal(spots.shape), colors), five)


def face_mesh(
    identity: NDArray[np.floating] | None = None, numbers: NDArray[np.floating] | None = None
) -> tuple[Points, Points]:
    """The model's mean face [468,3] and its five landmarks [5,3], metres, in the canonical frame.

    Args:
        identity: coefficients [I] of the shape, standard deviations; None: 0.
        numbers: of expression [6], standard deviations; None: 0.
    """
    shape = _model().shape
    mesh = shape.mean.astype(np.float64)
    if identity is not None:
        mesh = mesh + np.tensordot(identity.astype(np.float64), shape.basis, 1)
    if numbers is not None:
        mesh = mesh + np.tensordot(numbers.astype(np.float64), shape.moves[1 : 1 + len(NUMBERS)], 1)
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
    weight = gaussian_filter(np.isfinite(depth).astype(float), _SOFT)
    soft = gaussian_filter(np.nan_to_num(depth), _SOFT) / np.maximum(weight, 1e-9)
    nodes = np.concatenate([np.where(np.isfinite(depth), soft, np.nan)[..., None], grid], axis=2)
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
