"""Several recognisers as one gate: a face passes only where none of them takes it for its source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clips import make_clip
from skimage import data
from stand_ins import Judge, face

from ficgan.deidentify import Deidentifier
from ficgan.errors import UsageError
from ficgan.faces import get_recognizer
from ficgan.faces.recognition import Gate, make_gate, matching, public_name
from ficgan.identity.kind import match_share
from ficgan.video import VideoTools
from ficgan.video.film import process_film


def test_the_gate_is_as_strict_as_its_strictest_recogniser() -> None:
    near = Judge(name="near", match_threshold=1.0)
    far = Judge(name="onnx:/home/me and you/far.onnx", width=3, match_threshold=4.0)
    gate = Gate([near, far])
    marks = face(0, 0, 8).landmarks[None]
    zero = gate.embed(np.zeros((8, 8, 3), np.uint8), marks)[0]
    assert zero.shape == (5,)
    for x, y, names in (
        (0.0, 0.0, ["near", "onnx:far.onnx"]),
        (1.5, 1.0, ["onnx:far.onnx"]),
        (0.1, 9.0, ["near"]),
        (9.0, 9.0, []),
    ):
        other = np.r_[np.full(2, x), np.full(3, y)]
        assert gate.matching(zero, other) == names == matching(gate, zero, other)
        assert gate.is_match(zero, other) == bool(names) == (gate.distance(zero, other) < gate.match_threshold)
        assert gate.distance(zero, other) == pytest.approx(min(2**0.5 * x / 1.0, 3**0.5 * y / 4.0))
    # Less of the thresholds counts for small children, who are alike.
    other = np.r_[np.full(2, 0.6), np.full(3, 2.0)]
    assert matching(gate, zero, other) == ["near", "onnx:far.onnx"]
    ages = {age: match_share(np.r_[np.zeros(8), age]) for age in (1, 6, 12, 40, 90)}
    assert list(ages.values()) == sorted(ages.values()) and ages[40] == ages[90] == match_share(None) == 1
    assert matching(gate, zero, other, ages[1]) == []
    broken = np.r_[np.full(2, np.nan), np.full(3, 9.0)]
    assert gate.matching(zero, broken) == ["near"] and np.isnan(gate.distance(zero, broken))  # fail closed
    assert public_name(gate) == "near, onnx:far.onnx"
    assert make_gate([near]) is near and make_gate([]) is None
    with pytest.raises(UsageError, match="once"):
        make_gate([near, near])
    assert gate.embed(np.zeros((8, 8, 3), np.uint8), np.zeros((0, 5, 2))).shape[0] == 0


@pytest.fixture(scope="module")
def astronaut() -> np.ndarray:
    return np.ascontiguousarray(data.astronaut()[:220, 120:330])


@pytest.mark.slow
def test_photos_are_retried_until_no_recogniser_matches(astronaut: np.ndarray) -> None:
    easy, hard = Judge(name="easy"), Judge(2, "onnx:/x/hard.onnx")
    result = Deidentifier.from_pretrained(recognizer=[easy, hard], seed=1)(astronaut)
    (each,) = result.faces
    assert (each.action, each.attempts, each.matched) == ("retried", 3, False)
    assert each.matched_by == result.audit["faces"][0]["matched_by"] == ["onnx:hard.onnx"]
    assert result.audit["gate"] == "easy, onnx:hard.onnx" and result.audit["gate_threshold"] == 1.0
    never = Deidentifier.from_pretrained(recognizer=[Judge(name="easy"), Judge(99, "hard")], seed=1)(astronaut)
    assert never.faces[0].action == "masked" and never.reidentified == 0 and never.faces[0].matched_by == ["hard"]


@pytest.mark.slow
def test_films_are_cast_anew_until_no_recogniser_matches(tmp_path: Path) -> None:
    clip, frames = tmp_path / "in.mp4", [data.astronaut()[:220, 110 + n : 330 + n] for n in range(6)]
    make_clip(clip, 6, pictures=[np.ascontiguousarray(frame) for frame in frames], size=(220, 220))
    dlib = get_recognizer("dlib")
    hard = Judge(3, "onnx:/x/hard.onnx", width=7)  # two readings a face, before and after
    deid = Deidentifier.from_pretrained(recognizer=[dlib, hard], seed=1)
    tools = deid.video_tools(deid.video_settings())
    assert isinstance(tools, VideoTools) and tools.recognizer is dlib and isinstance(tools.gate, Gate)
    result = process_film(tools, clip, tmp_path / "out.mp4", settings=deid.video_settings(verify="full"))
    audit = result.to_dict() if hasattr(result, "to_dict") else result.audit
    assert audit["gate"] == "dlib, onnx:hard.onnx"
    assert audit["check"]["recognizer"] == "dlib, onnx:hard.onnx"
    record = json.dumps(audit)
    assert '"matched_by": ["onnx:hard.onnx"' in record and "/x/" not in record
