"""Glasses that are drawn: where the arms are, in their colour, and only where there is evidence of some."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan.arrays import luminance
from ficgan.faces.mesh import LEFT_EYE, RIGHT_EYE
from ficgan.frame import LO, FaceShape, Warp
from ficgan.frame.glasses import SURE, UNSURE, read_glasses, with_glasses

CLEAR = (0.0, 0.6, 0.6, 0.6, 3.0, 3.0)  # lenses; arms
SKIN = np.full((256, 256, 3), 0.6, np.float32)


def places(shape: FaceShape) -> tuple[NDArray[np.float64], float]:
    """Middles of the eyes in the frame, and how far they are apart."""
    eyes = np.array([shape.front[contour].mean(0) for contour in (LEFT_EYE, RIGHT_EYE)], np.float64)
    return eyes, float(eyes[1, 0] - eyes[0, 0])


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rise", [-0.2, 0.1])
def test_rims_meet_the_arms_where_they_leave_the_face(shape: FaceShape, chance: float, rise: float) -> None:
    warp, (eyes, apart) = Warp(shape.front, 128), places(shape)
    colour = np.array([0.4, 0.35, 0.3])
    arms = eyes[:, 1] + rise * apart
    made = with_glasses(SKIN, np.float32([SURE, *arms, *colour, 0.3, *CLEAR]), chance, warp, warp.grid)
    drawn = np.abs(made - SKIN).max(2)
    step = warp.step * 127 / 255
    for eye, side, arm in zip(eyes, (-1, 1), arms, strict=True):
        column, row = np.rint((np.array([eye[0] + side * 0.62 * apart, arm]) - LO) / step).astype(int)
        found = np.flatnonzero(drawn[:, column] > 0.1)
        assert len(found) and abs(found.mean() - row) <= 3
        pure = SKIN[0, 0] + 1.6 * (colour - SKIN[0, 0])  # a thin arm is read with the skin beside it
        assert np.abs(made[row, column] - pure).max() < 0.1
    below = int((eyes[:, 1].max() + 0.6 * apart - LO[1]) / step[1])
    assert not drawn[below:].any() and 0.005 < (drawn > 0.1).mean() < 0.1


def test_without_evidence_there_are_none_and_with_some_they_are_faint(shape: FaceShape) -> None:
    warp, (eyes, _) = Warp(shape.front, 128), places(shape)
    strength = []
    for evidence in (UNSURE - 1, UNSURE, (UNSURE + SURE) / 2, SURE, SURE + 9):
        glasses = np.float32([evidence, *eyes[:, 1], 0, 0, 0, 0.3, *CLEAR])
        strength.append(float(np.abs(with_glasses(SKIN, glasses, 0.3, warp, warp.grid) - SKIN).max()))
    assert strength[:2] == [0, 0] and strength[3] == strength[4] > 0.5
    assert strength[2] == pytest.approx(strength[3] / 2, rel=0.1)


def test_dark_glasses_become_others_that_are_as_dark(shape: FaceShape) -> None:
    """What was drawn is read again: a tint of its colour over the eyes, or none."""
    warp, (eyes, _) = Warp(shape.front, 128), places(shape)
    for tint in (0.0, 1.0):
        glasses = np.array([SURE, *eyes[:, 1], 0, 0, 0, 0.3, tint, 0.1, 0.12, 0.2, 1, 1], np.float32)
        made = with_glasses(SKIN, glasses, 0.3, warp, warp.grid)
        small = cv2.resize(made, (128, 128), interpolation=cv2.INTER_AREA)
        read = read_glasses(np.rint(255 * small).astype(np.uint8), warp)
        assert read[7] == pytest.approx(tint, abs=0.01)
        np.testing.assert_allclose(read[8:11], (0.1, 0.12, 0.2) if tint else SKIN[0, 0], atol=0.1)


def test_dark_frames_are_dark_before_a_bright_wall(shape: FaceShape) -> None:
    """A small face's arms are lost in what is beside it, and its bridge in the shine of the nose."""
    warp, (eyes, apart) = Warp(shape.front, 128), places(shape)
    made = with_glasses(SKIN, np.float32([SURE, *eyes[:, 1], 0, 0, 0, 0.3, *CLEAR]), 0.3, warp, warp.grid)
    small = cv2.resize(made, (128, 128), interpolation=cv2.INTER_AREA)
    columns, rows = ((eyes - LO) / warp.step).T
    row, out = rows.mean(), 0.55 * apart / warp.step[0]
    small[round(row) - 12 : round(row) + 5, : round(columns[0] - out)] = 1
    small[round(row) - 12 : round(row) + 5, round(columns[1] + out) :] = 1
    small[round(row) - 6 : round(row) + 4, round(columns.mean()) - 4 : round(columns.mean()) + 5] = 1
    read = read_glasses(np.rint(255 * small).astype(np.uint8), warp)
    assert luminance(read[3:6]) < 0.35


@pytest.mark.parametrize(("wide", "most"), [(5.0, 1.0), (1.0, 0.7)])
def test_an_arm_is_as_wide_as_what_is_left_of_it(shape: FaceShape, wide: float, most: float) -> None:
    warp, (eyes, _) = Warp(shape.front, 128), places(shape)
    glasses = np.float32([SURE, *eyes[:, 1], 0, 0, 0, 0.3, *CLEAR[:4], wide, wide])
    made = with_glasses(SKIN, glasses, 0.3, warp, warp.grid)
    np.testing.assert_allclose(read_glasses(np.rint(255 * made).astype(np.uint8), warp)[11:], wide, atol=most)


def test_a_lid_that_moves_bends_no_rim(shape: FaceShape) -> None:
    warp, (eyes, apart) = Warp(shape.front, 128), places(shape)
    rim = eyes[0] - np.array([0, 0.22 * apart])
    bump = 3 * np.exp(-np.square(warp.grid - rim).sum(-1) / 60)
    bent = warp.grid + bump[..., None] * np.float32([0, 1])
    glasses = np.float32([SURE, *eyes[:, 1], 0, 0, 0, 0.3, *CLEAR])
    column, tops = round((rim[0] - LO[0]) / (warp.step[0] * 127 / 255)), []
    for grid in (warp.grid, bent):
        drawn = np.abs(with_glasses(SKIN, glasses, 0.3, warp, grid) - SKIN).max(2) > 0.2
        tops.append(cv2.resize(grid[..., 1], (256, 256))[:, column][drawn[:, column]].min())
    assert abs(tops[0] - tops[1]) < 1.2 < bump.max() / 2
