"""Heads made from one real mesh, and new faces of the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from ficgan.arrays import Image
from ficgan.faces import Face
from ficgan.frame_model import FrameModel
from ficgan.policy import Attempt

SIZE = 96


def turned(points: ArrayLike, yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> NDArray[np.float64]:
    """A mesh [...,N,3] turned about its own middle: yaw first, then pitch, then roll; radians."""
    points = np.asarray(points, np.float64)
    middle = points.mean(-2, keepdims=True)
    rotation = Rotation.from_euler("yxz", [yaw, pitch, roll]).as_matrix()  # lower case: about fixed axes
    return (points - middle) @ rotation.T + middle


@dataclass(frozen=True, eq=False)
class Heads:
    """Relatives of one head, [468,3] in pixels of a crop; `bumps` [468,K] are smooth, about 1 where largest."""

    own: NDArray[np.float64]
    bumps: NDArray[np.float64]

    def relatives(self, count: int, rng: np.random.Generator, *, strength: float = 1.2) -> NDArray[np.float64]:
        """[count,468,3] before they are posed: smooth displacements, in pixels, of the same strength everywhere."""
        push = rng.normal(0, strength / np.sqrt(2), (count, self.bumps.shape[1], 3))
        return self.own + np.einsum("nk,bkj->bnj", self.bumps, push)

    def people(self, count: int, rng: np.random.Generator, *, turn: float = 0.25) -> NDArray[np.float64]:
        """[count,468,3], posed as in aligned crops."""
        faces = self.relatives(count, rng)
        for row, one in enumerate(faces):
            yaw, pitch, roll = rng.normal(0, (turn, turn / 2, 0.03))
            faces[row] = turned(one, yaw, pitch, roll) * rng.uniform(0.95, 1.05) + rng.normal(0, 1.5, 3)
        return faces


class Found:
    """Faces that were found before: what a photo of this width has."""

    name = "found"

    def __init__(self, faces: dict[int, list[Face]]) -> None:
        self.faces = faces

    def detect(self, image: Image) -> list[Face]:
        return self.faces[image.shape[1]]


def apart(each: Image, other: Image, mask: NDArray[np.float32]) -> float:
    """Mean absolute difference where the mask is full."""
    return float(np.abs(each.astype(int) - other)[mask > 0.9].mean())


def other_styles(model: FrameModel, reading: Any, key: str = "a") -> NDArray[np.float32]:
    """A row of styles of another identity: [1,S]."""
    code = model.draw(key, Attempt(layer=0), 1.0, reading.z_id)
    return model.mixed(reading.z_id[None], model.wanted(code.w[None]), Attempt(layer=0))
