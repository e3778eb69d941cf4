"""Registration, recognisers of shape, neighbours; the picture of the thesis beside matplotlib's; light."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import (
    Cloud,
    farthest_point_sample,
    mean_of_neighbours,
    moved,
    pca_normals,
    without_outliers,
)
from ficgan.pointcloud.face import made_head
from ficgan.pointcloud.geometry import (
    AMBIENT,
    DESCRIPTIONS,
    LAMP,
    SKIN,
    describe,
    icp,
    project,
    register,
    shaded,
    splat,
)


def face_of(seed: int, points: int = 4000, scan: int = 0) -> Cloud:
    return Cloud(made_head(seed, points=points, scan=scan).cloud.points)


def motion(degrees: float, shift: float, rng: np.random.Generator) -> np.ndarray:
    axis, way = rng.standard_normal((2, 3))
    move = np.eye(4)
    move[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    move[:3, 3] = shift * way / np.linalg.norm(way)
    return move


def test_a_motion_is_undone_exactly(rng: np.random.Generator) -> None:
    face, move = face_of(0), motion(5, 0.004, rng)
    found = register(face, face.moved(move))
    np.testing.assert_allclose(found.transform @ move, np.eye(4), atol=1e-6)
    assert found.fitness == 1 and found.rmse < 1e-6


def test_fitness_counts_points_of_the_cloud_that_moves() -> None:
    few, many = np.zeros((1, 3)), np.array([[0, 0, 0.001], [0, 0, 1], [0, 1, 0], [1, 0, 0]])
    assert icp(few, many, np.tile([1.0, 0, 0], (4, 1)), np.eye(4)).fitness == 1
    found = icp(many, few, np.array([[1.0, 0, 0]]), np.eye(4))
    assert found.fitness == 0.25 and found.rmse == pytest.approx(0.001)


@pytest.mark.slow
def test_the_target_is_laid_on_the_source_wherever_it_lies(rng: np.random.Generator) -> None:
    source, target = face_of(0, 2500), face_of(5, 2500)
    straight = target.moved(register(source, target).transform).points
    for move in (motion(10, 0.01, rng), motion(140, 0.3, rng)):  # the second one is not found by ICP alone
        found = register(source, target.moved(move))
        assert found.fitness > 0.8
        np.testing.assert_allclose(target.moved(found.transform @ move).points, straight, atol=2e-3)


# -- recognisers of shape ---------------------------------------------------------------------------------------------

PEOPLE = [str(seed) for seed in range(6) for _ in range(2)]


def rank_1(scores: np.ndarray, people: list[str]) -> float:
    """Of the clouds that have another of the same person, the share whose best match other than itself is one."""
    best = np.where(np.eye(len(people), dtype=bool), -np.inf, scores).argmax(axis=1)
    return float(np.mean([people[j] == who for j, who in zip(best, people, strict=True) if people.count(who) > 1]))


@pytest.fixture(scope="module")
def heads() -> list[Cloud]:
    """Two scans each of six made people."""
    return [face_of(seed, 6000, scan) for seed in range(6) for scan in range(2)]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_made_heads_are_known_again(heads: list[Cloud], name: str) -> None:
    vectors = np.stack([describe(head)[name] for head in heads])
    assert vectors.shape == (12, DESCRIPTIONS[name]) and np.isfinite(vectors).all()
    apart = vectors - vectors.mean(axis=0)
    scores = [[np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for b in apart] for a in apart]
    assert rank_1(np.array(scores), PEOPLE) >= 10 / 12


def test_a_shift_and_a_small_turn_are_no_identity(heads: list[Cloud]) -> None:
    tilted = heads[0].points + np.column_stack([0.003 + 0.03 * heads[0].points[:, 1], np.zeros((len(heads[0]), 2))])
    np.testing.assert_allclose(describe(Cloud(tilted))["depth"], describe(heads[0])["depth"], atol=0.2)
    with pytest.raises(InputError, match="canonical frame"):
        describe(Cloud(heads[0].points + 1))


def surface(rng: np.random.Generator, count: int) -> np.ndarray:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    return np.column_stack([-(flat**2).sum(axis=1) * 5, flat])


@pytest.mark.parametrize("k", [1, 7, 280, 600])
def test_means_equal_brute_force(rng: np.random.Generator, k: int) -> None:
    points, values = surface(rng, 600), rng.random((600, 6))
    apart = cdist(points, points)
    order = np.argsort(apart, axis=1)[:, :k]
    np.testing.assert_allclose(mean_of_neighbours(points, values, k), values[order].mean(axis=1), atol=1e-12)


def test_normals_are_those_of_a_loop_and_face_the_front(rng: np.random.Generator) -> None:
    points = rng.random((200, 3)) * [1, 1, 0.3]
    got = pca_normals(points, neighbours=12)
    for i, point in enumerate(points):
        near = np.argsort(np.linalg.norm(points - point, axis=1))[:12]
        want = np.linalg.eigh(np.cov(points[near].T))[1][:, 0]
        assert abs(got[i] @ want) > 1 - 1e-9 and got[i, 0] >= 0


def test_the_sample_is_the_definition(rng: np.random.Generator) -> None:
    points = rng.random((500, 3))
    apart, chosen = cdist(points, points), [0]
    while len(chosen) < 400:
        chosen.append(int(apart[chosen].min(axis=0).argmax()))
    assert farthest_point_sample(points, 400).tolist() == chosen


def test_outliers_are_those_of_algorithm_7(rng: np.random.Generator) -> None:
    points = surface(rng, 800)
    points[rng.choice(800, 8, replace=False), 0] += rng.uniform(0.005, 0.08, 8)
    cloud = Cloud(points, rng.integers(0, 256, (800, 3), np.uint8))
    mean = np.array([float(np.sort(row)[:50].mean()) for row in cdist(points, points)])
    kept = mean <= np.mean(mean) + 4 * np.std(mean, ddof=1)
    left = without_outliers(cloud)
    assert 0 < (~kept).sum() < 100 and left.colors is not None and cloud.colors is not None
    assert (left.colors == cloud.colors[kept]).all() and (left.points == points[kept]).all()


def test_refusals(rng: np.random.Generator) -> None:
    for call, error in (
        (lambda: mean_of_neighbours(np.zeros((5, 3)), np.zeros((5, 3)), 6), InputError),
        (lambda: mean_of_neighbours(np.zeros((5, 3)), np.zeros(5), 0), UsageError),
        (lambda: without_outliers(Cloud(rng.random((49, 3)))), InputError),
        (lambda: pca_normals(rng.random((50, 1)) * [1.0, 2, 3]), InputError),
        (lambda: pca_normals(np.eye(3)[:2]), InputError),
        (lambda: Cloud(np.zeros((3, 2))), InputError),
        (lambda: Cloud(np.full((3, 3), np.nan)), InputError),
        (lambda: Cloud(np.zeros((3, 3)), np.zeros((2, 3), np.uint8)), InputError),
    ):
        with pytest.raises(error):
            call()


Image = np.ndarray


def head(draw: np.random.Generator, count: int = 12_000) -> Cloud:
    """The front of an ellipsoid, striped, with some noise around it."""
    way = draw.normal(size=(count, 3))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    way[:, 0] = np.abs(way[:, 0])
    points = way * [0.1, 0.14, 0.09] - [0.1, 0, 0]
    colors = np.clip(128 + 60 * np.sin(points * 120) + 40 * way, 0, 255).astype(np.uint8)
    stray = draw.uniform(-0.3, 0.3, (200, 3))
    return Cloud(np.vstack([points, stray]), np.vstack([colors, draw.integers(0, 256, (200, 3), np.uint8)]))


def scattered(cloud: Cloud, point_size: float, key: int) -> Image:
    """As in the thesis: matplotlib's scatter of y and z, turned upright."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    assert cloud.colors is not None
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


