"""A scan from beginning to end: the parts of a face, the preparation, what is replaced and what is left."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud import (
    CLOUD_ANONYMIZERS,
    FIRST,
    POINTS,
    RADIUS,
    Cloud,
    anonymise_scan,
    merged,
    prepare,
    segmented,
)
from ficgan.pointcloud.face import FaceLandmarks, MadeHead, made_head
from ficgan.pointcloud.frame import Placed, canonical

FEW = 1500


@pytest.fixture(scope="module")
def head() -> MadeHead:
    return made_head(3, points=6000)


def frame(seed: int) -> np.ndarray:
    transform = np.eye(4)
    transform[:3, :3] = Rotation.random(random_state=seed).as_matrix()
    transform[:3, 3] = (0.3, -0.2, 0.9)
    return transform


def placed(head: MadeHead, seed: int) -> tuple[Cloud, FaceLandmarks]:
    transform = frame(seed)
    marks = head.landmarks @ transform[:3, :3].T + transform[:3, 3]
    return head.cloud.moved(transform), FaceLandmarks.of_points(marks)


def noisy(b: float = 0.01, seed: int = 1):  # type: ignore[no-untyped-def]
    return CLOUD_ANONYMIZERS.make("uniform-noise", b=b, seed=seed)


@pytest.mark.parametrize(
    "name",
    [
        *("centroid-voxel", "uniform-noise", "pmp", "merge-2-faces"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tapering", "smooth-knn")),
    ],
)
def test_nothing_near_the_nose_stays_and_everything_else_does(name: str, head: MadeHead) -> None:
    cloud, marks = placed(head, 1)
    method = CLOUD_ANONYMIZERS[name].of_strength(30, seed=4)
    if method.traits.needs_target:
        method = method.with_target(made_head(9, points=1500).cloud)
    done = anonymise_scan(cloud, method, landmarks=marks, points=FEW, rest="keep")
    nose = marks.five[2]
    far = np.linalg.norm(cloud.points - nose, axis=1) > RADIUS + 1e-9
    face = done.record["points"]["anonymised"]
    kept = cKDTree(done.cloud.points[face:]).query(cloud.points[far])[0]
    assert far.any() and kept.max() < 1e-9 and len(done.cloud) - face == far.sum()
    near = cloud.points[~far]
    apart = cKDTree(done.cloud.points).query(near)[0]
    assert (apart < 1e-7).mean() < 0.001
    assert done.record["points"]["written"] == len(done.cloud)


def test_points_on_each_other_are_said_and_do_not_hide_that_a_face_is_sparse(head: MadeHead) -> None:
    marks = FaceLandmarks.of_points(head.landmarks)
    cloud = head.cloud.take(np.repeat(np.arange(1400), 30))
    done = anonymise_scan(cloud, CLOUD_ANONYMIZERS.make("smooth-knn", k=40), landmarks=marks, points=FEW)
    assert done.record["points"]["duplicates"] == 29 * 1400
    assert any("exactly on others" in each for each in done.warnings)
    assert any("points where" in each for each in done.warnings)


@pytest.mark.slow
def test_a_second_face_is_not_left_clear_in_silence(head: MadeHead) -> None:
    beside = np.eye(4)
    beside[2, 3] = 0.4
    other = made_head(8, points=6000).cloud.moved(beside)
    two = merged(head.cloud, other)
    marks = FaceLandmarks.of_points(head.landmarks)
    with pytest.raises(InputError, match="another face"):
        anonymise_scan(two, noisy(), landmarks=marks, points=FEW, rest="keep")
    alone = anonymise_scan(two, noisy(), landmarks=marks, points=FEW).cloud
    assert np.linalg.norm(alone.points - other.points.mean(axis=0), axis=1).min() > 0.1


# The preparation.


@pytest.fixture(scope="module")
def dense_head() -> MadeHead:
    return made_head(1, points=45_000)


def as_placed(cloud: Cloud) -> Placed:
    return Placed(cloud, np.eye(4), "landmarks")


def test_the_preparation_stage_by_stage(head: MadeHead) -> None:
    assert (FIRST, POINTS) == (10_500, 10_352)
    ready = prepare(as_placed(head.cloud), FEW)
    assert list(ready.counts) == ["scan", "box", "inner", "first sampling", "outliers", "last sampling"]
    counts = list(ready.counts.values())
    assert counts == sorted(counts, reverse=True) and counts[3] >= 1500 and counts[5] == 1500 == len(ready.inner)
    assert ready.counts["box"] - ready.counts["inner"] == len(ready.outer) > 100
    near, far = (np.linalg.norm(part.points, axis=1) for part in (ready.inner, ready.outer))
    assert near.max() <= 0.14 < far.min()
    scan = cKDTree(head.cloud.points)
    assert scan.query(merged(ready.inner, ready.outer).points)[0].max() < 1e-9  # points are chosen, never moved


@pytest.mark.slow
def test_the_numbers_of_the_thesis(dense_head: MadeHead) -> None:
    ready = prepare(canonical(dense_head.cloud, FaceLandmarks.of_points(dense_head.landmarks)))
    assert 10_500 <= ready.counts["first sampling"] < 11_000 and ready.counts["last sampling"] == 10_352
    assert len(ready.inner) == 10_352 and len(ready.outer) > 1000
    assert ready.inner.colors is not None and ready.outer.colors is not None


def test_refusals(dense_head: MadeHead) -> None:
    near = np.flatnonzero(np.linalg.norm(dense_head.cloud.points, axis=1) < 0.14)[:120]
    for call in (
        lambda: prepare(as_placed(dense_head.cloud.take(near))),
        lambda: canonical(Cloud(np.zeros((0, 3)))),
        lambda: prepare(as_placed(Cloud(dense_head.cloud.points + 2.0))),
        lambda: segmented(Cloud(np.zeros((0, 3)))),
    ):
        with pytest.raises(InputError):
            call()
