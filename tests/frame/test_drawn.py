"""What is drawn into a face: eyes look where they should, and teeth stand between open lips and nowhere else."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from frame_world import turned
from numpy.typing import NDArray

from ficgan.faces.mesh import LEFT_EYE, LEFT_IRIS, LIPS_INNER, MESH_POINTS, RIGHT_EYE, RIGHT_IRIS
from ficgan.frame import LO, FaceShape, Floats, Warp
from ficgan.frame.colours import lifted
from ficgan.frame.compose import stretched
from ficgan.frame.drawn import (
    _AHEAD,
    _COLUMNS,
    _ROWS,
    TEETH_UNIT,
    iris_colour,
    read_gaze,
    read_teeth,
    read_whites,
    with_eyes,
    with_shut_eyes,
    with_teeth,
    with_touching_lips,
)
from ficgan.frame.parts import frame_mask
from ficgan.identity.kind import ETHNICITIES

BROWN = np.array([0.34, 0.23, 0.16])
WHITES = np.float32([0.61, 0.61])
LIP, TOOTH, DARK, SKIN = [150, 60, 60], [240, 235, 225], [30, 12, 12], [200, 150, 130]


@pytest.fixture(scope="module")
def big(shape: FaceShape) -> Warp:
    """Of a frame of the usual size."""
    return Warp(shape.front, 128)


def eye_of(mesh: NDArray[Any], contour: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middle between the corners, and the way from the left to the right one."""
    left, right = mesh[contour[0], :2].astype(float), mesh[contour[8], :2].astype(float)
    return (left + right) / 2, right - left


def test_a_gaze_is_read_whatever_the_size_and_the_tilt(shape: FaceShape, roll: float = 0.4) -> None:
    turn = np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    mesh = 3.3 * shape.front.astype(np.float64) @ turn.T + [70, -20]
    assert not read_gaze(mesh).any(), "a mesh without irises"
    down = np.array([[0, -1], [1, 0]])
    for sideways, lower in ((0.0, 0.0), (0.12, 0.0), (-0.07, 0.05)):
        irises = []
        for contour, side in ((LEFT_EYE, -1), (RIGHT_EYE, 1)):
            middle, across = eye_of(mesh, contour)
            lids = (mesh[contour[4]] + mesh[contour[12]]) / 2
            height = (lids - middle) @ (down @ across) / (across @ across)
            at = middle + (sideways + side * _AHEAD) * across + (height + lower) * (down @ across)
            irises += [at] * len(LEFT_IRIS)
        looking = np.concatenate([mesh, irises])
        assert len(looking) == MESH_POINTS + len(LEFT_IRIS) + len(RIGHT_IRIS)
        np.testing.assert_allclose(read_gaze(looking), [sideways, lower], atol=1e-6)
        np.testing.assert_allclose(read_gaze(looking + np.float64(1e3) * (np.arange(478) > 467)[:, None]), 0.2)


@pytest.mark.parametrize(("finer", "yaw", "slope"), [(1, 0.5, 0.0), (2, 0.0, 2.0), (2, 0.0, -2.0)])
def test_irises_stand_where_the_face_looks(shape: FaceShape, big: Warp, finer: int, yaw: float, slope: float) -> None:
    points = shape.read((turned(shape.mean * 2.0, yaw) + np.array([130, 130, 0]))[None]).points[0]
    skin = np.full((finer * 128, finer * 128, 3), [0.7, 0.5, 0.4], np.float32)
    grid = big.to_upright(points[None])[0]
    places = np.dstack([stretched(one, finer) for one in np.moveaxis(grid, 2, 0)])
    for gaze in ([0.0, 0.0], [0.12, 0.0], [-0.12, 0.0]):
        made = with_eyes(
            skin, points, np.float32(gaze), WHITES, yaw, slope, BROWN, 30.0, big, big.to_upright(points[None])[0]
        )
        assert made.shape == skin.shape and made.dtype == np.float32 and made.min() >= 0
        changed = np.abs(made - skin).max(2) > 1e-6
        near = np.zeros(changed.shape, bool)
        for contour, side in ((LEFT_EYE, -1), (RIGHT_EYE, 1)):
            outline = (shape.front[contour] - LO) / big.step * (len(skin) - 1) / 127
            inside = np.zeros(changed.shape, np.uint8)
            cv2.fillPoly(inside, [np.rint(outline).astype(np.int32)], 1)
            inside = cv2.dilate(inside, np.ones((3, 3), np.uint8)) > 0
            near |= inside
            dark = inside & (made.mean(2) < 0.35)
            middle, across = eye_of(points, contour)
            wanted = middle + (gaze[0] + side * _AHEAD) * across
            found = places[dark].mean(0)
            width = float(np.linalg.norm(across))
            assert abs((found - wanted) @ across) / width**2 < 0.05
            apart = (places - wanted) @ across / width**2
            iris = inside & (np.linalg.norm(places - found, axis=2) < 0.12 * width)
            glint = apart[iris][made[iris].mean(1).argmax()]
            assert slope * glint > 0 or (slope == 0 and abs(glint) < 0.06), "it lies where the light comes from"
            red, _, blue = made[inside & (made.mean(2) > np.quantile(made[inside].mean(1), 0.75))].mean(0)
            assert dark.sum() > 0.1 * inside.sum() and red > 0.5 and red - blue < 0.2, "an iris, and white beside it"
        assert not changed[~near].any(), "nothing but the eyes"


