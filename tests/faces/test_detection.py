"""One conformance test for every detector that is available here, and what is said of those that are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces import DETECTORS, Face, FaceDetector, detector_missing, get_detector
from ficgan.faces.detection import PyramidDetector, SearchPlan, suppress

Image = NDArray[np.uint8]


@pytest.fixture(scope="module", params=DETECTORS)
def detector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FaceDetector:
    """Every back end; model files come from the user's folders or from the shared models."""
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        if detector_missing(name):
            shared = request.getfixturevalue("shared_models")
            folder = tmp_path_factory.mktemp("models")
            (folder / "buffalo_l").mkdir()
            shutil.copy(shared / "scrfd_2.5g_kps.onnx", folder / "buffalo_l")
            patch.setenv("FICGAN_MODELS", str(folder))
        missing = detector_missing(name)
        if missing:
            pytest.skip(missing)
        return get_detector(name)


def check(faces: list[Face], image: Image) -> None:
    height, width = image.shape[:2]
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)
    for face in faces:
        assert face.box.shape == (4,) and face.box.dtype == np.float32
        assert face.landmarks.shape == (5, 2) and face.landmarks.dtype == np.float32
        assert isinstance(face.score, float) and np.isfinite(face.score)
        assert np.isfinite(face.box).all() and np.isfinite(face.landmarks).all()
        x0, y0, x1, y1 = face.box
        assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height


# The eyes, nose and mouth corners of the astronaut, read off the photo.
ASTRONAUT = np.array([(204, 100), (246, 103), (224, 127), (201.5, 140.5), (244.5, 141.5)])


def test_finds_the_astronaut(detector: FaceDetector, astronaut: Image) -> None:
    before = astronaut.copy()
    faces = detector.detect(astronaut)
    assert np.array_equal(astronaut, before)
    check(faces, astronaut)
    assert len(faces) == 1
    marks = faces[0].landmarks
    assert np.abs(marks - ASTRONAUT).max() < 7  # a sixth of the eye distance
    assert marks[0, 0] < marks[1, 0] and marks[3, 0] < marks[4, 0]
    assert marks[:2, 1].max() < marks[2, 1] < marks[3:, 1].max()
    x0, y0, x1, y1 = faces[0].box
    assert (marks > (x0, y0)).all() and (marks < (x1, y1)).all()


def test_face_that_fills_the_photo(detector: FaceDetector, astronaut: Image) -> None:
    import cv2

    close = cv2.resize(astronaut[40:200, 150:310], (320, 320), interpolation=cv2.INTER_CUBIC)
    faces = detector.detect(close)
    assert len(faces) >= 1
    expected = (ASTRONAUT - (150, 40) + 0.5) * 2 - 0.5
    assert np.abs(faces[0].landmarks - expected).max() < 20


def test_nothing_in_noise_of_any_shape_and_no_image_refused(detector: FaceDetector) -> None:
    for shape in ((1, 300), (33, 31)):
        assert detector.detect(np.random.default_rng(5).integers(0, 256, (*shape, 3), dtype=np.uint8)) == []
    for image in (np.zeros((9, 9), np.uint8), np.zeros((9, 9, 3)), np.zeros((0, 9, 3), np.uint8), "photo.jpg"):
        with pytest.raises(InputError):
            detector.detect(image)  # type: ignore[arg-type]


def test_auto_is_the_embedded_detector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared_models: Path) -> None:
    monkeypatch.setenv("INSIGHTFACE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FICGAN_MODELS", raising=False)
    assert get_detector().name == "centerface"
    with pytest.raises(UsageError, match="FICGAN_MODELS"):
        get_detector("insightface")
    (tmp_path / "buffalo_l").mkdir()
    shutil.copy(shared_models / "scrfd_2.5g_kps.onnx", tmp_path / "buffalo_l")
    monkeypatch.setenv("FICGAN_MODELS", str(tmp_path))
    assert get_detector("insightface").name == "insightface"
    assert get_detector().name == "centerface", "files on the disk change no default"
    (tmp_path / "buffalo_l" / "scrfd_2.5g_kps.onnx").write_bytes(b"not a network")
    with pytest.raises(InputError, match=r"kps\.onnx"):
        get_detector("insightface")


