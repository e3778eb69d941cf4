"""Bare foreheads above the mask: found up to the hairline, filled with skin, and nothing else of the photo changed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan import pretrained
from ficgan.faces.crops import crop
from ficgan.frame import LO, Warp
from ficgan.frame.compose import HEAD_SHIFT as SHIFT
from ficgan.frame.compose import HEAD_SIDE as SIDE
from ficgan.frame.compose import paste_texture, read_forehead, steadied
from ficgan.frame.file import load_appearance
from ficgan.frame.look import Look
from ficgan.frame.parts import frame_mask

SKIN, HAIR, SKY = (196, 150, 124), (40, 28, 22), (150, 160, 190)
HAIRLINE = -8
"""Row of the hairline, upright units; the mesh ends some 12 below."""


@pytest.fixture(scope="module")
def points() -> NDArray[np.float64]:
    shape = load_appearance(pretrained.path("model"))[0].shape
    return np.column_stack([shape.front, np.zeros(468)])


Colour = tuple[int, int, int]


def head(
    fringe: bool = False, scale: int = 2, skin: Colour = SKIN, hair: Colour = HAIR
) -> tuple[np.ndarray, np.ndarray]:
    """A face of one colour below hair, before a sky: photo, and the matrix that brings it upright."""
    y, x = np.mgrid[-60 : 160 : 1 / scale, -40 : 170 : 1 / scale]
    photo = np.empty((*x.shape, 3), np.uint8)
    photo[:] = SKY
    photo[((x - 64) / 58) ** 2 + ((y - 60) / 100) ** 2 < 1] = hair
    face = ((x - 64) / 50) ** 2 + ((y - 60) / 80) ** 2 < 1
    photo[face & (y > (34 if fringe else HAIRLINE))] = skin
    noise = np.random.default_rng(0).normal(0, 4, photo.shape)
    return (photo + noise).clip(0, 255).astype(np.uint8), np.array([[1 / scale, 0, -40], [0, 1 / scale, -60.0]])


def test_skin_goes_on_up_to_the_hairline(points: NDArray[np.float64]) -> None:
    photo, upright = head()
    found = read_forehead(photo, upright, points)
    row, column = (found.weight[:, round(64 + SHIFT[0])], found.weight[round(HAIRLINE + 3 + SHIFT[1])])
    first = np.flatnonzero(row > 0.5)[0] - SHIFT[1]
    assert HAIRLINE <= first < HAIRLINE + 4
    assert row[: round(HAIRLINE - 2 + SHIFT[1])].max() == 0  # no hair
    assert column[: round(14 + SHIFT[0])].max() == column[round(116 + SHIFT[0]) :].max() == 0  # no temples
    assert found.weight[round(45 + SHIFT[1]) :].max() == 0  # no face below the brows
    assert found.weight.shape == (SIDE, SIDE)


def test_the_fill_tells_no_spot_and_no_wrinkle(points: NDArray[np.float64]) -> None:
    photo, upright = head()
    marked = photo.copy()
    marked[108:112, 190:230] = (120, 80, 60)  # a wrinkle on the forehead
    marked[100:104, 180:184] = (90, 40, 40)
    plain, found = read_forehead(photo, upright, points), read_forehead(marked, upright, points)
    inside = plain.weight > 0.5
    assert np.abs(found.fill - plain.fill)[inside].max() < 0.03
    np.testing.assert_allclose(found.fill[inside].mean(0) * 255, SKIN, atol=4)


def test_skin_of_any_colour(points: NDArray[np.float64]) -> None:
    for skin, hair in (((60, 42, 34), (150, 150, 155)), ((240, 215, 200), HAIR), ((128, 128, 128), (40, 40, 40))):
        found = read_forehead(*head(skin=skin, hair=hair), points)
        assert found.weight[round(HAIRLINE + 5 + SHIFT[1]), round(64 + SHIFT[0])] > 0.9


def test_nothing_behind_a_fringe(points: NDArray[np.float64]) -> None:
    photo, upright = head(fringe=True)
    assert not read_forehead(photo, upright, points).weight.any()


def test_no_light_rim_before_a_temple_in_deep_shade(points: NDArray[np.float64]) -> None:
    photo, upright = head()
    x = upright[0, 0] * np.arange(photo.shape[1]) + upright[0, 2]
    shaded = (photo * np.interp(x, (98, 102), (1, 0.6))[None, :, None]).astype(np.uint8)
    found = read_forehead(shaded, upright, points)
    seen = cv2.GaussianBlur(crop(shaded, found.matrix, SIDE), (0, 0), 1.0) / 255
    assert found.weight[:, round(64 + SHIFT[0])].max() == pytest.approx(1)
    assert (found.weight[..., None] * (found.fill - seen)).max() < 0.045


def test_over_time_a_forehead_does_not_come_and_go(points: NDArray[np.float64]) -> None:
    bare, hidden = (read_forehead(*head(fringe=fringe), points) for fringe in (False, True))
    middle = steadied([bare, hidden, bare, bare], 1)
    np.testing.assert_allclose(middle.weight, 0.75 * bare.weight, atol=1e-6)
    inside = bare.weight > 0.5
    np.testing.assert_allclose(middle.fill[inside], bare.fill[inside], atol=0.01)
    assert middle.matrix is hidden.matrix


def test_skin_has_detail_that_moves_with_the_head() -> None:
    """As strong as the photo's skin, or less; the same detail on a head that moved, whatever the seed of the grain."""
    shape = load_appearance(pretrained.path("model"))[0].shape
    warp, texture = Warp(shape.front, 64), np.full((64, 64, 3), 0.5, np.float32)

    def pasted(fine: float, move: int = 0) -> NDArray[np.uint8]:
        photo, upright = head(scale=3)
        photo, upright = np.roll(photo, move, 1), upright.astype(np.float64)
        upright[:, 2] -= upright[:, :2] @ [move, 0]
        placed = np.column_stack([shape.front, np.zeros(468)])
        forehead, mask = read_forehead(photo, upright, placed), frame_mask(shape.front, 64, inset=1, feather=1)
        look = Look(0.1, 0.0, fine=fine)
        return paste_texture(photo, upright, placed, texture, mask, warp, look, seed=move, forehead=forehead).image

    where = np.s_[165:180, 250:370]  # between hairline and mask
    plain, fine = pasted(0.0)[where].astype(float), pasted(0.02)[where].astype(float)
    assert 0.5 < (fine - plain).std() / 255 / 0.02 < 1
    moved = (pasted(0.02, 30).astype(float) - pasted(0.0, 30))[165:180, 280:400]
    assert np.corrcoef(moved.ravel(), (fine - plain).ravel())[0, 1] > 0.95


