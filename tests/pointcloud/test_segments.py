"""Box and sphere: every point by the inequalities, the nose tip, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.segments import Segmentation, segmented


def test_every_point_by_the_inequalities(rng: np.random.Generator) -> None:
    cloud = Cloud(rng.uniform(-0.25, 0.25, (4000, 3)), rng.integers(0, 256, (4000, 3), np.uint8))
    parts = segmented(cloud, Segmentation(front_slack=0.0))
    inner, outer = [], []
    for row, (x, y, z) in enumerate(cloud.points):
        if -0.16 <= x <= 0 and -0.13 <= y <= 0.17 and -0.12 <= z <= 0.12:
            (inner if x * x + y * y + z * z <= 0.14**2 else outer).append(row)
    assert inner and outer
    np.testing.assert_array_equal(parts.inner.points, cloud.points[inner])
    np.testing.assert_array_equal(parts.outer.points, cloud.points[outer])
    np.testing.assert_array_equal(parts.inner.colors, cloud.colors[inner])


def test_the_nose_tip_survives_rounding() -> None:
    """A frame turns the tip to 1e-17 or, in float32, to 1e-9; neither may cost a face its nose."""
    tips = np.array([[1e-17, 0, 0], [1e-9, 0, 0], [0.004, 0.09, 0], [0.006, 0.0, 0.0], [-0.01, 0, 0]])
    np.testing.assert_array_equal(segmented(Cloud(tips)).inner.points, tips[[0, 1, 2, 4]])


def test_an_outer_part_may_be_empty_an_inner_one_may_not(rng: np.random.Generator) -> None:
    near = Cloud(rng.uniform(-0.05, 0.0, (100, 3)))
    assert len(segmented(near).outer) == 0
    with pytest.raises(InputError, match=r"none of the cloud's 100 points.*canonical frame"):
        segmented(Cloud(near.points + 1.0))
    with pytest.raises(InputError, match="0 points"):
        segmented(Cloud(np.zeros((0, 3))))
