"""The canonical frame, from landmarks and without; made heads; a scan: what is prepared, replaced and left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud import CLOUD_ANONYMIZERS, FIRST, POINTS, RADIUS, Cloud, anonymise_scan, prepare, read_cloud
from ficgan.pointcloud.cloud import merged
from ficgan.pointcloud.face import (
    FaceLandmarks,
    MadeHead,
    landmark_file_beside,
    landmark_frame,
    made_head,
    read_landmarks,
)
from ficgan.pointcloud.frame import SURE, Placed, canonical, has_other_face

SLOW = pytest.mark.slow
FIVE = np.array([[-0.02, 0.035, 0.03], [-0.02, 0.035, -0.03], [0, 0, 0], [-0.02, -0.03, 0.025], [-0.02, -0.03, -0.025]])


@pytest.fixture(scope="module")
def head() -> MadeHead:
    return made_head(5, points=12_000)


def motion_of(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = Rotation.random(random_state=rng).as_matrix(), rng.normal(size=3)
    return motion


def moved(points: np.ndarray, motion: np.ndarray) -> np.ndarray:
    return points @ motion[:3, :3].T + motion[:3, 3]


def off(found: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Degrees and millimetres between two frames."""
    between = found @ np.linalg.inv(true)
    turn = np.degrees(Rotation.from_matrix(between[:3, :3]).magnitude())
    return float(turn), float(1000 * np.linalg.norm(between[:3, 3]))


# -- landmarks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_five_landmarks_undo_any_motion(seed: int) -> None:
    motion = motion_of(seed)
    frame = landmark_frame(FaceLandmarks.of_points(moved(FIVE, motion)))
    np.testing.assert_allclose(frame @ motion, np.eye(4), atol=1e-12)
    assert np.linalg.det(frame[:3, :3]) == pytest.approx(1)


def test_68_landmarks_say_what_the_frame_promises(shared_data: Path) -> None:
    path = shared_data / "clouds" / "f0001_neutral.ply"
    if not path.is_file():
        pytest.skip(f"needs the scans; there is no {path}")
    motion, cloud = motion_of(9), read_cloud(path)
    given = np.loadtxt(landmark_file_beside(path) or "")
    landmarks = FaceLandmarks.of_points(1000 * moved(given / 1000, motion))  # millimetres, seen by their size
    placed = canonical(cloud.moved(motion), landmarks)
    five = moved(landmarks.five, placed.transform)
    assert placed.how == "landmarks" and not placed.doubts
    assert SURE < placed.likeness <= 1
    np.testing.assert_allclose(five[2], 0, atol=1e-12)
    assert five[:2, 0].mean() == pytest.approx(five[3:, 0].mean(), abs=1e-12)  # one upright plane
    assert five[0, 2] > 0.02 and five[1, 2] < -0.02 and five[0, 1] > 0.02 and five[3, 1] < -0.02
    near = placed.cloud.points[np.linalg.norm(placed.cloud.points, axis=1) < 0.025]
    assert abs(near[:, 0].max()) < 0.002  # nothing of the nose is in front of its tip


@pytest.mark.parametrize(
    "points",
    [
        FIVE[[1, 0, 2, 4, 3]],
        FIVE * [0.0, 0.0, 1.0],
        np.zeros((6, 3)),
        np.where(FIVE == 0, np.nan, FIVE),
        FIVE * 37,
        FIVE + 0.5,
        *(FIVE + np.eye(5)[:, [row]] * [0.03, 0.0, 0.0] for row in range(3)),
    ],
)
def test_landmarks_of_no_face_or_another_cloud_are_refused(points: np.ndarray, head: MadeHead) -> None:
    with pytest.raises(InputError, match="landmarks"):
        canonical(head.cloud, FaceLandmarks.of_points(points))


def test_files_of_landmarks(tmp_path: Path) -> None:
    cloud = tmp_path / "ann.ply"
    assert landmark_file_beside(cloud) is None
    text, millimetres = tmp_path / "ann.landmarks.txt", tmp_path / "ann_landmarks_mm.txt"
    text.write_text("# five\n" + "\n".join(", ".join(map(str, row)) for row in FIVE) + "\n\n")
    assert landmark_file_beside(cloud) == text
    np.savetxt(millimetres, FIVE * 1000)
    assert landmark_file_beside(cloud) == millimetres
    for path in (text, millimetres):
        np.testing.assert_allclose(read_landmarks(path).five, FIVE, atol=1e-12)


# -- without landmarks ------------------------------------------------------------------------------------------------


