"""Crops and paste-back: what lies outside the mask stays, what lies inside comes from the crop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, Face, cover_face, crop, paste_back
from ficgan.faces.crops import match_colour, oval
from ficgan.options import COVERS
from ficgan.policy import covered


def matrix_for(centre: tuple[float, float], side: float, angle: float, size: int) -> np.ndarray:
    """Photo -> crop for a square of `side` photo pixels about `centre`."""
    a = size / side * np.exp(1j * angle)
    b = complex(size / 2 - 0.5, size / 2 - 0.5) - a * complex(*centre)
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def smooth(height: int, width: int) -> np.ndarray:
    """A photo without fine detail, so that resampling has little to lose."""
    y, x = np.mgrid[:height, :width]
    channels = [128 + 90 * np.sin(x / 23 + phase) * np.cos(y / 31) for phase in (0, 1, 2)]
    return np.stack(channels, -1).round().astype(np.uint8)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    x=st.floats(-60, 150),
    y=st.floats(-60, 150),
    side=st.floats(1, 200),
    angle=st.floats(-4, 4),
    size=st.sampled_from([1, 16, 64]),
    mask_scale=st.floats(0.2, 2),
    seed=st.integers(0, 1000),
)
def test_outside_the_mask_is_bit_identical(
    height: int, width: int, x: float, y: float, side: float, angle: float, size: int, mask_scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    face = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
    before = image.copy()
    matrix = matrix_for((x, y), side, angle, size)
    paste = paste_back(image, face, matrix, mask_scale=mask_scale)
    assert np.array_equal(image, before)
    assert paste.image.dtype == np.uint8 and paste.image.shape == image.shape
    assert paste.mask.dtype == np.float32 and paste.mask.shape == image.shape[:2]
    assert paste.mask.min() >= 0 and paste.mask.max() <= 1
    assert np.array_equal(paste.image[paste.mask == 0], image[paste.mask == 0])
    # The mask never leaves the crop: every masked pixel lies inside its square.
    rows, columns = np.nonzero(paste.mask)
    inside = np.column_stack([columns, rows, np.ones(len(rows))]) @ matrix.T
    assert ((inside > -0.5 - 1e-3) & (inside < size - 0.5 + 1e-3)).all()


@pytest.mark.parametrize("side", [40.0, 128.0, 300.0])
@pytest.mark.parametrize("angle", [0.0, 0.4])
def test_crop_pasted_back_is_the_photo(side: float, angle: float) -> None:
    image = smooth(400, 420)
    matrix = matrix_for((205.3, 190.8), side, angle, 128)
    paste = paste_back(image, crop(image, matrix, 128), matrix)
    assert (paste.mask > 0.99).sum() > 0.6 * side**2
    difference = np.abs(paste.image.astype(int) - image)
    assert difference.max() <= 6 and difference.mean() < 0.5


def test_crop_shrinks_by_area() -> None:
    """Eightfold shrinking equals block means: the finest checkerboard becomes flat grey, not a pattern."""
    y, x = np.mgrid[:512, :512]
    image = np.repeat((((x + y) % 2) * 255).astype(np.uint8)[..., None], 3, axis=-1)
    small = crop(image, matrix_for((255.5, 255.5), 512, 0, 64), 64)
    assert np.abs(small.astype(int) - 127.5).max() <= 1
    noise = np.random.default_rng(1).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    blocks = noise.reshape(64, 8, 64, 8, 3).mean((1, 3))
    assert np.abs(crop(noise, matrix_for((255.5, 255.5), 512, 0, 64), 64) - blocks).max() <= 1.0


def test_mask_covers_the_face() -> None:
    """Brow, eyes, mouth, chin and both cheeks of the template lie fully under the default mask."""
    weight = oval(np.eye(2, 3), (128, 128), 128, 1.0)
    # in fractions of the crop: landmarks, forehead, chin, cheeks and jaw
    vital = [*((Alignment().points(128) + 0.5) / 128), (0.5, 0.1), (0.5, 0.9), (0.1, 0.5), (0.9, 0.5), (0.2, 0.75)]
    for x, y in vital:
        assert weight[round(y * 128 - 0.5), round(x * 128 - 0.5)] > 0.95
    assert weight[0].max() < 0.01 and weight[:, 0].max() < 0.01 and weight[0, 0] == 0
    np.testing.assert_allclose(weight, weight[:, ::-1], atol=1e-6)


def test_colour_match_undoes_a_cast(rng: np.random.Generator) -> None:
    """The oracle: after matching, weighted mean colours agree, whatever cast the crop had."""
    reference = np.clip(smooth(64, 64) * 0.5 + (70, 40, 30), 0, 255).astype(np.uint8)
    cast = np.clip(reference * (0.8, 0.9, 1.1) + (5, 20, 10), 0, 255).astype(np.uint8)
    weight = np.ones((64, 64), dtype=np.float32)
    matched = match_colour(cast, reference, weight)
    before = np.abs(cast.mean((0, 1)) - reference.mean((0, 1))).max()
    after = np.abs(matched.mean((0, 1)) - reference.mean((0, 1))).max()
    assert before > 10 and after < 3
    assert np.abs(match_colour(reference, reference, weight).astype(int) - reference).max() <= 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *((lambda v=v: paste_back(smooth(9, 9), smooth(8, 8), np.eye(2, 3), mask_scale=v), UsageError) for v in (0, 9)),
        (lambda: crop(np.zeros((4, 4)), np.eye(2, 3), 8), InputError),
        (lambda: crop(np.zeros((0, 4, 3), np.uint8), np.eye(2, 3), 8), InputError),
        (lambda: paste_back(smooth(9, 9), smooth(8, 7), np.eye(2, 3)), InputError),
        (lambda: paste_back(smooth(9, 9), smooth(8, 8), np.zeros((2, 3))), InputError),
    ],
)
def test_refusals(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("cover", COVERS)
@given(
    box=st.tuples(st.floats(-20, 60), st.floats(-20, 60), st.floats(0.5, 70), st.floats(0.5, 70)),
    seed=st.integers(0, 99),
)
def test_redaction_covers_the_box_and_nothing_else(
    cover: str, box: tuple[float, float, float, float], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    x, y, width, height = box
    face = Face(np.array([x, y, x + width, y + height], np.float32), np.zeros((5, 2), np.float32), 1.0)
    paste = cover_face(image, face, cover)
    assert np.array_equal(paste.image[paste.mask == 0], image[paste.mask == 0])
    rows, columns = np.mgrid[:50, :60] + 0.5
    # the ellipse in the box, which is the face
    radius = ((columns - x - width / 2) / (width / 2)) ** 2 + ((rows - y - height / 2) / (height / 2)) ** 2
    assert (paste.mask[radius <= 1] == 1).all()
    if cover == "black":
        assert (paste.image[paste.mask == 1] == 0).all()
    if cover == "plain" and (hidden := paste.image[paste.mask == 1]).size:
        assert np.ptp(hidden, axis=0).max() == 0


def test_the_oval_lies_on_the_face_whatever_the_alignment() -> None:
    """An FFHQ crop is wider than the default one, the replaced region of the photo is the same."""
    photo, face = smooth(240, 300), np.array([[120, 90], [170, 94], [146, 118], [126, 142], [164, 145]], np.float32)
    masks = []
    for alignment in (Alignment(), Alignment(kind="ffhq")):
        matrix = alignment.matrix(face, 128)
        masks.append(paste_back(photo, crop(photo, matrix, 128), matrix, face_square=alignment.face_square(128)).mask)
    assert np.minimum(*masks).sum() / np.maximum(*masks).sum() > 0.85


def test_a_cover_holds_landmarks_that_lie_beyond_the_box() -> None:
    """The detector's box of a cut or turned face may leave its nose outside."""
    image = np.full((100, 120, 3), 200, np.uint8)
    marks = np.array([[38.0, 40], [46, 40], [33, 50], [38, 58], [46, 58]], np.float32)
    face = Face(np.array([40.0, 30, 58, 72], np.float32), marks, 0.5)
    assert covered(cover_face(image, face, "black").mask, marks, face.box, 0.9)
    far = Face(face.box, np.zeros((5, 2), np.float32), 0.5)  # no landmarks of this face
    assert cover_face(image, far, "black").x0 > cover_face(image, face, "black").x0


