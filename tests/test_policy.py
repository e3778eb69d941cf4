"""The ladder of attempts, and what counts as covered."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.policy import Policy, covered

POINTS = np.array([[10, 20], [20, 20], [15, 25], [11, 30], [19, 30]], np.float32)
BOX = np.array([5, 10, 25, 36], np.float32)


@given(layer=st.integers(0, 11), retries=st.integers(0, 6), drawn=st.booleans())
def test_the_ladder_never_gets_weaker(layer: int, retries: int, drawn: bool) -> None:
    ladder = Policy(retries=retries).attempts(layer, drawn=drawn)
    assert ladder[0].layer == layer and 1 <= len(ladder) <= retries + 1
    assert all(b.layer <= a.layer and b.psi >= a.psi for a, b in pairwise(ladder))
    assert len({(a.layer, a.draw, a.psi) for a in ladder}) == len(ladder), "an attempt is never repeated"
    if retries >= 3:
        assert ladder[-1].layer == 0


def test_other_draws_come_with_diversity() -> None:
    """At psi = 0 another draw of 3000 is the same face: a retry with it would be none."""
    first, *rest = (a.psi for a in Policy().attempts(0))
    assert first == 0 and len(rest) == Policy().retries and min(rest) >= 0.6


def test_a_band_widens_to_all_layers() -> None:
    first, *rest = Policy().attempts(4, (5, 6))
    assert first.band == (5, 6) and rest and all(a.band is None and a.layer == 0 for a in rest)


def test_a_swap_has_no_other_draws() -> None:
    assert [(a.layer, a.draw) for a in Policy().attempts(4, drawn=False)] == [(4, 0), (2, 0), (0, 0)]


@pytest.mark.parametrize(("hole", "expected"), [(None, True), ((10, 20), False), ((1, 1), True)])
def test_covered(hole: tuple[int, int] | None, expected: bool) -> None:
    mask = np.ones((40, 40), np.float32)
    if hole:
        mask[hole[1], hole[0]] = 0
    assert covered(mask, POINTS, BOX, 0.9) is expected


def test_landmarks_alone_are_not_enough() -> None:
    mask = np.zeros((40, 40), np.float32)
    for x, y in POINTS.astype(int):
        mask[y, x] = 1
    assert not covered(mask, POINTS, BOX, 0.9)


def test_a_face_whose_landmarks_lie_outside_still_needs_its_box_covered() -> None:
    outside = np.full((5, 2), -30, np.float32)
    assert not covered(np.zeros((40, 40), np.float32), outside, BOX, 0.9)
    assert covered(np.ones((40, 40), np.float32), outside, BOX, 0.9)


def test_an_outline_takes_the_place_of_the_box() -> None:
    """The ellipse of a loose box reaches beyond a face whose outline is covered; landmarks are wanted all the same."""
    mask, box = np.zeros((60, 60), np.float32), np.array([0, 0, 60, 60], np.float32)
    mask[15:36, 5:26] = 1
    outline = np.array([[4, 14], [26, 14], [26, 36], [4, 36]], np.float32)
    assert not covered(mask, POINTS, box, 0.9) and covered(mask, POINTS, box, 0.9, outline)
    assert not covered(mask, POINTS, box, 0.9, outline + np.array([8, 0]))
    assert not covered(mask, POINTS + np.array([30, 0]), box, 0.9, outline)
    assert not covered(mask, POINTS, box, 0.9, outline - np.array([200, 0])), "it is not in the picture: the box counts"
    assert not covered(mask, POINTS - 200, box, 0.9, outline), "no landmark says that it is this face's"


def test_a_landmark_on_the_outline_may_lie_beside_the_cover() -> None:
    """The far eye of a turned head; without an outline nothing says that the rest of the face is hidden."""
    mask, box = np.zeros((60, 60), np.float32), np.array([4, 14, 54, 58], np.float32)
    mask[15:58, 9:54] = 1
    outline = np.array([[9, 15], [53, 15], [53, 57], [9, 57]], np.float32)
    marks = np.array([[7, 25], [30, 25], [20, 35], [12, 45], [30, 45]], np.float32)
    assert covered(mask, marks, box, 0.9, outline) and not covered(mask, marks, box, 0.9)
    assert not covered(mask, marks - np.array([3, 0], np.float32), box, 0.9, outline)