def torso(rng: np.random.Generator) -> np.ndarray:
    """Neck and shoulders below a head."""
    ball = rng.normal(size=(15_000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    turn = rng.uniform(0, 2 * np.pi, 3000)
    neck = np.column_stack([0.06 * np.cos(turn) - 0.09, rng.uniform(-0.22, -0.11, 3000), 0.06 * np.sin(turn)])
    return np.concatenate([ball * [0.12, 0.22, 0.24] + [-0.12, -0.42, 0.0], neck])


def wall(rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.normal(-0.3, 0.002, 15_000), rng.uniform(-0.5, 0.5, (15_000, 2))])


FAR = np.array([4.5e5, 5.4e6, 200.0])


OTHERS = ("alone", "torso and wall", "strays", "child", "large", "noise", "sparse")


@pytest.mark.parametrize("what", ["far", *(pytest.param(what, marks=SLOW) for what in OTHERS)])
def test_a_face_is_found(head: MadeHead, what: str) -> None:
    rng, motion, points = np.random.default_rng(4), motion_of(31), head.cloud.points
    points = {
        "alone": lambda: points,
        "torso and wall": lambda: np.concatenate([points, torso(rng), wall(rng)]),
        "strays": lambda: np.concatenate([points, rng.uniform(-0.4, 0.4, (200, 3))]),
        "child": lambda: 0.7 * points,
        "large": lambda: 1.25 * points,
        "noise": lambda: points + rng.normal(0, 0.001, points.shape),
        "sparse": lambda: points[:2000],
        "far": lambda: points + FAR,
    }[what]()
    placed = canonical(Cloud(points).moved(motion))
    begin = np.eye(4)
    begin[:3, 3] = FAR if what == "far" else 0
    turn, shift = off(placed.transform @ motion @ begin, np.eye(4))
    assert turn < 6 and shift < 8 and placed.how == "automatic"
    assert not placed.doubts and not has_other_face(placed)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "median"), [(0.0, 4.0), (0.001, 6.0)])
def test_scans_are_found(shared_data: Path, noise: float, median: float) -> None:
    """Twelve scans in random orientations: within 12 degrees and 8 mm of their landmarks, half within fewer."""
    turns = []
    for seed, path in enumerate(sorted((shared_data / "clouds").glob("*.ply"))):
        landmarks = read_landmarks(landmark_file_beside(path) or "")
        cloud, true, motion = read_cloud(path), landmark_frame(landmarks), motion_of(seed)
        cloud = Cloud(cloud.points + np.random.default_rng(seed).normal(0, noise, cloud.points.shape))
        placed = canonical(cloud.moved(motion))
        turn, shift = off(placed.transform @ motion, true)
        assert turn < 12 and shift < 8 and not placed.doubts, path.name
        turns.append(turn)
    assert not turns or np.median(turns) < median


@pytest.mark.slow
@pytest.mark.parametrize("body", ["egg", "plane", "line", "cube", "noise", "cloud"])
def test_what_is_no_face_is_refused(rng: np.random.Generator, body: str) -> None:
    ball = rng.normal(size=(6000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    cube = rng.uniform(-0.1, 0.1, (6000, 3))
    side = np.arange(6000), rng.integers(0, 3, 6000)
    cube[side] = 0.1 * np.sign(cube[side])
    bodies = {
        "egg": ball * [0.1, 0.12, 0.08],
        "cube": cube,
        "noise": rng.uniform(-0.1, 0.1, (6000, 3)),
        "cloud": 0.07 * rng.normal(size=(6000, 3)),
        "plane": np.column_stack([np.zeros(6000), rng.uniform(-0.1, 0.1, (6000, 2))]),
        "line": np.outer(np.linspace(-0.1, 0.1, 6000), [1.0, 2.0, 3.0]) / 3,
    }
    with pytest.raises(InputError, match="--landmarks"):
        canonical(Cloud(bodies[body]))


def test_points_on_each_other_count_once(head: MadeHead, rng: np.random.Generator) -> None:
    few = head.cloud.take(rng.choice(len(head.cloud), 1600, replace=False))
    again = few.take(rng.permutation(np.repeat(np.arange(1600), 5)))
    placed = canonical(again, FaceLandmarks.of_points(head.landmarks))
    assert len(placed.cloud) == 1600 and placed.duplicates == 6400
    for cloud in (Cloud(np.repeat(rng.uniform(-0.1, 0.1, (6, 3)), 1000, axis=0)), head.cloud.take(np.arange(400))):
        with pytest.raises(InputError, match="points"):
            canonical(cloud)


# -- made heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smiling", [False, True])
def test_a_made_head_is_a_face_in_its_frame(smiling: bool) -> None:
    head = made_head(2, smiling=smiling, points=6000)
    placed = canonical(head.cloud, FaceLandmarks.of_points(head.landmarks))
    assert off(placed.transform, np.eye(4)) < (1e-6, 1e-6)
    assert placed.likeness > 0.75 and not placed.doubts
    assert head.cloud.colors is not None and head.cloud.colors.std(axis=0).min() > 5


# -- a scan from beginning to end --------------------------------------------------------------------------------------


FEW = 1500


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
    ):
        with pytest.raises(InputError):
            call()