def heads(marks: np.ndarray | None = None) -> tuple[np.ndarray, Face]:
    """A face of noise with skin below it, before a blue wall, and its landmarks or others."""
    image = np.full((200, 200, 3), (60, 80, 160), np.uint8)
    image[50:150, 60:140] = np.random.default_rng(1).integers(0, 256, (100, 80, 3))
    image[150:190, 80:120] = 190, 140, 110
    usual = np.array([[80.0, 90], [120, 90], [100, 110], [85, 130], [115, 130]], np.float32)
    return image, Face(np.array([60, 50, 140, 150], np.float32), usual if marks is None else marks, 1.0)


LINE = np.stack([np.linspace(70, 130, 5), np.full(5, 90)], -1).astype(np.float32)


@pytest.mark.parametrize("marks", [None, LINE, np.full((5, 2), np.nan, np.float32), np.full((5, 2), 100, np.float32)])
def test_a_plain_cover_tells_nothing_of_the_face(marks: np.ndarray | None) -> None:
    """Whatever is in the oval of the box, the picture is the same bit for bit: one colour, that of the neck."""
    image, face = heads(marks)
    cover = cover_face(image, face, "plain")
    rows, columns = np.mgrid[:200, :200] + 0.5
    inside = ((columns - 100) / 40) ** 2 + ((rows - 100) / 50) ** 2 <= 1
    for value in (0, 255):
        other = image.copy()
        other[inside] = value
        assert np.array_equal(cover_face(other, face, "plain").image, cover.image)
        other[50:150, 60:140] = value  # the corners, too: they may be seen, and do not change the colour
        assert np.array_equal(cover_face(other, face, "plain").image[cover.mask == 1], cover.image[cover.mask == 1])
    assert (cover.mask[inside] == 1).all() and (cover.image[cover.mask == 1] == (190, 140, 110)).all()


def test_a_plain_cover_is_soft_outside_of_what_it_hides_and_rounder_than_a_black_one() -> None:
    image, face = heads()
    plain, black = cover_face(image, face, "plain").mask, cover_face(image, face, "black").mask
    soft = np.flatnonzero((plain[100] > 0) & (plain[100] < 1))
    assert len(soft) >= 10 and not ((soft >= 60) & (soft < 140)).any() and (plain == 1).sum() < (black == 1).sum()
    assert (cover_face(image, heads(np.full((5, 2), -1))[1], "plain").mask[50:150, 60:140] == 1).all(), (
        "a box alone is hidden"
    )
    odd = np.array([[60, 50], [120, 90], [100, 110], [85, 130], [139, 149]], np.float32)  # landmarks in corners
    assert covered(cover_face(image, heads(odd)[1], "plain").mask, odd, face.box, 1)
