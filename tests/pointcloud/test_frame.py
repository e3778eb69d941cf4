"""The canonical frame: exact from landmarks, found without them, refused where there is no face; files of landmarks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud import Cloud, merged
from ficgan.pointcloud.frame import CONVINCING, SURE, canonical, other_faces
from ficgan.pointcloud.heads import MadeHead, made_head
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_file_beside, landmark_frame, read_landmarks

SLOW = pytest.mark.slow
FIVE = np.array([[-0.02, 0.035, 0.03], [-0.02, 0.035, -0.03], [0, 0, 0], [-0.02, -0.03, 0.025], [-0.02, -0.03, -0.025]])


@pytest.fixture(scope="module")
def head() -> MadeHead:
    return made_head(5, points=12_000)


def _motion(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = Rotation.random(random_state=rng).as_matrix(), rng.normal(size=3)
    return motion


def _moved(points: np.ndarray, motion: np.ndarray) -> np.ndarray:
    return points @ motion[:3, :3].T + motion[:3, 3]


def _off(found: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Degrees and millimetres between two frames."""
    between = found @ np.linalg.inv(true)
    turn = np.degrees(Rotation.from_matrix(between[:3, :3]).magnitude())
    return float(turn), float(1000 * np.linalg.norm(between[:3, 3]))


@pytest.mark.parametrize("seed", range(5))
def test_five_landmarks_undo_any_motion(seed: int) -> None:
    motion = _motion(seed)
    frame = landmark_frame(FaceLandmarks.of_points(_moved(FIVE, motion)))
    np.testing.assert_allclose(frame @ motion, np.eye(4), atol=1e-12)
    assert np.linalg.det(frame[:3, :3]) == pytest.approx(1)


def test_68_landmarks_say_what_the_frame_promises(head: MadeHead) -> None:
    motion = _motion(9)
    landmarks = FaceLandmarks.of_points(_moved(head.landmarks, motion) * 1000)  # millimetres, seen by their size
    placed = canonical(head.cloud.moved(motion), landmarks)
    five = _moved(landmarks.five, placed.transform)
    assert placed.how == "landmarks" and not placed.doubtful
    assert placed.likeness is not None and 0.8 < placed.likeness <= 1
    np.testing.assert_allclose(five[2], 0, atol=1e-12)
    assert five[:2, 0].mean() == pytest.approx(five[3:, 0].mean(), abs=1e-12)  # one upright plane
    assert five[0, 2] > 0.02 and five[1, 2] < -0.02 and five[0, 1] > 0.02 and five[3, 1] < -0.02
    np.testing.assert_allclose(five[0] - five[1], [0, 0, five[0, 2] - five[1, 2]], atol=1e-9)
    np.testing.assert_allclose(placed.cloud.points, _moved(head.cloud.moved(motion).points, placed.transform))
    assert placed.cloud.colors is not None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2, 3))])
def test_a_made_head_is_found(head: MadeHead, seed: int) -> None:
    motion = _motion(100 + seed)
    placed = canonical(head.cloud.moved(motion))
    true = landmark_frame(FaceLandmarks.of_points(_moved(head.landmarks, motion)))
    turn, shift = _off(placed.transform, true)
    assert turn < 4 and shift < 3
    assert placed.how == "automatic" and placed.residual < 0.006
    assert placed.likeness is not None and placed.likeness > SURE and not placed.doubtful and placed.others == 0


