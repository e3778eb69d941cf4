"""Heads made from one real mesh, and the geometry that is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from ficgan.faces import Alignment, MediaPipeMesh, find_meshes, five_points, get_detector, similarity, transform_points
from ficgan.frame.fit import FitConfig, fit_shape
from ficgan.frame.geometry import FaceShape, Warp

SIZE = 96


def turned(points: ArrayLike, yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> NDArray[np.float64]:
    """A mesh [...,N,3] turned about its own middle: yaw first, then pitch, then roll; radians."""
    points = np.asarray(points, np.float64)
    middle = points.mean(-2, keepdims=True)
    rotation = Rotation.from_euler("yxz", [yaw, pitch, roll]).as_matrix()  # lower case: about fixed axes
    return (points - middle) @ rotation.T + middle


@dataclass(frozen=True, eq=False)
class Heads:
    """Relatives of one head.

    Args:
        own: [468,3] in pixels of a 128² crop of the five-point template.
        bumps: [468,K], smooth functions on it, about 1 where they are largest.
    """

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


@pytest.fixture(scope="session")
def astronaut() -> NDArray[np.uint8]:
    """uint8 [512,512,3], with one face that looks into the camera."""
    return pytest.importorskip("skimage.data").astronaut()


@pytest.fixture(scope="session")
def astronaut_mesh(astronaut: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[468,3] in pixels of the photo."""
    face = get_detector().detect(astronaut)[0]
    return find_meshes(MediaPipeMesh(), astronaut, [face])[0].points[:468].astype(np.float64)


@pytest.fixture(scope="session")
def heads(astronaut_mesh: NDArray[np.float64]) -> Heads:
    """Relatives of the astronaut."""
    matrix = similarity(five_points(astronaut_mesh), Alignment().points(128))
    scale = np.sqrt(np.linalg.det(matrix[:, :2]))
    own = np.column_stack([transform_points(matrix, astronaut_mesh[:, :2]), astronaut_mesh[:, 2] * scale])
    middles = own[np.random.default_rng(1).choice(468, 16, replace=False)]
    apart = np.square(own[:, None] - middles[None]).sum(-1)
    return Heads(own, np.exp(-apart / (2 * 18.0**2)))


@pytest.fixture(scope="session")
def shape(heads: Heads) -> FaceShape:
    """Geometry of 400 relatives, whose displacements have 48 dimensions."""
    return fit_shape(heads.people(400, np.random.default_rng(7)), FitConfig(size=SIZE, shapes=48))


@pytest.fixture(scope="session")
def warp(shape: FaceShape) -> Warp:
    """Of a frame of 96² pixels."""
    return Warp(shape.front, SIZE)