@pytest.mark.slow
@pytest.mark.parametrize(("point_size", "order"), [(25, "y"), pytest.param(60, "x", marks=pytest.mark.slow)])
def test_it_is_matplotlibs_picture(rng: np.random.Generator, point_size: float, order: Literal["y", "x"]) -> None:
    structural_similarity = pytest.importorskip("skimage.metrics").structural_similarity
    cloud = head(rng, 6000)
    wanted = scattered(cloud, point_size, {"x": 0, "y": 1}[order])
    got = project(cloud, point_size=point_size, order=order)
    assert got.shape == wanted.shape == (515, 389, 3)
    assert structural_similarity(got, wanted, channel_axis=-1) > 0.98
    apart = np.abs(got.astype(float) - wanted).mean()
    assert apart < 1.6
    # The parity is one of places too: a picture that is a pixel off is farther away.
    for shift in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        assert np.abs(np.roll(got, shift, (0, 1)).astype(float) - wanted).mean() > 1.5 * apart


def place(picture: Image) -> tuple[float, float]:
    """Column and row of the middle of what is not white."""
    dark = 255.0 - picture.min(axis=-1)
    rows, columns = np.indices(dark.shape)
    return float((dark * columns).sum() / dark.sum()), float((dark * rows).sum() / dark.sum())


BLACK = np.zeros((1, 3), np.uint8)


