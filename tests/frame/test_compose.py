"""From photos into the frame and back: nothing is lost on the way, nothing changes outside, and what is added fits."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from frame_world import SIZE, turned
from numpy.typing import NDArray

from ficgan.arrays import Image
from ficgan.faces import Paste, invert, transform_points
from ficgan.faces.mesh import FACE_OVAL
from ficgan.frame import LO, FaceShape, Floats, Readings, Warp
from ficgan.frame.colours import matched_border, plainer
from ficgan.frame.compose import paste_texture, read_texture
from ficgan.frame.look import Look, hair_over, no_sharper, read_look, sharpness_of
from ficgan.frame.parts import frame_mask


@pytest.fixture(scope="module")
def mask(shape: FaceShape) -> Floats:
    return frame_mask(shape.front, SIZE, inset=2.0, feather=2.5)


@pytest.fixture(scope="module")
def warps(shape: FaceShape, warp: Warp) -> dict[int, Warp]:
    """Of frames of two sizes."""
    return {SIZE: warp, 128: Warp(shape.front, 128)}


def resized(photo: Image, points: NDArray[np.float64], factor: float) -> tuple[Image, NDArray[np.float64]]:
    """A photo and its mesh, enlarged or reduced."""
    way = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    other = cv2.resize(photo, None, fx=factor, fy=factor, interpolation=way)
    factor = other.shape[1] / photo.shape[1]
    return np.asarray(other, np.uint8), points * factor + np.array([1, 1, 0]) * (factor - 1) / 2


def there_and_back(photo: Image, read: Readings, warp: Warp, mask: Floats) -> Paste:
    upright, points = read.upright[0], read.points[0]
    texture = read_texture(photo, upright, points, warp)
    assert texture.shape == (warp.size, warp.size, 3) and texture.dtype == np.uint8
    return paste_texture(photo, upright, points, texture.astype(np.float32) / 255, mask, warp)


def covered(paste: Paste) -> int:
    return int((paste.mask > 0.5).sum())


def outline_area(read: Readings) -> float:
    """Photo pixels [area] inside the outline of the mesh."""
    outline = transform_points(invert(read.upright[0]), read.points[0, FACE_OVAL, :2])
    return float(cv2.contourArea(outline.astype(np.float32)))


def test_fine_detail_is_averaged_in_a_small_face(
    astronaut: Image, astronaut_mesh: NDArray[np.float64], shape: FaceShape, warps: dict[int, Warp]
) -> None:
    """Stripes finer than the photo's pixels would alias into broad ones."""
    stripes = np.full((256, 256, 3), 0.5, np.float32)
    stripes[:, ::2], stripes[:, 1::2] = 0.3, 0.7
    for factor, least, most in ((0.25, 0.0, 0.01), (1.6, 0.05, 0.2)):
        photo, points = resized(astronaut, astronaut_mesh, factor)
        read, weight = shape.read(points[None]), np.ones((128, 128), np.float32)
        paste = paste_texture(photo, read.upright[0], read.points[0], stripes, weight, warps[128])
        assert least <= paste.image[paste.mask > 0.99].std() / 255 < most


@pytest.mark.parametrize(("factor", "size"), [(0.18, 96), (2.0, 128)])
def test_a_face_laid_onto_itself(
    astronaut: Image,
    astronaut_mesh: NDArray[np.float64],
    shape: FaceShape,
    warps: dict[int, Warp],
    factor: float,
    size: int,
) -> None:
    photo, points = resized(astronaut, astronaut_mesh, factor)
    read, before = shape.read(points[None]), photo.copy()
    warp, mask = warps[size], frame_mask(shape.front, size, inset=2.0, feather=2.5)
    paste = there_and_back(photo, read, warp, mask)
    image, weight = paste.image, paste.mask
    assert np.array_equal(photo, before) and paste.photo is photo
    assert np.array_equal(image[weight == 0], photo[weight == 0])
    assert 0.75 < covered(paste) / outline_area(read) < 1 and weight.max() == pytest.approx(1, abs=0.01)
    error = np.square(image.astype(float) - photo)[weight > 0.5].mean()
    assert 10 * np.log10(255**2 / error) > 30
    if factor != 1.0:  # enlarged it lost what the frame does not hold, but no more than half of the pixels' last steps
        assert abs((image.astype(float) - photo)[weight > 0.5].mean()) < 0.5


