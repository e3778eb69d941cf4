"""Alignment against closed forms and scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import InputError, UsageError
from ficgan.faces import ARCFACE_POINTS, Alignment, invert, similarity, transform_points

KINDS = [Alignment(), Alignment(eye_distance=0.3, eye_y=0.4), Alignment("ffhq")]


@pytest.mark.parametrize("alignment", KINDS, ids=str)
@given(
    angle=st.floats(-np.pi, np.pi),
    scale=st.floats(0.05, 30),
    x=st.floats(-5000, 5000),
    y=st.floats(-5000, 5000),
    size=st.sampled_from([64, 128, 256]),
)
def test_round_trip(alignment: Alignment, angle: float, scale: float, x: float, y: float, size: int) -> None:
    """A face moved by a known similarity is brought back to the nominal points, and the inverse to where it was."""
    c, s = scale * np.cos(angle), scale * np.sin(angle)
    moved = transform_points(np.array([[c, -s, x], [s, c, y]]), Alignment().points(100))
    matrix = alignment.matrix(moved, size)
    placed = transform_points(matrix, moved)
    assert np.abs(transform_points(invert(matrix), placed) - moved).max() < 1e-6 * (1 + np.abs(moved).max())
    if alignment.kind == "ffhq" or alignment == Alignment():  # the generic face fits these exactly
        assert np.abs(placed - alignment.points(size)).max() < 0.5e-3
    np.testing.assert_allclose(matrix[:, :2] @ matrix[:, :2].T, np.eye(2) * np.linalg.det(matrix[:, :2]), atol=1e-9)
    assert np.linalg.det(matrix[:, :2]) > 0


def test_ffhq_square_as_corners(rng: np.random.Generator) -> None:
    """The corners that the published rule names fall on the crop's corners."""
    marks = Alignment().points(200) + rng.normal(0, 4, (5, 2)) + (300, 100)
    e2e = marks[1] - marks[0]
    eyes = (marks[0] + marks[1]) / 2
    e2m = (marks[3] + marks[4]) / 2 - eyes
    x = e2e - np.flipud(e2m) * [-1, 1]
    x *= max(np.hypot(*e2e) * 2.0, np.hypot(*e2m) * 1.8) / np.hypot(*x)
    y = np.flipud(x) * [-1, 1]
    centre = eyes + e2m * 0.1
    quad = np.stack([centre - x - y, centre - x + y, centre + x + y, centre + x - y])
    corners = transform_points(Alignment("ffhq").matrix(marks, 256), quad)
    np.testing.assert_allclose(corners, [(-0.5, -0.5), (-0.5, 255.5), (255.5, 255.5), (255.5, -0.5)], atol=1e-9)


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_similarity_against_skimage(count: int, seed: int) -> None:
    transform = pytest.importorskip("skimage.transform")
    rng = np.random.default_rng(seed)
    src, dst = rng.normal(0, 30, (count, 2)), rng.normal(0, 30, (count, 2))
    oracle = transform.SimilarityTransform()
    oracle = oracle.from_estimate(src, dst) if hasattr(oracle, "from_estimate") else oracle
    np.testing.assert_allclose(similarity(src, dst), oracle.params[:2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (np.full((5, 2), 1e7), ARCFACE_POINTS),
        (ARCFACE_POINTS, np.full((5, 2), 3.0)),
        ([(1.0, 0), (-1, 0), (0, 1), (0, -1)], [(-1.0, 0), (1, 0), (0, 1), (0, -1)]),  # a mirror image, exactly
        (ARCFACE_POINTS * np.nan, ARCFACE_POINTS),
        (ARCFACE_POINTS[:4], ARCFACE_POINTS),
    ],
)
def test_degenerate_points_are_refused(src: np.ndarray, dst: np.ndarray) -> None:
    with pytest.raises(InputError):
        similarity(src, dst)


def test_dict_round_trip() -> None:
    for alignment in KINDS:
        assert Alignment.from_dict(alignment.to_dict()) == alignment
    for values in ({}, {"kind": "arcface"}, {"kind": "template", "eyes": 1}, {"kind": "template", "eye_y": 2}):
        with pytest.raises(UsageError):
            Alignment.from_dict(values)