@pytest.mark.parametrize(("y", "z"), [(0, 0), (0.1, 0), (-0.12, 0.07)])
def test_a_point_falls_where_the_axes_put_it(y: float, z: float) -> None:
    picture = project(Cloud(np.array([[0.0, y, z]]), BLACK))
    assert place(picture) == pytest.approx((193.7 - z * 369.6 / 0.36, 256.5 - y * 496 / 0.5), abs=0.3)
    area = (255.0 - picture[..., 0]).sum() / 255
    assert area == pytest.approx(np.pi * (3 * 100 / 72) ** 2, rel=0.03)  # (√25 + 1)/2 points


def test_what_lies_on_top_and_what_yaw_is() -> None:
    colors = np.array([[255, 0, 0], [0, 0, 255]], np.uint8)
    cloud = Cloud(np.array([(0.05, 0.0, 0.0), (0.0, 0.001, 0.0)]), colors)  # red is nearer, blue is higher
    middle = (slice(254, 258), slice(192, 196))
    assert (project(cloud)[middle] == (0, 0, 255)).all() and (project(cloud, order="x")[middle] == (255, 0, 0)).all()
    before_the_nose = Cloud(np.array([[0.1, 0.0, 0.0]]), BLACK)
    column, row = place(project(before_the_nose))
    right, same = place(project(before_the_nose, yaw=30))
    assert right == pytest.approx(column + 0.05 * 369.6 / 0.36, abs=0.5) and same == pytest.approx(row, abs=0.5)
    point, turn = np.array([[0.1, 0.02, 0.03]]), Rotation.from_euler("y", 30, degrees=True)
    assert np.array_equal(project(Cloud(turn.apply(point), BLACK)), project(Cloud(point, BLACK), yaw=30))


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((0, 3)),
        np.array([[0.0, 0, 0], [0.0, 0.1, 0]]),  # no surface to be lit
        np.vstack([np.random.default_rng(0).uniform(-0.1, 0.1, (100, 3)), [[0, 1e6, 0]]]),
    ],
)
def test_what_cannot_be_drawn_is_refused(points: Image) -> None:
    with pytest.raises(InputError):
        project(Cloud(points))


def looped(places: Image, colors: Image, radius: float, size: tuple[int, int], samples: int) -> Image:
    """Cell by cell, point by point; then the mean of each pixel's cells."""
    width, height = size
    cells = np.full((height * samples, width * samples, 3), 255.0)
    rows, columns = np.indices(cells.shape[:2])
    for (x, y), color in zip(places, colors, strict=True):
        column, row = np.floor((x + 0.5) * samples), np.floor((y + 0.5) * samples)
        cells[(columns - column) ** 2 + (rows - row) ** 2 <= (radius * samples) ** 2] = color
    means = cells.reshape(height, samples, width, samples, 3).mean(axis=(1, 3))
    return np.asarray(np.floor(means + 0.5).astype(np.uint8))


@given(
    count=st.integers(0, 40),
    radius=st.floats(0.3, 6),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    samples=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_picture_is_that_of_a_loop(count: int, radius: float, size: tuple[int, int], samples: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    places = draw.uniform(-8, max(size) + 8, (count, 2))
    colors = draw.integers(0, 256, (count, 3), np.uint8)
    assert (splat(places, colors, radius, size, samples) == looped(places, colors, radius, size, samples)).all()


def relief(height: float) -> Cloud:
    """A plate of 12 cm, 1.6 mm between points, with a Gaussian bump of that height in metres, or a pit."""
    y, z = np.meshgrid(*[np.arange(-0.06, 0.06, 0.0016)] * 2)
    x = height * np.exp(-(y**2 + z**2) / (2 * 0.006**2))
    return Cloud(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))


def test_light_falls_by_the_cosine_and_cavities_are_dark() -> None:
    assert np.linalg.norm(LAMP) == pytest.approx(1)
    flat = relief(0)
    middle = np.linalg.norm(flat.points[:, 1:], axis=1) < 0.002
    light = AMBIENT + (1 - AMBIENT) * LAMP[0]
    colors = shaded(flat).colors
    assert colors is not None and np.abs(colors[middle] - light * np.array(SKIN)).max() <= 1
    slope = Cloud(moved(flat.points, np.diag([1.0, 1, 1, 1]) + np.array([[0, 0.5, 0, 0], *[[0] * 4] * 3])))
    tilted = np.array([1, -0.5, 0]) / np.linalg.norm([1, -0.5, 0])
    colors = shaded(slope).colors
    expected = (AMBIENT + (1 - AMBIENT) * float(tilted @ LAMP)) * np.array(SKIN)
    assert colors is not None and np.abs(np.median(colors[middle], axis=0) - expected).max() <= 3
    even, pit, bump = (np.asarray(shaded(relief(h)).colors)[middle].mean() for h in (0, -0.006, 0.006))
    assert pit < 0.9 * even and bump >= even