@pytest.mark.parametrize(("scale", "roll"), [(0.2, 0.0), (1.1, -2.0), (4.0, 0.3)])
def test_places_are_exact(shape: FaceShape, warp: Warp, mask: Floats, scale: float, roll: float) -> None:
    """Photos and textures whose colour says where they are: half a pixel more in any step would show."""
    mesh = turned(shape.mean, roll=roll) * scale
    mesh = mesh - mesh.min(0) + 30 * scale
    read = shape.read(mesh[None])
    upright = read.upright[0]
    side = int(mesh[:, :2].max() + 30 * scale)
    rate = 250 / side
    y, x = np.mgrid[:side, :side]
    photo = np.rint(np.stack([rate * x, rate * y, 0 * x], -1)).astype(np.uint8)
    texture = read_texture(photo, upright, read.points[0], warp)
    place = transform_points(invert(upright), warp.to_upright(read.points)[0])
    inside = ((place > 3) & (place < side - 4)).all(-1)
    error = (texture[..., :2] - rate * place)[inside]
    assert inside.mean() > 0.9 and np.abs(error).max() < 2.5
    assert np.abs(error.mean(0)).max() < 0.12 * max(rate, 1)

    u, v = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    marked = np.stack([u, v, 0 * u], -1).astype(np.float32) * np.float32(2 / 255)
    paste = paste_texture(photo, upright, read.points[0], marked, mask, warp)
    whole = paste.mask > 0.999
    wanted = 2 * (transform_points(upright, np.stack([x, y], -1)[whole].astype(float)) - LO) / warp.step
    error = paste.image[whole][:, :2] - wanted
    assert np.abs(error).max() < 2 and np.abs(error.mean(0)).max() < 0.15


@pytest.mark.parametrize("wider", [-0.12, 0.12])
@pytest.mark.parametrize(("scale", "yaw"), [(0.8, 0.0), (2.5, 0.3)])
def test_the_surroundings_follow_the_outline(
    shape: FaceShape, warp: Warp, scale: float, yaw: float, wider: float
) -> None:
    """A bright head on dark ground: no rim of it stays beside a slimmer face, and a wider one is no halo."""
    mesh = turned(shape.mean, yaw) * scale
    mesh = mesh - mesh.min(0) + 50 * scale
    read, side = shape.read(mesh[None]), int(mesh[:, :2].max() + 50 * scale)
    upright, source = read.upright[0], read.points[0]
    photo, texture = np.full((side, side, 3), 20, np.uint8), np.full((SIZE, SIZE, 3), 0.8, np.float32)
    cv2.fillPoly(photo, [cv2.convexHull(np.rint(mesh[:, :2]).astype(np.int32))], (200, 200, 200))
    points = source.copy()
    points[:, 0] += wider * (points[:, 0] - points[:, 0].mean())
    mask = frame_mask(shape.front, SIZE, inset=1.5, feather=0.75)
    paste = paste_texture(photo, upright, points, texture, mask, warp, source=source)
    ends = [transform_points(invert(upright), m[:, :2]).astype(np.float32) for m in (source, points)]
    old, new = (np.asarray(cv2.convexHull(end), np.float32) for end in ends)

    def depth(outline: Floats) -> Floats:
        """Units by which each pixel lies inside a silhouette; negative outside."""
        inside = cv2.fillPoly(np.zeros((side, side), np.uint8), [np.rint(outline).astype(np.int32)], 1)
        part = [cv2.distanceTransform(part, cv2.DIST_L2, 5) for part in (inside, 1 - inside)]
        return np.asarray((part[0] - part[1]) / scale, np.float32)

    before, now = depth(old), depth(new)
    low = np.arange(side)[:, None] > mesh[[33, 263], 1].mean() + 3 * scale
    assert photo[low & (now < -3)].max() == (200 if wider < 0 else 20)
    assert paste.image[low & (now < -3)].max() < 60 and paste.image[low & (now > 3)].min() > 150
    assert np.array_equal(paste.image[paste.mask == 0], photo[paste.mask == 0])
    assert not paste.mask[(before < -30) & (now < -30)].any() and paste.mask[now < -3].max() < 0.05


