"""What is measured on clouds themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.lab.clouds.space import _Source
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.geometry import chamfer, curvature_error, normal_error


@pytest.fixture
def ball(rng: np.random.Generator) -> Cloud:
    points = rng.standard_normal((600, 3))
    return Cloud(0.1 * points / np.linalg.norm(points, axis=1, keepdims=True))


def test_distortion_is_what_the_room_of_clouds_measures(ball: Cloud, rng: np.random.Generator) -> None:
    other = ball.with_points(ball.points + 0.002 * rng.standard_normal((600, 3)))
    apart, turned, bent = _Source.of(ball).measure(other)
    assert apart == pytest.approx(1000 * chamfer(other, ball))
    assert turned == pytest.approx(normal_error(other, ball))
    assert bent == pytest.approx(curvature_error(other, ball))


def test_a_cloud_is_no_distance_from_itself_and_a_shift_is_its_length(ball: Cloud) -> None:
    assert _Source.of(ball).measure(ball) == pytest.approx((0, 0, 0), abs=1e-4)
    larger = ball.with_points(1.01 * ball.points)
    assert _Source.of(ball).measure(larger)[0] == pytest.approx(1.0, rel=1e-6)


def test_points_on_a_line_have_no_surface(ball: Cloud) -> None:
    line = Cloud(np.linspace([0, 0, 0], [0.1, 0, 0], 50))
    apart, turned, bent = _Source.of(ball).measure(line)
    assert apart > 0 and np.isnan(turned) and np.isnan(bent)
