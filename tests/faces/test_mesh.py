"""Face meshes: one face has one mesh wherever it lies, meshes agree with detectors, and know what is no face."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, MediaPipeMesh, Mesh, find_meshes, five_points, transform_points
from ficgan.faces.mesh import _TEMPLATE, GOOD_PRESENCE, LEFT_EYE, RIGHT_EYE

Image = NDArray[np.uint8]

# The eyes, nose and mouth corners of scikit-image's astronaut, and the distance of her eyes.
MARKS = np.array([(204, 100), (246, 103), (224, 127), (201.5, 140.5), (244.5, 141.5)])
EYES = float(np.linalg.norm(MARKS[1] - MARKS[0]))


@pytest.fixture(scope="module")
def mesh() -> MediaPipeMesh:
    return MediaPipeMesh()


@pytest.fixture(scope="module")
def found(mesh: MediaPipeMesh, astronaut: Image) -> Mesh:
    return find_meshes(mesh, astronaut, MARKS[None])[0]


def moved(photo: Image, matrix: ArrayLike, size: tuple[int, int]) -> Image:
    """A photo carried by a similarity, without aliasing."""
    import cv2

    scale = np.sqrt(np.linalg.det(np.asarray(matrix)[:, :2]))
    source = photo if scale >= 1 else cv2.GaussianBlur(photo, (0, 0), 0.5 / scale)
    return np.asarray(cv2.warpAffine(source, np.asarray(matrix), size, flags=cv2.INTER_CUBIC), np.uint8)


def apart(points: ArrayLike, wanted: ArrayLike) -> float:
    """Mean distance of the first 468 points in units of the astronaut's eye distance."""
    gap = np.asarray(points)[:468, :2] - np.asarray(wanted)[:468, :2]
    return float(np.linalg.norm(gap, axis=1).mean() / EYES)


def test_the_astronaut(mesh: MediaPipeMesh, astronaut: Image, found: Mesh) -> None:
    assert found.points.shape == (478, 3) and found.points.dtype == np.float32 and isinstance(found.presence, float)
    assert found.presence > 15
    assert np.abs(five_points(found.points) - MARKS).max() < 5  # both were read off by somebody
    assert found.points[1, 2] < found.points[[234, 454], 2].min() - EYES / 2  # the nose is nearer than the cheeks


@pytest.mark.parametrize(
    ("angle", "scale", "shift"), [(0, 2.6, (-90, 30)), (0, 0.6, (40, 50)), (-37, 1.3, (9, 4)), (180, 1, (0, 0))]
)
def test_mesh_follows_the_face(
    mesh: MediaPipeMesh, astronaut: Image, found: Mesh, angle: float, scale: float, shift: tuple[float, float]
) -> None:
    turn = scale * np.exp(1j * np.deg2rad(angle))
    linear = np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])
    middle = MARKS.mean(0)
    matrix = np.column_stack([linear, np.array([300, 300]) + shift - linear @ middle])
    photo = moved(astronaut, matrix, (600, 600))
    (other,) = find_meshes(mesh, photo, transform_points(matrix, MARKS)[None])
    wanted = transform_points(matrix, found.points[:, :2])
    # .005 of the eye distance is .2 pixels of the photo: a shift by half a pixel would show.
    assert apart(other.points, wanted) / scale < (0.005 if scale >= 1 else 0.02)
    assert np.abs((other.points[:, :2] - wanted).mean(0)).max() / scale / EYES < 0.005
    assert np.abs(other.points[:, 2] / scale - found.points[:, 2]).mean() / EYES < 0.02
    assert abs(other.presence - found.presence) < 4


@pytest.mark.parametrize(
    ("angle", "scale", "shift"), [(30, 1, 0), (-30, 1.3, 0.2), (0, 1.5, 0), (0, 0.65, 0), (0, 1, 0.5)]
)
def test_bad_landmarks_are_mended_by_a_second_look(
    mesh: MediaPipeMesh, astronaut: Image, found: Mesh, angle: float, scale: float, shift: float
) -> None:
    turn = scale * np.exp(1j * np.deg2rad(angle))
    offset = MARKS - MARKS.mean(0)
    bad = MARKS.mean(0) + offset @ np.array([[turn.real, turn.imag], [-turn.imag, turn.real]]) + (shift * EYES, 0)
    (other,) = find_meshes(mesh, astronaut, bad[None])
    assert apart(other.points, found.points) < 0.03 and other.presence > 15


def test_a_crowd_is_read_in_small_batches_and_in_order() -> None:
    class Grey:
        """A face is where the crop is bright, and lies as the template says."""

        name = "grey"

        def __init__(self) -> None:
            self.batches: list[int] = []

        def read(self, crops: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            self.batches.append(len(crops))
            assert crops.dtype == np.uint8 and crops.shape[1:] == (256, 256, 3)
            points = np.zeros((len(crops), 478, 3), np.float32)
            for indices, place in zip((LEFT_EYE, RIGHT_EYE, [1], [61], [291]), _TEMPLATE, strict=True):
                points[:, indices, :2] = place
            return points, crops.mean((1, 2, 3)).astype(np.float32) / 10

    photo = np.repeat(np.linspace(20, 220, 800).astype(np.uint8)[None, :, None], 60, axis=0).repeat(3, axis=2)
    marks = np.array([Alignment().points(20) + np.array([20 * index, 20]) for index in range(38)])[::-1]
    grey = Grey()
    meshes = find_meshes(grey, photo, marks)
    bright = [face.presence for face in meshes]
    assert bright == sorted(bright, reverse=True) and max(grey.batches) <= 16 < len(bright)
    assert sum(grey.batches) == 38 + sum(value < GOOD_PRESENCE for value in bright)  # a second look at the dark ones
    np.testing.assert_allclose([five_points(face.points) for face in meshes], marks, atol=1e-3)
    assert find_meshes(grey, photo, []) == [] and find_meshes(grey, photo, np.zeros((0, 5, 2))) == []


def test_refuses_what_cannot_be_read(mesh: MediaPipeMesh, astronaut: Image) -> None:
    for bad in (MARKS, MARKS[None, :4], np.full((1, 5, 2), np.nan), np.ones((1, 5, 2))):
        with pytest.raises(InputError):
            find_meshes(mesh, astronaut, bad)
    with pytest.raises(InputError):
        find_meshes(mesh, astronaut.astype(float), MARKS[None])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tpu"):
        MediaPipeMesh("tpu").read(np.zeros((1, 256, 256, 3), np.uint8))