def test_a_face_at_the_edge_of_a_photo_has_no_streaks_beside_it(
    shape: FaceShape, warp: Warp, mask: Floats, rng: np.random.Generator
) -> None:
    mesh = 2.0 * (shape.mean - shape.mean.min(0)) + np.array([-20, 40, 0])  # the photo ends within it
    read, side = shape.read(mesh[None]), int(mesh[:, :2].max() + 80)
    photo = rng.integers(0, 256, (side, side, 3), np.uint8)
    slimmer = read.points[0] * np.array([0.7, 1, 1]) + np.array([0.3 * read.points[0, :, 0].mean(), 0, 0])
    texture = np.full((SIZE, SIZE, 3), 0.8, np.float32)
    paste = paste_texture(photo, read.upright[0], slimmer, texture, mask, warp, source=read.points[0])
    beside = paste.image[int(mesh[[33, 263], 1].mean()) + 10 : int(mesh[61, 1]), :4].astype(int)
    assert np.abs(np.diff(beside, axis=1)).mean() > 20


def test_lines_beside_a_face_go_within_outlines(shape: FaceShape, warp: Warp, mask: Floats) -> None:
    mesh = 3.0 * (shape.mean - shape.mean.min(0)) + np.array([90, 90, 0])
    read, photo = shape.read(mesh[None]), np.full((560, 560, 3), 150, np.uint8)
    photo[:, 70:74] = photo[:, 40:44] = 30
    outline = transform_points(read.upright[0], np.array([[60, 200], [85, 200], [85, 300], [60, 300]], float))
    points, texture = read.points[0], np.full((SIZE, SIZE, 3), 0.8, np.float32)
    paste = paste_texture(photo, read.upright[0], points, texture, mask, warp, source=points, rims=[outline])
    assert paste.image[210:290, 60:85].min() > 140 and (paste.mask[210:290, 70:74] > 0).all()
    assert max(part.max() for part in (paste.image[:, 40:44], paste.image[:185, 71:73], paste.image[315:, 71:73])) < 35


@pytest.mark.parametrize(("x", "y", "yaw"), [(-180, 0, 0.7), (700, 700, 0.0)])
def test_at_the_border_and_outside(
    astronaut: Image,
    astronaut_mesh: NDArray[np.float64],
    shape: FaceShape,
    warp: Warp,
    mask: Floats,
    x: int,
    y: int,
    yaw: float,
) -> None:
    points = turned(astronaut_mesh, yaw) + np.array([x, y, 0])
    read = shape.read(points[None])
    paste = there_and_back(astronaut, read, warp, mask)
    image, weight = paste.image, paste.mask
    assert np.array_equal(image[weight == 0], astronaut[weight == 0]) and weight.any() == (x < 0)
    look = read_look(astronaut, read.upright[0], np.zeros((SIZE, SIZE, 3), np.uint8), mask)
    assert np.isfinite([look.sharpness, look.grain, look.coarse]).all() and 1 <= look.coarse <= 2


def test_a_colour_cast_is_removed_at_the_border(
    astronaut: Image, astronaut_mesh: NDArray[np.float64], shape: FaceShape, warp: Warp, mask: Floats
) -> None:
    read = shape.read(astronaut_mesh[None])
    source = read_texture(astronaut, read.upright[0], read.points[0], warp)
    exact = source.astype(np.float32) / 255
    cast = np.exp(np.array([-0.2, 0.12, -0.04], np.float32))  # of light, which multiplies
    other = cast * (exact + 0.03) - 0.03
    np.testing.assert_allclose(matched_border(other, source, mask, 0.0, np.zeros_like(mask)), exact, atol=2e-3)
    np.testing.assert_allclose(matched_border(exact, source, mask, 0.0, np.zeros_like(mask)), exact, atol=1e-3)
    # What differs inside is the new face: it stays.
    other[40:56, 40:56] += 0.2
    left = (matched_border(other, source, mask, 0.0, np.zeros_like(mask)) - exact)[44:52, 44:52].mean()
    assert 0.15 < left <= 0.2
    # What differs as light does is the source's.
    shaded = exact + np.linspace(-0.1, 0.1, len(mask), dtype=np.float32)[:, None]
    lit = matched_border(shaded, source, mask, 0.0, np.zeros_like(mask)) - exact
    assert np.abs(lit[mask > 0.999]).mean() < 0.3 * np.abs((shaded - exact)[mask > 0.999]).mean()
    # Where all is hair there is no light to follow.
    assert np.isfinite(matched_border(other, source, mask, np.ones_like(mask), np.zeros_like(mask))).all()
    # A bright border bleaches nothing, and dark brows darken nothing.
    bright, rows = exact.copy(), np.arange(len(mask))[:, None, None]
    bright[(mask > 0.02) & (mask < 0.85)] -= 0.2
    inner, brows = mask > 0.999, (mask * ((rows[..., 0] > 30) & (rows[..., 0] < 45))).astype(np.float32)
    assert abs(np.median((matched_border(bright, source, mask, 0.0, np.zeros_like(mask)) - exact)[inner])) < 0.025
    darker = exact.copy()
    darker[brows > 0.5] -= 0.3
    plain = inner & (brows == 0)
    assert abs(np.median((matched_border(darker, source, mask, 0.0, brows) - exact)[plain])) < 0.005


