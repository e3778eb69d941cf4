"""Agreement against loops, and that it is not flattered where it should not be; ages and genders of real faces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.faces import ARCFACE_POINTS
from ficgan.lab.metrics.semantics import AgeGender, agreement, balanced_agreement, by_attribute, kept, mouth


def slow_balanced(clear: np.ndarray, after: np.ndarray, least: int, times: np.ndarray) -> float:
    """One attribute and one image after another; an image counts `times` as often."""
    means = []
    for a in range(clear.shape[1]):
        rows = {True: [], False: []}
        before = [bool(clear[i, a] >= 0.5) for i in range(len(clear))]
        if min(sum(before), len(before) - sum(before)) < least:
            continue
        for i, was in enumerate(before):
            rows[was] += [float(was == (after[i, a] >= 0.5))] * int(times[i])
        if rows[True] and rows[False]:
            means.append((np.mean(rows[True]) + np.mean(rows[False])) / 2)
    return float(np.mean(means)) if means else float("nan")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(n=st.integers(1, 30), a=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_agreement_equals_the_loop(n, a, seed):
    rng = np.random.default_rng(seed)
    clear, after = rng.random((2, n, a)) ** rng.uniform(0.3, 3, a)
    alike = [[(clear[i, j] >= 0.5) == (after[i, j] >= 0.5) for j in range(a)] for i in range(n)]
    np.testing.assert_allclose(agreement(clear, after), [sum(row) / a for row in alike])
    times = rng.integers(0, 3, (4, n)).astype(np.float32)
    expected = [slow_balanced(clear, after, 2, row) for row in (np.ones(n), *times)]
    found = [float(balanced_agreement(clear, after, least=2)), *balanced_agreement(clear, after, times, least=2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_whoever_always_says_no_is_flattered_only_by_the_plain_figure(rng):
    clear = (rng.random((400, 40)) < 0.1).astype(np.float32)
    never = np.zeros_like(clear)
    assert agreement(clear, never).mean() == pytest.approx(0.9, abs=0.01)
    assert balanced_agreement(clear, never) == 0.5
    assert balanced_agreement(clear, clear) == 1 and balanced_agreement(clear, 1 - clear) == 0


def test_by_attribute_and_its_table():
    clear = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.3], [0.7, 0.4]])
    after = np.array([[0.9, 0.1], [0.1, 0.9], [0.2, 0.3], [0.6, 0.2]])
    having, lacking = by_attribute(clear, after)
    np.testing.assert_allclose(having, [2 / 3, np.nan])
    np.testing.assert_allclose(lacking, [1, 3 / 4])
    table = kept(clear, after, ("Smiling", "Bald"))
    assert table["Smiling"] == (pytest.approx(2 / 3), 1.0, 0.75) and table["Bald"] == (None, 0.75, 0.75)


def test_nothing_to_balance_is_no_number():
    ones = np.ones((9, 3))
    assert np.isnan(balanced_agreement(ones, ones))
    assert np.isnan(balanced_agreement(ones, ones, np.ones((2, 9)))).tolist() == [True, True]


def test_mouth_is_its_width_in_eye_distances():
    marks = np.array([[[10, 10], [30, 10], [20, 20], [12, 30], [28, 30]], [[np.nan] * 2] * 5], np.float32)
    marks = np.stack([*marks, marks[0] * 3])
    np.testing.assert_allclose(mouth(marks), [0.8, np.nan, 0.8], rtol=1e-6)


def test_age_and_gender_of_people_who_told_theirs(shared_models, shared_data):
    """London set: self-reported ages and genders; read at the points of crops half as large again as ArcFace's."""
    import csv

    import cv2
    from PIL import Image

    from ficgan.faces import crop, get_detector, similarity

    with (shared_data / "london" / "info.csv").open(encoding="utf-8") as file:
        told = list(csv.DictReader(file))[:16]
    files = [f"{row['face_id']}_neutral.jpg" for row in told]
    detector, points = get_detector("centerface", scale=1.0), ARCFACE_POINTS * 1.5
    images = []
    for file in files:
        photo = np.asarray(Image.open(shared_data / "london" / file).convert("RGB"))
        photo = cv2.resize(photo, (240, round(240 * photo.shape[0] / photo.shape[1])), interpolation=cv2.INTER_AREA)
        face = detector.detect(photo)[0]
        images.append(crop(photo, similarity(face.landmarks, points), 168))
    marks = np.tile(points.astype(np.float32), (len(images), 1, 1))
    age, male = AgeGender(shared_models / "age_gender.onnx").predict(Faces(np.stack(images), tuple(files), marks))
    ages = np.array([float(row["face_age"]) for row in told])
    men = np.array([row["face_gender"] == "male" for row in told])
    assert age.shape == male.shape == (len(files),)
    assert np.mean((male >= 0.5) == men) >= 0.85
    assert np.mean(np.abs(age - ages)) < 8


def test_a_file_that_is_no_network_is_refused(tmp_path):
    (tmp_path / "age_gender.onnx").write_bytes(b"nothing")
    with pytest.raises(InputError, match="ONNX"):
        AgeGender(tmp_path / "age_gender.onnx")