def _torso(rng: np.random.Generator) -> np.ndarray:
    """Neck and shoulders below a head."""
    ball = rng.normal(size=(15_000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    turn = rng.uniform(0, 2 * np.pi, 3000)
    neck = np.column_stack([0.06 * np.cos(turn) - 0.09, rng.uniform(-0.22, -0.11, 3000), 0.06 * np.sin(turn)])
    return np.concatenate([ball * [0.12, 0.22, 0.24] + [-0.12, -0.42, 0.0], neck])


def _wall(rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.normal(-0.3, 0.002, 15_000), rng.uniform(-0.5, 0.5, (15_000, 2))])


def _scene(head: MadeHead, what: str) -> np.ndarray:
    rng = np.random.default_rng(4)
    points = head.cloud.points
    around = {
        "torso": lambda: _torso(rng),
        "wall": lambda: _wall(rng),
        "torso and wall": lambda: np.concatenate([_torso(rng), _wall(rng)]),
        "strays": lambda: rng.uniform(-0.4, 0.4, (200, 3)),
    }
    if what in around:
        return np.concatenate([points, around[what]()])
    return {
        "child": 0.7 * points,
        "large": 1.25 * points,
        "noise": points + rng.normal(0, 0.001, points.shape),
        "sparse": points[:2000],
        "far": points + np.array([4.5e5, 5.4e6, 200.0]),
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        "torso and wall",
        "far",
        *(pytest.param(what, marks=SLOW) for what in ("torso", "wall", "strays", "child", "large", "noise", "sparse")),
    ],
)
def test_a_face_is_found_in_its_surroundings(head: MadeHead, what: str) -> None:
    motion = _motion(31)
    points = _scene(head, what)
    placed = canonical(Cloud(points).moved(motion))
    tip = np.array([4.5e5, 5.4e6, 200.0]) if what == "far" else np.zeros(3)
    begin = np.eye(4)
    begin[:3, 3] = tip
    turn, shift = _off(placed.transform @ motion @ begin, np.eye(4))
    assert turn < 5 and shift < 8
    assert not placed.doubtful and placed.others == 0
    nose = points[np.linalg.norm(points - tip, axis=1).argmin()]
    assert np.linalg.norm(_moved(_moved(nose, motion), placed.transform)) < 0.005


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2))])
def test_other_faces_are_counted(head: MadeHead, seed: int) -> None:
    """One head 40 cm beside another is not chosen silently."""
    beside = np.eye(4)
    beside[2, 3] = 0.4
    two = merged(head.cloud, made_head(11, points=12_000).cloud.moved(beside)).moved(_motion(seed))
    placed = canonical(two)
    assert placed.others == 1
    marks = FaceLandmarks.of_points(_moved(head.landmarks, _motion(seed)))
    alone = canonical(two, marks)
    assert alone.others == 0 and other_faces(two, alone) == 1


@pytest.mark.slow
def test_what_is_left_of_a_face_is_refused_or_doubtful(head: MadeHead) -> None:
    points = head.cloud.points
    for left in (points[points[:, 2] > -0.01], points[np.linalg.norm(points, axis=1) > 0.025]):
        try:
            placed = canonical(Cloud(left))
        except InputError:
            continue
        assert placed.doubtful and placed.likeness is not None and CONVINCING <= placed.likeness < SURE
    with pytest.raises(InputError, match="no face was found"):
        canonical(Cloud(points[np.linalg.norm(points, axis=1) > 0.08]))


@pytest.mark.parametrize(
    ("scale", "refused"), [(2.0, True), *(pytest.param(scale, scale > 1.5, marks=SLOW) for scale in (1.0, 1.4, 1.8))]
)
def test_a_face_of_the_wrong_scale_is_doubtful_or_refused(head: MadeHead, scale: float, refused: bool) -> None:
    """Of a head twice as large the sphere leaves half of the face clear, and it is as like a face."""
    cloud = Cloud(scale * head.cloud.points).moved(_motion(3))
    if refused:
        with pytest.raises(InputError, match="times as large as a usual one"):
            canonical(cloud)
        return
    placed = canonical(cloud)
    assert placed.size == pytest.approx(scale, rel=0.2) and placed.doubtful == (scale > 1.3)
    assert not placed.doubtful or "times as large" in " ".join(placed.doubts)


def test_large_landmarks_and_a_face_beyond_the_sphere_are_doubtful() -> None:
    head = made_head(0, points=12_000)
    assert canonical(head.cloud, FaceLandmarks.of_points(head.landmarks)).doubts == ()
    placed = canonical(Cloud(1.45 * head.cloud.points), FaceLandmarks.of_points(1.45 * head.landmarks))
    assert placed.size == pytest.approx(1.45, rel=0.15)
    assert any("times as large" in one for one in placed.doubts) and any("14 cm" in one for one in placed.doubts)