@pytest.mark.parametrize(
    "bad",
    [{"name": "mtcnn"}, {"threshold": np.nan}, {"scale": 0}, {"device": "tpu"}, {"name": "yunet", "device": "cuda"}],
)
def test_bad_arguments(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        get_detector(**{"name": "centerface", **bad})  # type: ignore[arg-type]


def test_cuda_is_never_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnxruntime has none, and where it advertises one whose libraries are missing."""
    import onnxruntime

    class Session:
        def __init__(self, model: object, options: object, providers: list[object]) -> None: ...

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    available = ["CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    with pytest.raises(UsageError, match="CUDA"):
        get_detector(device="cuda")
    assert get_detector(device="auto").name == "centerface"
    available.insert(0, "CUDAExecutionProvider")
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(UsageError, match="fell back"):
        get_detector(device="cuda")


# --- the search over scales and tiles, with a search that needs no network ---


def bright_squares(image: Image, level: int = 128) -> NDArray[np.float64]:
    """Stands for a network: connected patches above a brightness, whatever their number."""
    from scipy.ndimage import find_objects, label

    rows = []
    for y, x in find_objects(label(image[..., 0] > level)[0]):
        middle = [(x.start + x.stop) / 2 - 0.5, (y.start + y.stop) / 2 - 0.5]
        rows.append([x.start, y.start, x.stop, y.stop, 0.9, *(middle * 5)])
    return np.array(rows).reshape(-1, 15)


@given(
    width=st.integers(40, 900),
    height=st.integers(40, 900),
    x=st.floats(0, 1),
    y=st.floats(0, 1),
    side=st.integers(8, 36),
)
def test_every_place_is_searched_once(width: int, height: int, x: float, y: float, side: int) -> None:
    """One patch anywhere, seen by many overlapping tiles and two passes, is one face at its true place."""
    image = np.zeros((height, width, 3), np.uint8)
    left, top = round(x * (width - side)), round(y * (height - side))
    image[top : top + side, left : left + side] = 255
    plan = SearchPlan(tile=160, overlap=80)
    faces = PyramidDetector("squares", bright_squares, threshold=0.5, scale=None, plan=plan).detect(image)
    assert len(faces) == 1
    assert np.abs(faces[0].box - (left, top, left + side, top + side)).max() <= 1.5
    assert np.abs(faces[0].landmarks - (left + side / 2 - 0.5, top + side / 2 - 0.5)).max() <= 1.0


@pytest.mark.parametrize(
    ("scene", "looks"),
    [
        ([(200, 0.9)], 1),  # one clear face of the usual size
        ([(200, 0.9), (20, 0.9)], 2),  # a small one beside it: more small ones are looked for
        ([(400, 0.9)], 2),  # a large one: a thumbnail, too; the coarse pass would be the first look again
        ([(200, 0.45)], 3),  # doubtful
        ([(200, 0.9), (60, 0.3)], 3),  # something that may be a face
        ([], 3),
    ],
)
def test_a_second_look_needs_a_reason(scene: list[tuple[int, float]], looks: int) -> None:
    """The faces are the same, whatever it takes: each shape of a scene is one face at its place, if it is one."""
    image = np.zeros((600, 900, 3), np.uint8)
    for number, (side, score) in enumerate(scene):
        image[50 : 50 + side, 30 + 500 * number : 30 + 500 * number + side] = round(255 * score)
    sizes: list[int] = []

    def search(view: Image) -> NDArray[np.float64]:
        sizes.append(view.size)
        rows = bright_squares(view, 50)
        for row in rows:
            x, y = ((row[:2] + row[2:4]) / 2).astype(int)
            row[4] = view[y, x, 0] / 255
        return rows[rows[:, 4] > 0.2]

    quick = PyramidDetector("squares", search, threshold=0.4, scale=None, plan=SearchPlan(tile=2048), thorough=False)
    found = quick.detect(image)
    assert len(sizes) == looks
    assert len(found) == sum(score >= 0.4 for _, score in scene)
    for face in found:
        assert min(abs(float(face.box[2] - face.box[0]) - side) for side, _ in scene) < 4


@given(st.integers(0, 40), st.integers(0, 1000))
def test_suppression_against_a_loop(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, 60, (count, 2)), rng.uniform(1, 40, (count, 2))
    rows = np.column_stack([corner, corner + size, rng.permutation(count), np.zeros((count, 10))])
    kept: list[np.ndarray] = []
    for a in sorted(rows, key=lambda row: -row[4]):
        for b in kept:
            w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            common = max(w, 0) * max(h, 0)
            one, two = (a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1])
            if common / (one + two - common) >= 0.4 or common / min(one, two) >= 0.6:
                break
        else:
            kept.append(a)
    np.testing.assert_array_equal(suppress(rows), np.array(kept).reshape(-1, 15))


# --- real photos ---


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recall_bar"), [("yunet", 0.90), ("centerface", 0.90)])
def test_recall_on_annotated_photos(
    name: str, recall_bar: float, shared_data: Path, shared_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image as Pillow
    from scipy.optimize import linear_sum_assignment

    monkeypatch.setenv("FICGAN_MODELS", str(shared_models))
    detector = get_detector(name)
    folder = shared_data / "photos"
    found = total = 0
    for photo, boxes in json.loads((folder / "boxes.json").read_text()).items():
        truth = np.array(boxes, float).reshape(-1, 4)
        faces = detector.detect(np.array(Pillow.open(folder / photo).convert("RGB")))
        boxes_found = np.array([face.box for face in faces], float).reshape(-1, 4)
        low = np.maximum(truth[:, None, :2], boxes_found[None, :, :2])
        common = (np.minimum(truth[:, None, 2:], boxes_found[None, :, 2:]) - low).clip(0).prod(-1)
        areas = [(b[:, 2:] - b[:, :2]).prod(-1) for b in (truth, boxes_found)]
        hits = common / (areas[0][:, None] + areas[1] - common) >= 0.4
        found += int(hits[linear_sum_assignment(-hits.astype(float))].sum())
        total += len(truth)
    false = sum(
        len(detector.detect(np.array(Pillow.open(path).convert("RGB"))))
        for path in sorted((folder / "noface").iterdir())
    )
    assert total == 429 and found / total >= recall_bar and false <= 3
