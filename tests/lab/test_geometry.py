"""Poses of known heads, boxes and landmarks against loops, and which of several faces is taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.faces import Alignment, Face
from ficgan.lab.metrics import pictures as geometry
from ficgan.lab.metrics.pictures import box_iou, detect_faces, head_pose, landmark_distance


def turned(yaw: float, pitch: float, roll: float) -> np.ndarray:
    """The generic head turned by roll, pitch, yaw (degrees) about fixed axes, one after another: [5,3]."""
    a, b, c = np.radians([yaw, pitch, roll])
    clockwise = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])  # y is down
    up = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])  # the nose, +z, towards −y
    right = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])  # the nose towards +x
    return geometry._HEAD @ clockwise.T @ up.T @ right.T


@settings(derandomize=True)
@given(yaw=st.floats(-70, 70), pitch=st.floats(-60, 60), roll=st.floats(-170, 170), scale=st.floats(1, 200))
def test_known_poses_are_recovered(yaw, pitch, roll, scale):
    marks = turned(yaw, pitch, roll)[:, :2] * scale + [37, -12]
    np.testing.assert_allclose(head_pose(marks[None])[0], [yaw, pitch, roll], atol=1e-6)


def test_iou_against_counted_pixels(rng):
    low = rng.integers(0, 20, (2, 50, 2))
    boxes = np.concatenate([low, low + rng.integers(0, 15, (2, 50, 2))], axis=2).astype(np.float32)
    found = box_iou(*boxes)
    for a, b, value in zip(*boxes.astype(int), found, strict=True):
        grids = np.zeros((2, 40, 40), bool)
        for grid, (x0, y0, x1, y1) in zip(grids, (a, b), strict=True):
            grid[y0:y1, x0:x1] = True
        union = (grids[0] | grids[1]).sum()
        assert value == pytest.approx((grids[0] & grids[1]).sum() / union if union else 0)
    boxes[1, 4] = np.nan
    assert np.isnan(box_iou(*boxes)[4])


class TwoFaces:
    """Finds a bystander, with the better score, and the face itself, or nothing in black images."""

    name = "two"

    def detect(self, image: np.ndarray) -> list[Face]:
        if not image.any():
            return []
        middle = Alignment().points(image.shape[0]).astype(np.float32)
        box = np.array([1, 2, 30, 40], np.float32)
        return [Face(box + 5, middle - 20, 0.9), Face(box, middle + 1, 0.8)]


def test_the_face_of_the_crop_is_taken_and_misses_are_nan():
    images = np.stack([np.zeros((64, 64, 3), np.uint8), np.full((64, 64, 3), 9, np.uint8)])
    marks = np.tile(Alignment().points(64), (2, 1, 1))
    found = detect_faces(TwoFaces(), images, marks)
    assert found.found.tolist() == [False, True]
    assert np.isnan(found.boxes[0]).all() and np.isnan(found.landmarks[0]).all()
    np.testing.assert_array_equal(found.boxes[1], [1, 2, 30, 40])
    np.testing.assert_allclose(landmark_distance(found.landmarks, marks)[1], np.sqrt(2), rtol=1e-4)