@pytest.mark.slow
def test_scans_have_the_size_of_faces(shared_data: Path) -> None:
    for path in sorted((shared_data / "clouds").glob("*.ply"))[::4]:
        for scale in (1.0, 1.5):
            try:
                placed = canonical(Cloud(scale * _scan(path).points))
            except InputError:
                assert scale == 1.5
                continue
            assert placed.doubtful == (scale == 1.5) and placed.size == pytest.approx(scale, rel=0.2), path.name


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "median"), [(0.0, 4.0), (0.001, 6.0)])
def test_scans_are_found(shared_data: Path, noise: float, median: float) -> None:
    """Twelve scans in random orientations: within 12 degrees and 8 mm of their landmarks, half within fewer."""
    turns = []
    for seed, path in enumerate(sorted((shared_data / "clouds").glob("*.ply"))):
        landmarks = read_landmarks(landmark_file_beside(path) or "")
        cloud, true, motion = _scan(path), landmark_frame(landmarks), _motion(seed)
        cloud = Cloud(cloud.points + np.random.default_rng(seed).normal(0, noise, cloud.points.shape))
        placed = canonical(cloud.moved(motion))
        turn, shift = _off(placed.transform @ motion, true)
        assert turn < 12 and shift < 8 and not placed.doubtful and placed.others == 0, path.name
        turns.append(turn)
    assert np.median(turns) < median


def _scan(path: Path) -> Cloud:
    data = path.read_bytes()
    begin = data.index(b"end_header\n") + 11
    return Cloud(np.frombuffer(data[begin:], "<f4").reshape(-1, 3).astype(float))


@pytest.mark.slow
def test_scan_landmarks_lie_on_their_scans(shared_data: Path) -> None:
    for path in sorted((shared_data / "clouds").glob("*.ply"))[::4]:
        beside = landmark_file_beside(path)
        assert beside is not None
        placed = canonical(_scan(path), read_landmarks(beside))
        near = placed.cloud.points[np.linalg.norm(placed.cloud.points, axis=1) < 0.025]
        assert abs(near[:, 0].max()) < 0.002  # nothing of the nose is in front of its tip


