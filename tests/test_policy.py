"""The ladder of attempts, and what counts as covered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.policy import Policy, covered


@given(layer=st.integers(0, 11), retries=st.integers(0, 6))
def test_the_ladder_never_gets_weaker(layer: int, retries: int) -> None:
    ladder = Policy(retries=retries).attempts(layer)
    assert len(ladder) == retries + 1 and ladder[0].layer == layer
    assert all(b.layer <= a.layer for a, b in itertools.pairwise(ladder))
    assert len({(a.layer, a.draw) for a in ladder}) == len(ladder), "an attempt is never repeated"
    if retries >= 2:
        assert ladder[-1].layer == 0


@pytest.mark.parametrize(("hole", "expected"), [(None, True), ((10, 20), False), ((30, 30), True)])
def test_covered(hole: tuple[int, int] | None, expected: bool) -> None:
    mask = np.ones((40, 40), np.float32)
    if hole:
        mask[hole[1], hole[0]] = 0
    points = np.array([[10, 20], [20, 20], [15, 25], [11, 30], [19, 30]], np.float32)
    assert covered(mask, points, 0.95) is expected


def test_landmarks_outside_the_photo_need_no_cover() -> None:
    assert covered(np.zeros((4, 4), np.float32), np.full((5, 2), -3, np.float32), 0.95)
    inside = np.array([[1, 1], [-3, 0], [9, 9], [0, 9], [9, 0]], np.float32)
    assert not covered(np.zeros((4, 4), np.float32), inside, 0.95)