def test_a_blurred_photo_gets_a_blurred_face(
    astronaut: Image, astronaut_mesh: NDArray[np.float64], shape: FaceShape, warp: Warp, mask: Floats
) -> None:
    read = shape.read(astronaut_mesh[None])
    sharp = read_texture(astronaut, read.upright[0], read.points[0], warp).astype(np.float32) / 255
    before, usual, of = sharp.copy(), sharpness_of(sharp, mask), lambda texture: sharpness_of(texture, mask)
    last = usual
    for sigma in (0.0, 1.0, 2.0, 4.0):
        photo = astronaut if sigma == 0 else np.asarray(cv2.GaussianBlur(astronaut, (0, 0), sigma), np.uint8)
        texture = read_texture(photo, read.upright[0], read.points[0], warp)
        wanted = read_look(photo, read.upright[0], texture, mask).sharpness
        softer = no_sharper(sharp, wanted, of)
        assert 0.3 * wanted < sharpness_of(softer, mask) <= wanted <= last + 1e-6
        last = wanted
        assert abs((softer - sharp)[20:-20, 20:-20].mean()) < 0.01
    assert last < 0.2 * usual and np.array_equal(sharp, before)
    np.testing.assert_array_equal(no_sharper(sharp, usual, of), sharp)
    assert np.isfinite(no_sharper(sharp, 0.0, of)).all()


@pytest.mark.parametrize("strength", [0.008, 0.05])
@pytest.mark.parametrize("edges", [False, True])
def test_noise_is_measured(shape: FaceShape, mask: Floats, strength: float, edges: bool) -> None:
    rng = np.random.default_rng(4)
    picture = np.full((300, 300), 0.5)
    if edges:
        picture[:, ::40] = 0.9
        picture[100:140] -= 0.2
    noisy = picture + rng.normal(0, strength, picture.shape)
    upright = np.array([[1.0, 0, -80], [0, 1, -80]])
    texture = np.zeros((SIZE, SIZE, 3), np.uint8)

    def look(grey: NDArray[np.float64]) -> Look:
        photo = np.rint(grey.clip(0, 1) * 255).astype(np.uint8)[..., None].repeat(3, 2)
        return read_look(photo, upright, texture, mask)

    found = look(noisy)
    assert found.grain == pytest.approx(strength, rel=0.15) and found.coarse < 1.15
    clean = look(picture)
    assert clean.grain < 1e-6 and clean.sharpness == 0
    # Compression and enlarging leave noise that neighbours share.
    blurred = cv2.GaussianBlur(noisy - picture, (0, 0), 1.0)
    assert look(picture + blurred * strength / blurred.std()).coarse > 1.5


def test_grain_is_added_as_measured(shape: FaceShape, warp: Warp, mask: Floats, rng: np.random.Generator) -> None:
    mesh = shape.mean * 3 + 40
    read = shape.read(mesh[None])
    photo = np.full((500, 500, 3), 128, np.uint8)
    texture = np.full((SIZE, SIZE, 3), 128 / 255, np.float32)

    def pasted(look: Look | None, seed: int = 0) -> Image:
        return paste_texture(photo, read.upright[0], read.points[0], texture, mask, warp, look, seed=seed).image

    assert np.array_equal(pasted(None), photo) and np.array_equal(pasted(Look(0.1, 0.0015)), photo)
    whole = paste_texture(photo, read.upright[0], read.points[0], texture, mask, warp).mask > 0.999
    for coarse in (1.0, 2.0):
        image = pasted(Look(0.1, 0.02, coarse))
        assert image[whole].std() / 255 == pytest.approx(0.02, rel=0.1)
        assert abs(image[whole].mean() - 128) < 0.5
        assert np.ptp(image[whole].astype(int), axis=1).max() == 0  # of brightness, not of colour
        assert (image != pasted(Look(0.1, 0.02, coarse), 1)).any()
    assert pasted(Look(0.1, 0.5))[whole].std() / 255 < 0.035  # nobody's face is drowned