def test_eyes_that_a_draw_made_black_are_seen(shape: FaceShape, big: Warp) -> None:
    """Hard light makes holes, even below black, of the eyes of a linear model."""
    skin = np.float32(SKIN) / 255
    black = np.full((256, 256, 3), skin, np.float32)
    step = big.step * 127 / 255
    for contour in (LEFT_EYE, RIGHT_EYE):
        cv2.fillPoly(black, [np.rint((shape.front[contour] - LO) / step).astype(np.int32)], (-0.3, -0.3, -0.3))
    holes = black[..., 0] < 0
    assert lifted(black, skin).min() >= 0 and (lifted(black, skin)[~holes] == black[~holes]).all()
    points = np.c_[shape.front, np.zeros(len(shape.front))].astype(np.float64)
    made = with_eyes(
        black, points, np.zeros(2, np.float32), WHITES, 0.0, 0.0, BROWN, 30.0, big, big.to_upright(points[None])[0]
    )
    assert np.quantile(made[holes].mean(1), 0.8) > 0.3 * skin.mean() and (made[~holes] >= 0).all()


@pytest.mark.parametrize("skin", [[0.7, 0.5, 0.4], [0.25, 0.18, 0.14]])
def test_whites_are_as_light_as_the_photos_whatever_the_skin(shape: FaceShape, big: Warp, skin: list[float]) -> None:
    points, texture = np.c_[shape.front, np.zeros(468)].astype(np.float64), np.full((256, 256, 3), skin, np.float32)
    usual = read_whites(np.uint8(255 * texture), big, False)
    for share in (0.75, 1.5):
        ahead = np.zeros(2, np.float32)
        made = with_eyes(texture, points, ahead, share * usual, 0, 0, BROWN, 30, big, big.to_upright(points[None])[0])
        photo = np.rint(255 * np.clip(made, 0, 1)).astype(np.uint8)
        np.testing.assert_allclose(read_whites(photo, big, True), share * usual, rtol=0.2)
        np.testing.assert_allclose(read_whites(photo, big, False), usual, rtol=0.05)


@pytest.mark.parametrize("eyes", [False, True])
def test_between_what_touches_lies_a_dark_line_and_nothing_light(shape: FaceShape, big: Warp, eyes: bool) -> None:
    texture, slits = np.full((256, 256, 3), np.array(SKIN) / 255, np.float32), np.zeros((256, 256), np.uint8)
    for contour in (LEFT_EYE, RIGHT_EYE) if eyes else (LIPS_INNER,):
        cv2.fillPoly(slits, [np.rint((shape.front[contour] - LO) / big.step_of(256)).astype(np.int32)], 1)
    texture[slits > 0] = 1  # teeth, or the white of an eye

    def drawn(share: float, source: float, teeth: float = 0.0) -> Floats:
        mesh, grid = opened(shape, share), big.to_upright(opened(shape, share)[None])[0]
        if eyes:
            return with_shut_eyes(texture, mesh, opened(shape, source), big, grid)
        return with_touching_lips(texture, mesh, np.float32([0, 0, 0, 0.2, teeth, 0]), big, grid)

    closed = drawn(0.01, 0.01)
    inside, outside = cv2.erode(slits, np.ones((5, 5))) > 0, cv2.dilate(slits, np.ones((61, 61))) == 0
    assert closed[inside].max() < 0.85 and closed.min() < 0.6 * texture[outside].min()
    np.testing.assert_array_equal(closed[outside], texture[outside])
    for same in (drawn(0.3, 0.3), drawn(0.01, 0.3, teeth=1.0)):  # open, and open in the source
        np.testing.assert_array_equal(same, texture)


def test_irises_have_the_colours_of_their_group_as_often_as_these_have() -> None:
    """Whoever is surely of a group gets its colours with their frequency; nobody but Europeans gets blue eyes."""
    chances = (np.arange(1000) + 0.5) / 1000
    for group, name in enumerate(ETHNICITIES):
        shares = np.eye(len(ETHNICITIES), dtype=np.float32)[group]
        drawn = np.array([iris_colour(shares, chance) for chance in chances])
        blue = float((drawn[:, 2] > drawn[:, 0]).mean())
        assert blue == pytest.approx(0.32 if name == "White" else 0, abs=0.005)
        brown = float((drawn[:, 0] > 1.3 * drawn[:, 2]).mean())
        assert brown > (0.5 if name == "White" else 0.85)
    mixed = np.array([iris_colour(np.full(len(ETHNICITIES), 1 / 7, np.float32), chance) for chance in chances])
    assert 0.02 < (mixed[:, 2] > mixed[:, 0]).mean() < 0.1