def test_hair_before_the_forehead_stays() -> None:
    """Where the mask leaves out hair, no forehead is drawn over it."""
    shape = load_appearance(pretrained.path("model"))[0].shape
    warp, texture = Warp(shape.front, 64), np.full((64, 64, 3), 0.5, np.float32)
    placed, mask = np.column_stack([shape.front, np.zeros(468)]), frame_mask(shape.front, 64, inset=1, feather=1)
    (photo, upright), scale = head(scale=3), 3
    left, top = (int(scale * (at + beyond)) for at, beyond in ((40, 40), (4, 60)))
    patch = np.s_[top : top + 12 * scale, left : left + 16 * scale]
    photo[patch] = HAIR
    x, y = (LO[axis] + warp.step[axis] * np.arange(64) for axis in (0, 1))
    hair = ((x > 38) & (x < 58) & ((y < 18)[:, None])).astype(np.float32)
    forehead = read_forehead(photo, upright.astype(np.float64), placed)

    def pasted(stays: np.ndarray) -> np.ndarray:
        masked = mask * (1 - hair)
        return paste_texture(
            photo, upright.astype(np.float64), placed, texture, masked, warp, forehead=forehead, hair=stays
        ).image

    inner = np.s_[top + 3 * scale : top + 9 * scale, left + 3 * scale : left + 13 * scale]
    np.testing.assert_array_equal(pasted(hair)[inner], photo[inner])
    assert (pasted(np.zeros_like(hair))[inner].mean(axis=2) > 80).mean() > 0.3, "without the hair's place there is skin"
