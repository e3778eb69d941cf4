"""Sweeps over degrees give what the methods give one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.lab.clouds import lab
from ficgan.lab.clouds.sweep import alone, anonymiser, drawn_as, sweep
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.scan import segmented

DEGREES = (1, 9, 20)


@pytest.fixture(scope="module")
def faces() -> tuple[Cloud, Cloud]:
    one, other = (segmented(made_head(seed, points=1500).cloud).inner for seed in (1, 2))
    return one, other


@pytest.mark.parametrize(
    "method", ["centroid-voxel", "uniform-noise", "tapering", "merge-2-faces", "smooth-knn", "pmp"]
)
def test_a_sweep_is_the_method_degree_by_degree(method: str, faces: tuple[Cloud, Cloud]) -> None:
    cloud, other = faces
    target = other if method == "merge-2-faces" else None
    for degree, made in sweep(method, DEGREES, cloud, seed=3, target=target, name="a"):
        try:
            plain = anonymiser(method, degree, seed=3, target=target)(cloud, name="a")
        except InputError:
            assert made is None
            continue
        assert made is not None
        np.testing.assert_allclose(made.points, plain.points, atol=1e-12)
        assert made.colors is not None and plain.colors is not None
        assert np.abs(made.colors.astype(int) - plain.colors).max() <= 1
        assert (made.colors != plain.colors).mean() < 1e-3


def test_a_target_without_colours_leaves_none(faces: tuple[Cloud, Cloud]) -> None:
    bare = Cloud(faces[1].points)
    assert [made.colors for _, made in sweep("merge-2-faces", (1, 20), faces[0], target=bare) if made] == [None, None]


def test_degrees_that_cannot_work_leave_nothing(faces: tuple[Cloud, Cloud]) -> None:
    small = faces[0].take(np.arange(100))
    found = dict(sweep("smooth-knn", (35, 1), small))
    assert found[35] is None and found[1] is not None
    assert math.isnan(alone("smooth-knn", 35, small))
    assert dict(sweep("pmp", (1,), small))[1] is None


def test_times_are_taken_from_nothing(faces: tuple[Cloud, Cloud]) -> None:
    assert 0 < alone("centroid-voxel", 3, faces[0]) < 10


def test_results_are_drawn_as_the_thesis_draws_them() -> None:
    assert drawn_as("smooth-knn", 1) == {"point_size": 60.0, "order": "y"}
    assert drawn_as("pmp", 13)["order"] == "y" and drawn_as("pmp", 14)["order"] == "x"


@pytest.mark.parametrize("colours", [False, True])
def test_recovered_clouds_are_kept_whole(colours: bool) -> None:
    head = made_head(1, points=200).cloud
    cloud = head if colours else Cloud(head.points)
    back = lab._unpacked(lab._packed(cloud, 200))
    assert back is not None
    np.testing.assert_allclose(back.points, cloud.points, atol=1e-7)
    assert (back.colors is None) == (cloud.colors is None)
    if colours:
        np.testing.assert_array_equal(back.colors, cloud.colors)
    assert lab._unpacked(lab._packed(None, 5)) is None