def opened(shape: FaceShape, share: float) -> NDArray[np.float64]:
    """The mean face in the frame [468,3], stretched or squeezed until its lips are open by a share of the mouth's
    width."""
    points = np.column_stack([shape.front, np.zeros(len(shape.front))]).astype(np.float64)
    left, right, upper, lower = points[LIPS_INNER[[0, 10, 5, 15]]]
    points[:, 1] = left[1] + (points[:, 1] - left[1]) * share * (right[0] - left[0]) / (lower[1] - upper[1])
    return points


def inside(points: NDArray[Any], shape: tuple[int, int], scale: float = 1.0) -> NDArray[np.bool_]:
    mask = np.zeros(shape, np.uint8)
    cv2.fillPoly(mask, [np.rint(scale * points[LIPS_INNER, :2]).astype(np.int32)], 1)
    return mask > 0


GLOSS = [235, 160, 160]  # of closed lips


@pytest.mark.parametrize(("middle", "sure"), [(TOOTH, [1, 0]), (LIP, [0, 0]), (DARK, [0, 1]), (GLOSS, [0, 0])])
def test_what_is_seen_between_the_lips_is_read(shape: FaceShape, big: Warp, middle: list[int], sure: list[int]) -> None:
    texture = np.full((128, 128, 3), SKIN, np.uint8)
    pixels = (np.column_stack([shape.front, shape.front[:, :1]])[:, :2] - LO) / big.step
    texture[cv2.dilate(inside(pixels, (128, 128)).astype(np.uint8), np.ones((5, 5), np.uint8)) > 0] = LIP
    texture[inside(pixels, (128, 128))] = middle
    mask = frame_mask(shape.front, 128)
    fine = texture.repeat(2, 0).repeat(2, 1)
    seen, double = (read_teeth(one, opened(shape, 0.3), mask, big) for one in (texture, fine))
    np.testing.assert_allclose(seen[4:], sure, atol=0.01)
    np.testing.assert_allclose(double, seen, atol=0.03)
    np.testing.assert_allclose(seen[:3], np.array(middle) / 255, atol=0.02)
    assert not read_teeth(texture, opened(shape, 0.02), mask, big)[4:].any(), "lips that touch"


@pytest.mark.parametrize("finer", [1, 2])
def test_teeth_stand_between_open_lips_and_nowhere_else(shape: FaceShape, big: Warp, finer: int) -> None:
    texture = np.full((finer * 128, finer * 128, 3), np.array(LIP) / 255, np.float32)
    rows, columns = _ROWS, _COLUMNS
    teeth = np.zeros((rows, columns), np.uint8)
    teeth[: rows // 2] = TEETH_UNIT  # the upper half is teeth
    teeth[:, round(0.4 * columns)] = 0  # with a gap
    seen = np.array([0.9, 0.88, 0.85, 0.05, 1.0, 0.5], np.float32)
    front, scale = (shape.front - LO) / big.step * (len(texture) - 1) / 127, np.ones((3, 3), np.uint8)
    near = cv2.dilate(inside(front, texture.shape[:2]).astype(np.uint8), scale) > 0

    def drawn(points: NDArray[Any], told: Floats = seen, lender: float = 0.3) -> Floats:
        made = with_teeth(texture, points, told, teeth, lender, big, big.to_upright(points[None])[0])
        assert made.shape == texture.shape and made.dtype == np.float32 and made.min() >= 0 and made.max() <= 1
        assert not (np.abs(made - texture).max(2) > 1e-6)[~near].any(), "nothing but the mouth"
        return made

    middle = round(float(front[LIPS_INNER, 0].mean()))
    whole = drawn(opened(shape, 0.3))[:, middle].mean(1)
    column = whole[front[13, 1].astype(int) + 1 : front[14, 1].astype(int)]
    assert column[: max(1, len(column) // 3)].max() > 0.6 > 0.15 > column[-2:].min(), "teeth above, dark below"
    lower = drawn(opened(shape, 0.6))[:, middle].mean(1).sum()
    assert lower < whole.sum(), "a mouth open wider than the lender's is dark below"
    np.testing.assert_array_equal(drawn(opened(shape, 0.02)), texture)
    lips, hollow = (drawn(opened(shape, 0.3), np.float32([0.6, 0.3, 0.3, 0.1, 0, open])) for open in (0, 1))
    np.testing.assert_array_equal(lips, texture)
    assert hollow[:, middle].mean(1).min() < 0.12 and hollow.max() <= texture.max(), "dark, without teeth"
    left, right = front[LIPS_INNER[[0, 10]], 0]
    gap = slice(round(float(left + 0.36 * (right - left))), round(float(left + 0.44 * (right - left))) + 1)
    top = front[13, 1].astype(int) + finer
    assert drawn(opened(shape, 0.3))[top, gap].mean(1).min() > 0.25, "gaps are no black bars"
