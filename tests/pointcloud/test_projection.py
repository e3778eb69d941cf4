"""The thesis' picture: where points fall, what lies on top, and matplotlib beside it."""

import io

import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.projection import project


def head(draw, count=12_000):
    """The front of an ellipsoid, striped, with some noise around it."""
    way = draw.normal(size=(count, 3))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    way[:, 0] = np.abs(way[:, 0])
    points = way * [0.1, 0.14, 0.09] - [0.1, 0, 0]
    colors = np.clip(128 + 60 * np.sin(points * 120) + 40 * way, 0, 255).astype(np.uint8)
    stray = draw.uniform(-0.3, 0.3, (200, 3))
    return Cloud(np.vstack([points, stray]), np.vstack([colors, draw.integers(0, 256, (200, 3), np.uint8)]))


def scattered(cloud, point_size, key):
    """As in the thesis: matplotlib's scatter of y and z, turned upright."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    order = np.argsort(cloud.points[:, key], kind="stable")
    points, colors = cloud.points[order], cloud.colors[order] / 255
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure, axes = pyplot.subplots()
        axes.scatter(points[:, 1], points[:, 2], c=colors, s=point_size)
        axes.set_xlim(-0.25, 0.25)
        axes.set_ylim(-0.18, 0.18)
        axes.axis("off")
        file = io.BytesIO()
        figure.savefig(file, bbox_inches="tight", format="png", dpi=100)
        pyplot.close(figure)
    # Newer versions round the width up to 516; the thesis has 515.
    return np.rot90(np.array(Image.open(file).convert("RGB")))[-515:]


@pytest.mark.parametrize(("point_size", "order"), [(25, "y"), (60, "y"), (25, "x")])
def test_it_is_matplotlibs_picture(rng, point_size, order):
    structural_similarity = pytest.importorskip("skimage.metrics").structural_similarity
    cloud = head(rng)
    wanted = scattered(cloud, point_size, {"x": 0, "y": 1}[order])
    got = project(cloud, point_size=point_size, order=order)
    assert got.shape == wanted.shape == (515, 389, 3)
    assert structural_similarity(got, wanted, channel_axis=-1) > 0.98
    assert np.abs(got.astype(float) - wanted).mean() < 1.6
    # The parity is one of places too: a picture that is a pixel off is farther away.
    for shift in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        moved = np.roll(got, shift, (0, 1)).astype(float)
        assert np.abs(moved - wanted).mean() > 1.5 * np.abs(got.astype(float) - wanted).mean()


@pytest.mark.parametrize(("y", "z"), [(0, 0), (0.1, 0), (0, 0.1), (-0.12, 0.07), (0.2, -0.15)])
def test_a_point_falls_where_the_axes_put_it(y, z):
    dark = 255.0 - project(Cloud([[0.0, y, z]], np.zeros((1, 3), np.uint8)), samples=4)[..., 0]
    rows, columns = np.indices(dark.shape)
    assert (dark * columns).sum() / dark.sum() == pytest.approx(193.7 - z * 369.6 / 0.36, abs=0.15)
    assert (dark * rows).sum() / dark.sum() == pytest.approx(256.5 - y * 496 / 0.5, abs=0.15)
    assert dark.sum() / 255 == pytest.approx(np.pi * (3 * 100 / 72) ** 2, rel=0.02)  # (√25 + 1)/2 points


def two(first, second):
    return Cloud([first, second], np.array([[255, 0, 0], [0, 0, 255]], np.uint8))


def test_the_higher_point_lies_on_top_by_y_and_the_nearer_by_depth():
    cloud = two((0.05, 0.0, 0.0), (0.0, 0.001, 0.0))  # red is nearer, blue is higher
    middle = (slice(254, 258), slice(192, 196))
    assert (project(cloud)[middle] == (0, 0, 255)).all()
    assert (project(cloud, order="x")[middle] == (255, 0, 0)).all()
    assert (project(cloud, order="depth")[middle] == (255, 0, 0)).all()


def test_points_beyond_the_limits_are_cut_and_the_border_stays_empty(rng):
    points = rng.uniform(-2, 2, (4000, 3))
    picture = project(Cloud(points, np.zeros((4000, 3), np.uint8)))
    assert (picture[:9] == 255).all() and (picture[505:] == 255).all()
    assert (picture[:, :9] == 255).all() and (picture[:, 379:] == 255).all()
    beyond = points[(np.abs(points[:, 1]) > 0.26) | (np.abs(points[:, 2]) > 0.19)]
    assert (project(Cloud(beyond, np.zeros((len(beyond), 3), np.uint8))) == 255).all()


def test_a_larger_picture_is_the_same_picture(rng):
    skimage = pytest.importorskip("skimage.transform")
    cloud = head(rng, 6000)
    large = project(cloud, size=(778, 1030), samples=1)
    small = np.round(skimage.downscale_local_mean(large.astype(float), (2, 2, 1)))
    assert np.abs(small - project(cloud).astype(float)).mean() < 1


def test_an_empty_cloud_is_refused():
    with pytest.raises(InputError, match="no points"):
        project(Cloud(np.zeros((0, 3))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "z"}, "order: .*'z'"),
        ({"point_size": 0}, "point_size: .* 0"),
        ({"point_size": np.nan}, "point_size"),
        ({"size": (0, 5)}, "size"),
        ({"size": (10.5, 10)}, "size"),
        ({"limits": (0.1, -1)}, "limits"),
        ({"limits": (0.1, np.nan)}, "limits"),
        ({"samples": 9}, "samples"),
        ({"background": 256}, "background"),
        ({"background": (1, 2)}, "background"),
        ({"yaw": np.inf}, "yaw"),
        ({"point_sizes": 3}, "mean 'point_size'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        project(Cloud([[0.0, 0.0, 0.0]], np.zeros((1, 3), np.uint8)), **settings)


@pytest.mark.parametrize(("changes", "says"), [({"point_size": 1e9}, "77885"), ({"size": (100_000, 100_000)}, "GiB")])
def test_settings_that_would_take_all_memory_are_refused(changes, says):
    with pytest.raises(UsageError, match=says):
        project(Cloud([[0.0, 0.0, 0.0]], np.zeros((1, 3), np.uint8)), **changes)
