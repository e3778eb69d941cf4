"""Turned heads, a camera before them, pictures side by side."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.projection import ANGLES, perspective, project, strip, turned, views

BLACK = np.zeros((1, 3), np.uint8)


def place(picture):
    """Column and row of the middle of what is not white."""
    dark = 255.0 - picture.min(axis=-1)
    rows, columns = np.indices(dark.shape)
    return (dark * columns).sum() / dark.sum(), (dark * rows).sum() / dark.sum()


def test_turning_is_a_rotation_about_the_nose_tip(rng):
    points = rng.normal(size=(50, 3)) * 0.1
    normals = points / np.linalg.norm(points, axis=1, keepdims=True)
    got = turned(Cloud(points, normals=normals), yaw=25, pitch=-12)
    both = Rotation.from_euler("zy", [-12, 25], degrees=True)
    np.testing.assert_allclose(got.points, both.apply(points), atol=1e-15)
    np.testing.assert_allclose(got.normals, both.apply(normals), atol=1e-15)


def test_yaw_looks_to_the_viewers_right_and_pitch_up():
    before_the_nose = Cloud([[0.1, 0.0, 0.0]], BLACK)
    column, row = place(project(before_the_nose))
    right, same = place(project(before_the_nose, yaw=30))
    assert right == pytest.approx(column + 0.05 * 369.6 / 0.36, abs=0.5) and same == pytest.approx(row, abs=0.5)
    assert place(project(before_the_nose, pitch=30))[1] == pytest.approx(row - 0.05 * 496 / 0.5, abs=0.5)


def test_there_are_eleven_views_from_minus_ten_to_ten_degrees(rng):
    cloud = Cloud(rng.normal(size=(400, 3)) * 0.05, rng.integers(0, 256, (400, 3), np.uint8))
    pictures = views(cloud)
    assert list(ANGLES) == [-10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10]
    assert len(pictures) == 11 and (pictures[5] == project(cloud)).all()
    assert (pictures[0] == project(cloud, yaw=-10)).all() and not (pictures[0] == pictures[-1]).all()


def test_a_cloud_without_colours_is_shaded_once_for_all_views(rng):
    from ficgan.pointcloud.projection import shaded

    cloud = Cloud(
        np.column_stack([-5 * (rng.uniform(-0.1, 0.1, (2, 900)) ** 2).sum(axis=0), *rng.uniform(-0.1, 0.1, (2, 900))])
    )
    assert (views(cloud, [8])[0] == project(shaded(cloud), yaw=8)).all()


@pytest.mark.parametrize("point", [(0.0, 0.05, -0.03), (0.1, 0.05, -0.03), (-0.2, -0.1, 0.08)])
def test_a_point_falls_where_the_camera_sees_it(point):
    focal = 200 / np.tan(np.radians(22.5))
    x, y, z = point
    wanted = 149.5 - focal * z / (0.6 - x), 199.5 - focal * y / (0.6 - x)
    picture = perspective(Cloud([point], BLACK), distance=0.6, fov=45, size=(300, 400), samples=4)
    assert place(picture) == pytest.approx(wanted, abs=0.2)
    radius = 3 * 100 / 72 / 992 * focal / (0.6 - x)
    assert (255.0 - picture[..., 0]).sum() / 255 == pytest.approx(np.pi * radius**2, rel=0.1)


def test_the_nearer_point_hides_the_farther_whatever_their_order():
    cloud = Cloud([[0.1, 0, 0], [-0.1, 0, 0]], np.array([[255, 0, 0], [0, 0, 255]], np.uint8))
    for one in (cloud, cloud.take(np.array([1, 0]))):
        assert (perspective(one)[255:259, 192:196] == (255, 0, 0)).all()


def test_what_is_behind_the_camera_is_not_seen():
    cloud = Cloud([[0.0, 0, 0], [1.5, 0, 0], [0.98, 0.2, 0]], np.zeros((3, 3), np.uint8))
    assert (perspective(cloud) == perspective(cloud.take(np.array([0])))).all()
    with pytest.raises(InputError, match="before the camera"):
        perspective(cloud.take(np.array([1, 2])))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"distance": 0.01}, "distance: .* 0.01"), ({"fov": 180}, "fov: .* 180"), ({"order": "y"}, "unknown key 'order'")],
)
def test_cameras_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        perspective(Cloud([[0.0, 0, 0]], BLACK), **settings)


def test_a_strip_holds_every_picture(rng):
    low, high = rng.integers(0, 256, (4, 3, 3), np.uint8), rng.integers(0, 256, (6, 2, 3), np.uint8)
    whole = strip([low, high], gap=1, background=7)
    assert whole.shape == (6, 6, 3)
    assert (whole[:4, :3] == low).all() and (whole[:, 4:] == high).all()
    assert (whole[4:, :3] == 7).all() and (whole[:, 3] == 7).all()
