"""Geometry fitted to made heads, and the embedded model on a photo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frame_world import SIZE, Found, Heads
from numpy.typing import NDArray

from ficgan.arrays import Image
from ficgan.deidentify import Deidentifier
from ficgan.faces import (
    Alignment,
    Face,
    MediaPipeMesh,
    find_meshes,
    five_points,
    get_detector,
    similarity,
    transform_points,
)
from ficgan.frame import FaceShape, Warp
from ficgan.frame.fit import FitConfig, fit_shape
from ficgan.frame_model import FrameModel
from ficgan.policy import Result


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


@pytest.fixture(scope="session")
def photo(astronaut: Image) -> Image:
    return np.ascontiguousarray(astronaut[:256, 80:400])


@pytest.fixture(scope="session")
def face(photo: Image) -> Face:
    return get_detector("auto").detect(photo)[0]


@pytest.fixture(scope="session")
def make(photo: Image, face: Face) -> Callable[..., Deidentifier]:
    """An engine that finds the photo's face there, and in two copies side by side both."""
    side = photo.shape[1]
    aside = np.float32([side, 0])
    other = Face(face.box + np.tile(aside, 2), face.landmarks + aside, face.score)
    noise = Face(np.float32([20, 20, 80, 80]), np.float32([[35, 40], [65, 40], [50, 55], [38, 68], [62, 68]]), 0.9)
    detector = Found({side: [face], 2 * side: [face, other], 100: [noise]})

    def made(**options: Any) -> Deidentifier:
        usual = {"k": 3000, "layer": 0, "seed": 7, "verify": False, "detector": detector}
        return Deidentifier.from_pretrained(**{**usual, **options})

    return made


@pytest.fixture(scope="session")
def engine(make: Callable[..., Deidentifier]) -> Deidentifier:
    return make()


@pytest.fixture(scope="session")
def model(engine: Deidentifier) -> FrameModel:
    assert isinstance(engine.model, FrameModel)
    return engine.model


@pytest.fixture(scope="session")
def result(engine: Deidentifier, photo: Image) -> Result:
    return engine(photo, key="a")