def test_what_a_turned_head_hides_is_the_other_side(shape: FaceShape, warp: Warp, mask: Floats) -> None:
    read = shape.read((turned(shape.mean * 2.0, 0.75) + np.array([130, 130, 0]))[None])
    seen = warp.seen(warp.to_upright(read.points)[0])
    front = warp.seen(warp.to_upright(shape.read(shape.mean[None] + [64, 64, 0]).points)[0])
    assert front[mask > 0.5].min() > 0.95, "from the front everything is seen"
    photo = np.random.default_rng(0).integers(0, 256, (260, 260, 3), np.uint8)
    texture = read_texture(photo, read.upright[0], read.points[0], warp).astype(int)
    hidden = (seen < 0.02) & (seen[:, ::-1] > 0.98) & (mask > 0.5)
    assert hidden.sum() > 50
    np.testing.assert_allclose(texture[hidden], texture[:, ::-1][hidden], atol=8)


def test_hair_that_comes_from_above_stays_and_nothing_else(mask: Floats) -> None:
    skin = np.full((*mask.shape, 3), [0.8, 0.63, 0.56], np.float32)
    source = np.rint(skin * 255).astype(np.uint8)
    columns = np.flatnonzero(mask.max(0) > 0.9)
    top = int(np.flatnonzero(mask.max(1) > 0.5)[0])
    left, right, brow = int(columns[0]), int(columns[-1]), top + 30
    assert hair_over(source, skin, mask, brow).max() == 0
    source[: top + 10] = 60  # a fringe
    source[top + 18 : top + 24, left + 30 : left + 40] = 60  # a scar, which belongs to the face
    source[:, right - 3 :] = 60  # the cheek beside the hair
    kept = hair_over(source, skin, mask, brow)
    assert kept[: top + 8][mask[: top + 8] > 0.1].min() > 0.9
    assert kept[top + 15 : brow, left + 20 : right - 20].max() < 0.01
    assert kept[brow + 4 :].max() == 0 <= kept.min() and kept.max() <= 1
    dark, rows = 0.45 * skin, np.arange(len(mask))[:, None, None] - top
    lights = 1 + (rows < 10), np.clip(2 - rows / 30, 1, 2)  # with an edge, and without one
    hat, shine = (np.rint(255 * dark * light).astype(np.uint8) for light in lights)
    assert hair_over(hat, dark, mask, brow)[: top + 8][mask[: top + 8] > 0.1].min() > 0.9, "a light hat"
    assert hair_over(shine, dark, mask, brow).max() == 0, "skin that shines is no hair"


@pytest.mark.parametrize("yaw", [-0.6, 0.6])
def test_the_far_edge_of_a_turned_face_is_soft(shape: FaceShape, warp: Warp, mask: Floats, yaw: float) -> None:
    """There the mask's own edge is narrower than a pixel: the weight fades over several."""
    read = shape.read((turned(shape.mean * 4.0, yaw) + np.array([300, 300, 0]))[None])
    photo, texture = np.zeros((600, 600, 3), np.uint8), np.full((SIZE, SIZE, 3), 0.5, np.float32)
    weight = paste_texture(photo, read.upright[0], read.points[0], texture, mask, warp).mask
    assert np.abs(np.diff(weight, axis=1)).max() < 0.3


def test_a_fold_shows_nothing_of_what_it_hides(shape: FaceShape, warp: Warp, mask: Floats) -> None:
    read = shape.read((turned(shape.mean * 4.0, 0.55) + np.array([300, 300, 0]))[None])
    texture = np.full((SIZE, SIZE, 3), 0.2, np.float32)
    texture[warp.seen(warp.to_upright(read.points)[0]) < 0.1] = 1
    skin = np.full((600, 600, 3), 51, np.uint8)
    image = paste_texture(skin, read.upright[0], read.points[0], texture, mask, warp).image
    assert (texture[mask > 0.5] == 1).any() and image.max() < 120


def test_spots_of_colour_go_and_light_and_dark_stay(rng: np.random.Generator) -> None:
    grey = rng.uniform(0.2, 0.8, (128, 128, 1)).astype(np.float32)
    wide = 0.05 * np.sin(np.arange(128) / 20)[:, None, None] * np.array([1, -1, 0])
    spots = np.zeros((128, 128, 3))
    spots[40:43, 60:63] = [0.2, -0.1, -0.1]
    out = plainer((grey + wide + spots).astype(np.float32))
    np.testing.assert_allclose(out.mean(2), grey[..., 0], atol=1e-5)
    kept = out - out.mean(2, keepdims=True)
    assert np.abs(kept[38:45, 58:65] - wide[38:45]).max() < 0.03 and np.abs(kept - wide)[10:-10, 90:].max() < 0.005
