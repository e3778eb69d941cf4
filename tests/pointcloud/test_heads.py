"""Made heads: where the face is, who it is, how it was sampled, and that a face detector finds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from ficgan.errors import UsageError
from ficgan.pointcloud.heads import (
    CENTRE,
    EXPRESSIONS,
    Expression,
    Features,
    MadeHead,
    Surface,
    made_head,
    mesh,
    scanned,
)
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_frame


@pytest.fixture(scope="module")
def head() -> MadeHead:
    return made_head(3)


def test_frame_is_canonical(head: MadeHead) -> None:
    points = head.cloud.points
    assert len(points) == 45_000 and head.cloud.colors is not None
    face = np.abs(points[:, 1]) < 0.05
    tip = points[face][points[face, 0].argmax()]
    assert np.linalg.norm(tip) < 0.002
    assert points[:, 0].max() < 0.002
    assert 0.12 < np.ptp(points[np.abs(points[:, 1]) < 0.01, 2]) < 0.21
    marks = head.landmarks
    assert marks[36:48, 1].min() > 0.01 > -0.01 > marks[48:, 1].max(), "eyes are above the tip, lips below"
    assert marks[36, 2] > 0.03 and marks[45, 2] < -0.03, "point 36 is the person's right, +z"
    np.testing.assert_allclose(landmark_frame(FaceLandmarks.of_points(marks)), np.eye(4), atol=1e-9)


def test_landmarks_lie_on_the_surface_and_mirror(head: MadeHead) -> None:
    away, _ = cKDTree(head.cloud.points).query(head.landmarks)
    assert away.max() < 0.0025 and np.median(away) < 0.001
    for right, left in (
        (0, 16),
        (3, 13),
        (17, 26),
        (21, 22),
        (31, 35),
        (36, 45),
        (40, 47),
        (48, 54),
        (60, 64),
        (67, 65),
    ):
        np.testing.assert_allclose(head.landmarks[right] * [1, 1, -1], head.landmarks[left], atol=1e-9)


def test_normals_are_the_surfaces(head: MadeHead) -> None:
    normals = head.cloud.normals
    assert normals is not None
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1.0, atol=1e-9)
    _, near = cKDTree(head.cloud.points).query(head.cloud.points[:2000], 10)
    patches = head.cloud.points[near] - head.cloud.points[near].mean(axis=1, keepdims=True)
    _, _, axes = np.linalg.svd(patches)
    along = np.abs(np.einsum("nc,nc->n", axes[:, 2], normals[:2000]))
    assert np.median(along) > 0.98
    outwards = head.cloud.points - CENTRE / 1000 - [0.01, 0, 0]
    assert (np.einsum("nc,nc->n", outwards, normals) > 0).mean() > 0.97


def test_bare_surface_is_the_union_of_two_ellipsoids() -> None:
    face = Surface(Features(), Expression())
    rays = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    crown, side, ahead = face.radius(rays)
    assert crown == pytest.approx(30.0 + 95.0 - 10.0, abs=0.5)
    assert side == pytest.approx(76.0 * np.sqrt(1 - (20 / 95) ** 2), abs=4.0)
    jaw = 20.0 + 57.0 * np.sqrt(1 - (35 / 59) ** 2)
    skull = 78.0 * np.sqrt(1 - (20 / 95) ** 2)
    assert ahead == pytest.approx(5 * np.log(np.exp(jaw / 5) + np.exp(skull / 5)), rel=1e-9)


def test_repeats_and_differs() -> None:
    one, again, other_scan = made_head(1, points=2000), made_head(1, points=2000), made_head(1, points=2000, scan=1)
    np.testing.assert_array_equal(one.cloud.points, again.cloud.points)
    assert not np.array_equal(one.cloud.points, other_scan.cloud.points)
    np.testing.assert_array_equal(one.landmarks, other_scan.landmarks)
    assert made_head(2, points=2000).features != one.features


@pytest.mark.slow
def test_two_scans_of_one_person_are_nearer_than_two_people() -> None:
    heads = [[made_head(seed, points=4000, scan=scan).cloud.points for scan in range(2)] for seed in range(4)]
    trees = [cKDTree(scans[0]) for scans in heads]
    apart = np.array([[tree.query(scans[1])[0].mean() for scans in heads] for tree in trees])
    assert (apart.argmin(axis=1) == np.arange(4)).all()


def test_expressions_move_what_they_name() -> None:
    rest = made_head(5, points=200).landmarks
    open_ = made_head(5, points=200, expression="surprised").landmarks
    smile = made_head(5, points=200, expression=1.0).landmarks
    shut = made_head(5, points=200, expression="eyes-closed").landmarks
    assert (open_[62] - open_[66])[1] > (rest[62] - rest[66])[1] + 0.01
    assert open_[19, 1] > rest[19, 1] + 0.004
    assert open_[8, 1] < rest[8, 1] - 0.003
    assert np.ptp(smile[[48, 54], 2]) > np.ptp(rest[[48, 54], 2]) + 0.004 and smile[48, 1] > rest[48, 1]
    assert shut[37, 1] - shut[41, 1] < 0.15 * (rest[37, 1] - rest[41, 1])
    assert set(EXPRESSIONS) >= {"neutral", "smiling", "angry", "surprised", "eyes-closed", "pouting"}


@settings(max_examples=4)
@given(seed=st.integers(0, 2**40), points=st.integers(100, 700))
def test_any_seed_gives_a_whole_cloud(seed: int, points: int) -> None:
    head = made_head(seed, points=points, colour=False, noise=0.0002)
    assert len(head.cloud) == points and head.cloud.colors is None
    assert np.abs(head.cloud.points).max() < 0.16 and head.landmarks.shape == (68, 3)


def test_noise_is_along_normals() -> None:
    still, noisy = made_head(4, points=3000), made_head(4, points=3000, noise=0.001)
    moved = noisy.cloud.points - still.cloud.points
    assert still.cloud.normals is not None
    assert np.abs(np.cross(moved, still.cloud.normals)).max() < 1e-9
    assert moved.std() * np.sqrt(3) == pytest.approx(0.001, rel=0.1)


def test_density_follows_area() -> None:
    sheet = mesh(Surface(Features.drawn(0), Expression()))
    whole = scanned(*sheet, 20_000, np.random.default_rng(0))[0]
    facing = whole[:, 0] > -30
    spacing = cKDTree(whole).query(whole[facing], 9)[0][:, 8]
    assert np.quantile(spacing, 0.95) < 2.5 * np.quantile(spacing, 0.05)


@pytest.mark.parametrize("wrong", [{"points": 99}, {"noise": -1.0}, {"expression": "sneezing"}])
def test_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"expression|100 points"):
        made_head(0, **wrong)  # type: ignore[arg-type]


def test_a_face_detector_finds_them(shared_models: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FICGAN_MODELS", str(shared_models))
    from ficgan.faces import get_detector

    detector = get_detector("yunet")
    for seed in range(2):
        found = detector.detect(_picture(made_head(seed)))
        assert len(found) == 1 and found[0].score > 0.85


def _picture(head: MadeHead) -> np.ndarray:
    """Nearer points over farther ones, as discs."""
    points, colors = head.cloud.points, head.cloud.colors
    assert colors is not None
    order = np.argsort(points[:, 0], kind="stable")
    scale = 515 / 0.30
    u = np.rint(389 / 2 - points[order, 2] * scale).astype(int)
    v = np.rint(515 / 2 - points[order, 1] * scale).astype(int)
    picture = np.full((515, 389, 3), 255, np.uint8)
    for du, dv in [(i, j) for i in (-2, -1, 1, 2, 0) for j in (-2, -1, 1, 2, 0)]:
        inside = (u + du >= 0) & (u + du < 389) & (v + dv >= 0) & (v + dv < 515)
        picture[(v + dv)[inside], (u + du)[inside]] = colors[order][inside]
    return picture
