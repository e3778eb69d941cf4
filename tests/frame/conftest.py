"""Geometry fitted to made heads."""

from __future__ import annotations

import numpy as np
import pytest
from frame_world import SIZE, Heads
from numpy.typing import NDArray

from ficgan.faces import Alignment, MediaPipeMesh, find_meshes, five_points, get_detector, similarity, transform_points
from ficgan.frame import FaceShape, Warp
from ficgan.frame.fit import FitConfig, fit_shape


@pytest.fixture(scope="session")
def astronaut_mesh(astronaut: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[468,3] in pixels of the photo."""
    face = get_detector().detect(astronaut)[0]
    return find_meshes(MediaPipeMesh(), astronaut, [face.landmarks])[0].points[:468].astype(np.float64)


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
