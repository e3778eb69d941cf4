"""Distances and curvature against brute force and closed forms; recognisers of shape on made heads and scans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, pca_normals
from ficgan.pointcloud.geometry import (
    DESCRIPTIONS,
    cloud_distances,
    compare_descriptions,
    curvature,
    curvature_error,
    describe_depth,
    normal_error,
)
from ficgan.pointcloud.heads import made_head


def oriented_cloud(count: int, rng: np.random.Generator) -> Cloud:
    normals = rng.standard_normal((count, 3))
    return Cloud(rng.random((count, 3)), None, normals / np.linalg.norm(normals, axis=1, keepdims=True))


@given(st.integers(1, 40), st.integers(1, 40))
def test_all_distances_are_brute_force(first, second):
    rng = np.random.default_rng(41 * first + second)
    a, b = oriented_cloud(first, rng), oriented_cloud(second, rng)
    gaps = np.linalg.norm(a.points[:, None] - b.points, axis=2)
    there, back = gaps.min(axis=1), gaps.min(axis=0)
    got = cloud_distances(a, b)
    assert got.chamfer == pytest.approx((there.mean() + back.mean()) / 2)
    assert got.hausdorff == pytest.approx(max(there.max(), back.max()))
    assert got.hausdorff_95 == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)))
    assert got.chamfer == pytest.approx(cloud_distances(b, a).chamfer)

    near = gaps.argmin(axis=1)
    angles = [np.degrees(np.arccos(min(1, abs(n @ b.normals[j])))) for n, j in zip(a.normals, near, strict=True)]
    assert normal_error(a, b) == pytest.approx(np.mean(angles))


def test_a_lifted_plane(rng):
    plane = np.column_stack([np.zeros(2000), rng.random((2000, 2))])
    lifted = plane + np.array([0.002, 0, 0])
    assert normal_error(Cloud(lifted), Cloud(plane)) < 1e-4
    assert cloud_distances(Cloud(lifted), Cloud(plane)).hausdorff == pytest.approx(0.002)
    assert cloud_distances(Cloud(plane), Cloud(plane)).chamfer == 0


def test_an_empty_cloud_is_refused(rng):
    with pytest.raises(InputError, match="0 points"):
        cloud_distances(Cloud(np.empty((0, 3))), oriented_cloud(3, rng))


# Curvature.


def ball(radius: float, rng: np.random.Generator, count: int = 6000) -> Cloud:
    rays = rng.standard_normal((count, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    normals = pca_normals(radius * rays)
    return Cloud(radius * rays, None, normals * np.sign((normals * rays).sum(axis=1, keepdims=True)))


def test_a_sphere(rng):
    mean, gaussian = curvature(ball(0.1, rng), neighbours=30)
    np.testing.assert_allclose(mean, 10, rtol=0.03)
    np.testing.assert_allclose(gaussian, 100, rtol=0.06)


def test_a_sphere_seen_from_inside(rng):
    outside = ball(0.1, rng)
    mean, _ = curvature(Cloud(outside.points, None, -outside.normals), neighbours=30)
    np.testing.assert_allclose(mean, -10, rtol=0.03)


def test_a_cylinder(rng):
    angle, height = rng.random(6000) * 2 * np.pi, rng.random(6000) * 0.3
    points = np.column_stack([0.05 * np.cos(angle), 0.05 * np.sin(angle), height])
    rays = points * [20, 20, 0]
    inner = (height > 0.03) & (height < 0.27)
    mean, gaussian = curvature(Cloud(points, None, rays), neighbours=30)
    np.testing.assert_allclose(mean[inner], 10, rtol=0.03)
    assert np.abs(gaussian[inner]).max() < 6  # of 400, if it were a sphere


def test_a_saddle_where_the_surface_is_steep_too(rng):
    y, z = rng.random((2, 8000)) * 0.2 - 0.1
    points = np.column_stack([5 * (y * y - z * z), y, z])
    slopes = np.column_stack([np.ones(8000), -10 * y, 10 * z])
    normals = slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
    steep = 1 + 100 * (y * y + z * z)
    true_mean = -((1 + 100 * z * z) * 10 - (1 + 100 * y * y) * 10) / 2 / steep**1.5
    inner = (np.abs(y) < 0.09) & (np.abs(z) < 0.09)
    mean, gaussian = curvature(Cloud(points, None, normals), neighbours=30)
    np.testing.assert_allclose(gaussian[inner], (-100 / steep**2)[inner], rtol=0.05)
    np.testing.assert_allclose(mean[inner], true_mean[inner], atol=0.3)


def test_a_plane_is_flat_and_doubles_do_no_harm(rng):
    flat = np.column_stack([np.zeros(500), rng.random((500, 2))])
    mean, _ = curvature(Cloud(np.concatenate([flat, flat[:50], np.tile(flat[:1], (80, 1))])), neighbours=20)
    assert np.isfinite(mean).all() and np.abs(mean).max() < 1e-6


def test_the_error_between_two_spheres(rng):
    small, large = ball(0.09, rng), ball(0.1, rng)
    assert curvature_error(small, large) == pytest.approx(1 / 0.09 - 10, rel=0.1)
    assert curvature_error(large, large) == 0


def test_too_few_points_are_refused(rng):
    with pytest.raises(InputError, match="needs at least 6"):
        curvature(Cloud(rng.random((5, 3))))
    with pytest.raises(InputError, match="6 neighbours"):
        curvature(Cloud(rng.random((50, 3))), neighbours=4)


# Recognisers.


NAMES = sorted(DESCRIPTIONS)


def rank_1(scores: np.ndarray, people: list[str]) -> float:
    """Of the clouds that have another of the same person, the share whose best match other than itself is one."""
    best = np.where(np.eye(len(people), dtype=bool), -np.inf, scores).argmax(axis=1)
    return float(np.mean([people[j] == who for j, who in zip(best, people, strict=True) if people.count(who) > 1]))


def coarse(cloud: Cloud, side: float = 0.00875) -> Cloud:
    return Cloud(np.unique((np.floor(cloud.points / side) + 0.5) * side, axis=0))


@pytest.fixture(scope="module")
def heads() -> list[Cloud]:
    """Two scans each of six made people, the second with closed eyes."""
    return [
        made_head(seed, expression=mood, points=6000, scan=scan).cloud
        for seed in range(6)
        for scan, mood in enumerate(("neutral", "eyes-closed"))
    ]


PEOPLE = [str(seed) for seed in range(6) for _ in range(2)]


@pytest.fixture(scope="module")
def scans(shared_data) -> tuple[list[Cloud], list[str]]:
    """The shared scans, every fourth point, brought to the canonical frame by their landmarks."""
    from ficgan.pointcloud.files import read_cloud
    from ficgan.pointcloud.frame import canonical
    from ficgan.pointcloud.landmarks import landmark_file_beside, read_landmarks

    paths = sorted((shared_data / "clouds").glob("*.ply"))
    if not paths:
        pytest.skip("there are no scans in the shared data")
    clouds = []
    for path in paths:
        beside = landmark_file_beside(path)
        assert beside is not None
        clouds.append(canonical(read_cloud(path).take(np.arange(0, 45_000, 4)), read_landmarks(beside)).cloud)
    return clouds, [path.stem.split("_")[0] for path in paths]


@pytest.mark.parametrize("name", NAMES)
def test_made_heads_are_known_again(heads, name):
    vectors = np.stack([DESCRIPTIONS[name](head) for head in heads])
    assert vectors.dtype == np.float32 and np.isfinite(vectors).all()
    scores = compare_descriptions(vectors, vectors)
    assert rank_1(scores, PEOPLE) >= 10 / 12
    apart = vectors - vectors.mean(axis=0)
    want = [[np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for b in apart] for a in apart]
    np.testing.assert_allclose(scores, want, atol=1e-4)


def test_probes_are_rows_and_the_gallery_columns(heads):
    vectors = np.stack([describe_depth(head) for head in heads[:5]])
    scores = compare_descriptions(vectors, vectors[:2])
    assert scores.shape == (2, 5) and scores[0].argmax() == 0 and scores[1].argmax() == 1


def test_a_shift_and_a_small_turn_are_no_identity(heads):
    tilted = heads[0].points + np.column_stack([0.003 + 0.03 * heads[0].points[:, 1], np.zeros((len(heads[0]), 2))])
    np.testing.assert_allclose(describe_depth(Cloud(tilted)), describe_depth(heads[0]), atol=0.2)


def test_a_noisy_cloud_is_described_and_a_gallery_of_one_refused(heads, rng):
    for describe in DESCRIPTIONS.values():
        noisy = describe(Cloud(heads[0].points + rng.uniform(-0.02, 0.02, heads[0].points.shape)))
        assert np.isfinite(noisy).all() and noisy.shape == describe(coarse(heads[0])).shape
        with pytest.raises(InputError, match="two different faces"):
            compare_descriptions(noisy[None], noisy[None])


@pytest.mark.slow
def test_scans_are_known_again(scans):
    clouds, people = scans
    for name in NAMES:
        vectors = np.stack([DESCRIPTIONS[name](cloud) for cloud in clouds])
        assert rank_1(compare_descriptions(vectors, vectors), people) >= 10 / 11, name


@pytest.mark.parametrize("name", NAMES)
def test_a_cloud_elsewhere_is_refused(name, heads):
    with pytest.raises(InputError, match="canonical frame"):
        DESCRIPTIONS[name](Cloud(heads[0].points + 1))
