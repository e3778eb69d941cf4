"""The embedded gate is dlib's network: the same numbers, from dlib itself where it is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan.faces import Alignment, get_recognizer
from ficgan.faces.models import wheel_file

DLIB_FILE = "models/dlib_face_recognition_resnet_model_v1.dat"


@pytest.fixture(scope="module")
def chips() -> NDArray[np.uint8]:
    """Noise, an empty picture, and the astronaut cut, turned, shaded and mirrored in many ways: [N,150,150,3]."""
    import cv2

    photo = pytest.importorskip("skimage.data").astronaut()
    rng = np.random.default_rng(0)
    out = [rng.integers(0, 256, (150, 150, 3), np.uint8), np.zeros((150, 150, 3), np.uint8)]
    for _ in range(14):
        turn = cv2.getRotationMatrix2D((225.0, 120.0), rng.normal(0, 15), rng.uniform(0.7, 1.6))
        turn[:, 2] += 75 - np.array([225, 120])
        one = np.clip(cv2.warpAffine(photo, turn, (150, 150)) * rng.uniform(0.5, 1.3), 0, 255).astype(np.uint8)
        out.append(one[:, ::-1] if rng.random() < 0.5 else one)
    return np.ascontiguousarray(np.stack(out))


def test_it_is_dlibs_network(chips: NDArray[np.uint8]) -> None:
    dlib = pytest.importorskip("dlib")
    path = wheel_file("face_recognition_models", DLIB_FILE)
    if path is None:
        pytest.skip("needs the models in the package face_recognition_models")
    theirs = np.array(dlib.face_recognition_model_v1(str(path)).compute_face_descriptor(list(chips)))
    ours = get_recognizer("dlib").embed_aligned(chips)  # type: ignore[attr-defined]
    assert ours.shape == (len(chips), 128) and ours.dtype == np.float32
    assert np.abs(ours - theirs).max() < 1e-4
    apart = np.linalg.norm(theirs[:, None] - theirs[None], axis=2)
    assert np.abs(np.linalg.norm(ours[:, None] - ours[None], axis=2) - apart).max() < 2e-4


def test_a_batch_is_its_faces(chips: NDArray[np.uint8]) -> None:
    gate = get_recognizer("auto")
    assert gate.name == "dlib" and gate.match_threshold == 0.6
    together = gate.embed_aligned(chips)  # type: ignore[attr-defined]
    alone = np.concatenate([gate.embed_aligned(one[None]) for one in chips])  # type: ignore[attr-defined]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_nobody_needs_dlib(monkeypatch: pytest.MonkeyPatch, chips: NDArray[np.uint8]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dlib", None)  # importing it would fail
    points = Alignment().points(128)[None]
    assert get_recognizer("dlib").embed(chips[2], points).shape == (1, 128)


def test_the_files_say_where_they_come_from() -> None:
    onnx = pytest.importorskip("onnx")
    folder = Path(__file__).resolve().parents[2] / "pretrained"
    for name, licence in (("gate.onnx", "CC0"), ("detector.onnx", "MIT")):
        props = {one.key: one.value for one in onnx.load(str(folder / name)).metadata_props}
        assert licence in props["licence"]