def _bodies(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ball = rng.normal(size=(6000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    cube = rng.uniform(-0.1, 0.1, (6000, 3))
    side = np.arange(6000), rng.integers(0, 3, 6000)
    cube[side] = 0.1 * np.sign(cube[side])
    flat = np.column_stack([np.zeros(6000), rng.uniform(-0.1, 0.1, (6000, 2))])
    line = np.outer(np.linspace(-0.1, 0.1, 6000), [1.0, 2.0, 3.0]) / 3
    return {
        "sphere": 0.1 * ball,
        "egg": ball * [0.1, 0.12, 0.08],
        "cube": cube,
        "noise": rng.uniform(-0.1, 0.1, (6000, 3)),
        "cloud": 0.07 * rng.normal(size=(6000, 3)),
        "plane": flat,
        "line": line,
    }


@pytest.mark.parametrize(
    "body", ["egg", "plane", "line", *(pytest.param(body, marks=SLOW) for body in ("sphere", "cube", "noise", "cloud"))]
)
def test_what_is_no_face_is_refused(rng: np.random.Generator, body: str) -> None:
    with pytest.raises(InputError, match="--landmarks"):
        canonical(Cloud(_bodies(rng)[body]))


def test_points_on_each_other_count_once(head: MadeHead, rng: np.random.Generator) -> None:
    few = head.cloud.take(rng.choice(len(head.cloud), 800, replace=False))
    again = few.take(rng.permutation(np.repeat(np.arange(800), 5)))
    placed = canonical(again, FaceLandmarks.of_points(head.landmarks))
    assert len(placed.cloud) == 800 and placed.duplicates == 3200
    with pytest.raises(InputError, match=r"6 points.*5994 that lie exactly"):
        canonical(Cloud(np.repeat(rng.uniform(-0.1, 0.1, (6, 3)), 1000, axis=0)))


@pytest.mark.parametrize(
    ("scale", "message"),
    [(1000.0, "give --unit mm"), (0.001, "none of m, cm, mm"), (100.0, "give --unit cm"), (39.37, "none of m, cm, mm")],
)
def test_other_units_are_named(head: MadeHead, scale: float, message: str) -> None:
    with pytest.raises(InputError, match=rf"^the cloud is .* across; .*{message}"):
        canonical(Cloud(head.cloud.points * scale))


def test_bad_landmarks_are_named(head: MadeHead) -> None:
    with pytest.raises(InputError, match="left and right are exchanged"):
        landmark_frame(FaceLandmarks.of_points(FIVE[[1, 0, 2, 4, 3]]))
    in_line = FIVE * [0.0, 0.0, 1.0]
    with pytest.raises(InputError, match="in one line"):
        landmark_frame(FaceLandmarks.of_points(in_line))
    with pytest.raises(InputError, match=r"\[6, 3\]"):
        FaceLandmarks.of_points(np.zeros((6, 3)))
    with pytest.raises(InputError, match="not finite"):
        FaceLandmarks.of_points(np.where(FIVE == 0, np.nan, FIVE))
    with pytest.raises(InputError, match="neither in metres nor in millimetres"):
        FaceLandmarks.of_points(FIVE * 37)
    with pytest.raises(InputError, match="from the cloud in the median"):
        canonical(head.cloud, FaceLandmarks.of_points(FIVE + 0.5))
    for row, name in enumerate(["eye on the viewer's left", "eye on the viewer's right", "nose tip"]):
        moved = head.landmarks[[36, 45, 30, 48, 54]] + np.eye(5)[:, [row]] * [0.12, 0.0, 0.0]
        with pytest.raises(InputError, match=rf"landmarks' {name} lies \d+ mm from the .*, in a face"):
            canonical(head.cloud, FaceLandmarks.of_points(moved))
        moved = head.landmarks[[36, 45, 30, 48, 54]] + np.eye(5)[:, [row]] * [0.018, 0.0, 0.0]
        with pytest.raises(InputError, match=rf"landmarks' {name} lies 0\.01\d+ m from the cloud"):
            canonical(head.cloud, FaceLandmarks.of_points(moved))
    with pytest.raises(InputError, match="400 points"):
        canonical(head.cloud.take(np.arange(400)))


def test_files_of_landmarks(tmp_path: Path) -> None:
    cloud = tmp_path / "ann.ply"
    assert landmark_file_beside(cloud) is None
    text = tmp_path / "ann.landmarks.txt"
    text.write_text("# five\n" + "\n".join(", ".join(map(str, row)) for row in FIVE) + "\n\n")
    assert landmark_file_beside(cloud) == text
    millimetres = tmp_path / "ann_landmarks_mm.txt"
    np.savetxt(millimetres, FIVE * 1000)
    assert landmark_file_beside(cloud) == millimetres
    listed, named = tmp_path / "a.json", tmp_path / "b.json"
    listed.write_text(json.dumps(FIVE.tolist()))
    named.write_text(json.dumps({"points": (1000 * FIVE).tolist()}))
    for path in (text, millimetres, listed, named):
        np.testing.assert_allclose(read_landmarks(path).five, FIVE, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1 2 3\n1 2\n", "a.txt, line 2: expected three numbers"),
        ("a.txt", "1 2 x\n", "line 1: expected three numbers, not '1 2 x'"),
        ("a.txt", "", "5 or 68 points"),
        ("a.json", "{", "expected a JSON list"),
        ("a.json", '{"pts": []}', "expected a JSON list"),
        ("a.json", "[[1, 2], [3]]", "expected a JSON list"),
    ],
)
def test_broken_files_of_landmarks(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_landmarks(tmp_path / name)


def test_a_missing_file_of_landmarks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: the landmarks cannot be read"):
        read_landmarks(tmp_path / "none.txt")
