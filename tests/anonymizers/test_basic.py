"""The basic anonymisers and the ImageNet study's obfuscation against slow forms and the papers."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage, stats
from stand_ins import noise, random_faces

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.basic import (
    BoxBlur,
    EyeMask,
    GaussianBlur,
    GaussianNoise,
    Pixelation,
    Solid,
    face_box,
    obfuscate_blur,
    obfuscate_overlay,
)
from ficgan.faces.crops import Alignment

SPECS = [
    ("eye-mask", {}),
    ("eye-mask", {"variant": "as_released"}),
    ("gaussian-noise", {}),
    ("gaussian-noise", {"variant": "as_released"}),
    ("gaussian-blur", {}),
    ("gaussian-blur", {"variant": "as_released"}),
    ("box-blur", {}),
    ("pixelation", {"size": 1}),
    ("pixelation", {"size": 1, "variant": "as_released"}),
    ("solid", {}),
    ("obfuscation-blur", {}),
    ("obfuscation-blur", {"variant": "released"}),
    ("obfuscation-overlay", {"colour": "blue"}),
]


@given(
    spec=st.sampled_from(SPECS),
    side=st.integers(1, 70),
    count=st.integers(0, 3),
    seed=st.integers(0, 9),
    grey=st.none() | st.integers(0, 255),
)
def test_any_crop_is_taken_and_none_is_changed_in_place(
    spec: tuple[str, dict[str, object]], side: int, count: int, seed: int, grey: int | None
) -> None:
    name, parameters = spec
    if name == "pixelation" and side == 1:
        return
    faces = noise(count, side, seed)
    if grey is not None:
        faces = faces.with_images(np.full_like(faces.images, grey))
    before = faces.images.copy()
    faces.images.setflags(write=False)
    out = ANONYMIZERS.make(name, **parameters)(faces)
    assert out.dtype == np.uint8 and out.shape == before.shape
    assert np.array_equal(faces.images, before)
    if grey is not None and name in ("gaussian-blur", "box-blur", "pixelation", "obfuscation-blur"):
        assert np.array_equal(out, before)  # a mean of one grey is that grey


@pytest.mark.parametrize(("name", "parameters"), SPECS)
def test_results_depend_on_the_image_s_name_and_the_seed_alone(name: str, parameters: dict[str, object]) -> None:
    faces = noise(3, 24)
    out = ANONYMIZERS.make(name, **parameters)(faces)
    turned = ANONYMIZERS.make(name, **parameters)(faces.take([2, 0, 1]))
    assert np.array_equal(turned, out[[2, 0, 1]])
    other = ANONYMIZERS.make(name, **parameters, seed=1)(faces)
    assert np.array_equal(other, out) != ANONYMIZERS[name].traits.stochastic


def slow_bar(side: int, landmarks: np.ndarray, scale: float) -> np.ndarray:
    """Pixels whose centre lies in the oriented bar, one by one."""
    left, right = (complex(*point) for point in landmarks[:2].astype(float))
    axis = (right - left) / abs(right - left)
    covered = np.zeros((side, side), bool)
    for y in range(side):
        for x in range(side):
            place = (complex(x, y) - (left + right) / 2) / axis
            length = max(1.0 * scale * abs(right - left), 0.71)
            height = max(0.4 * scale * abs(right - left), 0.71)
            covered[y, x] = abs(place.real) <= length and abs(place.imag) <= height
    return covered


@pytest.mark.parametrize("side", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("angle", [0.0, 0.3, -1.2])
def test_eye_mask_is_a_bar_along_the_eyes(side: int, angle: float) -> None:
    points = Alignment().points(side)
    middle = points[:2].mean(0)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    landmarks = ((points - middle) @ turn.T + middle).astype(np.float32)
    image = np.full((1, side, side, 3), 200, np.uint8)
    out = EyeMask()(Faces(image, ("a",), landmarks[None]))[0]
    black = slow_bar(side, landmarks, 1.0)
    assert black.any() and np.array_equal(out == 0, np.repeat(black[..., None], 3, -1))
    for eye in landmarks[:2].round().astype(int):
        if side > 3:
            assert (out[eye[1], eye[0]] == 0).all()


def test_described_noise_is_gaussian_and_clipped() -> None:
    faces = Faces(np.full((4, 128, 128, 3), 128, np.uint8), tuple("abcd"))
    out = GaussianNoise(sigma=30)(faces).astype(float) - 128
    # Rounded normal draws: their cumulative frequencies are those of the closed form.
    for level in range(-60, 61, 10):
        assert abs((out <= level).mean() - stats.norm.cdf(level + 0.5, scale=30)) < 0.004
    wide = GaussianNoise(sigma=200)(faces)
    assert abs((wide == 0).mean() - stats.norm.cdf(0.5 - 128, scale=200)) < 0.005
    assert abs((wide == 255).mean() - stats.norm.sf(254.5 - 128, scale=200)) < 0.005
    flat = out.reshape(-1, 3)
    assert abs(np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]) < 0.01  # every channel has its own


def gaussian(kernel: int, sigma: float | None = None) -> np.ndarray:
    sigma = sigma or 0.3 * ((kernel - 1) / 2 - 1) + 0.8
    weights = np.exp(-((np.arange(kernel) - kernel // 2) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def literal_blur(images: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """In float64; SciPy's "mirror" is the border …2 1 0 1 2…"""
    across = ndimage.correlate1d(images.astype(float), x, axis=-2, mode="mirror")
    return ndimage.correlate1d(across, y, axis=-3, mode="mirror")


@given(side=st.integers(1, 60), half=st.integers(1, 40), seed=st.integers(0, 99))
def test_gaussian_blur_is_the_literal_kernel(side: int, half: int, seed: int) -> None:
    faces, kernel = noise(1, side, seed), gaussian(2 * half + 1)
    slow = literal_blur(faces.images, kernel, kernel)
    assert np.abs(GaussianBlur(kernel=2 * half + 1)(faces) - slow).max() <= 0.51


@pytest.mark.parametrize(
    ("parameters", "x", "y"),
    [
        ({"kernel": 37, "sigma": 37 / 6}, (37, 37 / 6), (37, 37 / 6)),
        ({"kernel": 37, "sigma": 5.9, "kernel_y": 31, "sigma_y": 5}, (37, 5.9), (31, 5.0)),
        ({"kernel": 9, "kernel_y": 1}, (9, 1.7), (1, 0.5)),
        ({"kernel": 9, "sigma_y": 0.5}, (9, 1.7), (9, 0.5)),
    ],
)
def test_its_two_axes_may_differ(parameters: dict[str, Any], x: tuple[int, float], y: tuple[int, float]) -> None:
    faces = noise(2, 96)
    slow = literal_blur(faces.images, gaussian(*x), gaussian(*y))
    assert np.abs(GaussianBlur(**parameters)(faces) - slow).max() <= 0.51


@pytest.mark.parametrize(("width", "kernel", "side"), [(224, 29, 65), (100, 29, 29), (112, 29, 33), (64, 29, 19)])
def test_released_blur_takes_its_kernel_per_hundred_pixels(width: int, kernel: int, side: int) -> None:
    made = GaussianBlur(variant="as_released", kernel=kernel)
    assert made.side(width) == side == 2 * math.floor(width * kernel / 200) + 1
    faces = random_faces(1, width, smooth=3)
    literal = GaussianBlur(kernel=side)(faces).astype(int)
    assert np.abs(made(faces) - literal).max() <= 1  # OpenCV rounds the weights


@given(side=st.integers(1, 40), half=st.integers(1, 30), seed=st.integers(0, 99))
def test_box_blur_is_the_mean_of_a_square(side: int, half: int, seed: int) -> None:
    faces, kernel = noise(1, side, seed), 2 * half + 1
    slow = ndimage.correlate(faces.images[0].astype(float), np.full((kernel, kernel, 1), 1 / kernel**2), mode="mirror")
    assert np.abs(BoxBlur(kernel=kernel)(faces)[0] - slow).max() <= 0.51


@given(data=st.data(), side=st.integers(2, 40), seed=st.integers(0, 99))
def test_pixelation_is_the_mean_of_each_block(data: st.DataObject, side: int, seed: int) -> None:
    size = data.draw(st.integers(1, side - 1))
    faces = noise(1, side, seed)
    out = Pixelation(size=size)(faces)[0]
    block = [r * size // side for r in range(side)]
    for a in range(size):
        for b in range(size):
            rows = [r for r in range(side) if block[r] == a]
            columns = [c for c in range(side) if block[c] == b]
            pixels = faces.images[0][np.ix_(rows, columns)].astype(float)
            shown = out[np.ix_(rows, columns)]
            assert (shown == shown[0, 0]).all()
            assert np.abs(pixels.mean((0, 1)) - shown[0, 0]).max() <= 0.5


@pytest.mark.parametrize(("side", "size"), [(224, 16), (112, 16), (100, 7), (33, 32), (45, 1)])
def test_released_pixelation_shows_four_pixels_of_each_block(side: int, size: int) -> None:
    faces = noise(1, side)
    image = faces.images[0].astype(float)
    out = Pixelation(variant="as_released", size=size)(faces)[0]

    def place(b: int) -> tuple[int, float]:
        """Bilinear sampling at the block's middle: the pixel before it, and the weight of the one after."""
        x = min(max((b + 0.5) * side / size - 0.5, 0), side - 1)
        return int(x), x - int(x)

    for r in range(0, side, 5):
        for c in range(0, side, 3):
            (y, v), (x, u) = place(math.floor(r * size / side)), place(math.floor(c * size / side))
            top = image[y, x] * (1 - u) + image[y, min(x + 1, side - 1)] * u
            below = image[min(y + 1, side - 1), x] * (1 - u) + image[min(y + 1, side - 1), min(x + 1, side - 1)] * u
            assert np.abs(out[r, c] - (top * (1 - v) + below * v)).max() <= 1.0


@pytest.mark.parametrize(("colour", "expected"), [("black", (0, 0, 0)), ("mean", (124, 116, 104))])
def test_solid_is_one_colour(colour: str, expected: tuple[int, int, int]) -> None:
    out = Solid(colour=colour)(noise(2, 5))
    assert (out == np.array(expected)).all()


VARIANTS: tuple[Literal["paper", "released"], ...] = ("paper", "released")


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise and soft blobs: what a blur changes much, and what it changes little."""
    rng = np.random.default_rng(seed)
    soft = ndimage.gaussian_filter(rng.normal(size=(height, width, 3)), (4, 4, 0)) * 800 + 128
    soft[:, ::3] += rng.normal(0, 30, (height, len(range(0, width, 3)), 3))
    return soft.clip(0, 255).astype(np.uint8)


def by_the_paper(image: np.ndarray, boxes: np.ndarray, variant: str, radius: float = 0.1) -> np.ndarray:
    """Appendix B on the whole photo, mask drawn and blurred by PIL, composed in float64."""
    height, width = image.shape[:2]
    mask = Image.new("L", (width, height), 0)
    largest = 0.0
    for x0, y0, x1, y1 in boxes.tolist():
        d = math.hypot(x1 - x0, y1 - y0) if variant == "paper" else max(x1 - x0, y1 - y0)
        largest = max(largest, d)
        corners = [x0 - d / 10, y0 - d / 10, x1 + d / 10, y1 + d / 10]  # eq. 2
        inside = [min(max(v, 0), side - 1) for v, side in zip(corners, [width, height] * 2, strict=True)]
        ImageDraw.Draw(mask).rectangle(inside, fill=255)
    blur = ImageFilter.GaussianBlur(radius * largest)
    weight = np.asarray(mask.filter(blur), float)[..., None] / 255  # eq. 3
    blurred = np.asarray(Image.fromarray(image).filter(blur), float)  # eq. 4
    return weight * blurred + (1 - weight) * image  # eq. 5


box_lists = st.lists(
    st.tuples(st.floats(-20, 100), st.floats(-20, 100), st.floats(1, 60), st.floats(1, 60)), min_size=1, max_size=5
)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    raw=box_lists,
    variant=st.sampled_from(VARIANTS),
    radius=st.sampled_from([0.05, 0.1, 0.5]),
    seed=st.integers(0, 99),
)
@example(1, 8, [(0.0, 0.0, 1.0, 59.99999999999999)], "released", 0.05, 0)  # its box ends nearly on a pixel's edge
def test_the_needed_area_alone_gives_what_the_whole_photo_gives(
    height: int,
    width: int,
    raw: list[tuple[float, float, float, float]],
    variant: Literal["paper", "released"],
    radius: float,
    seed: int,
) -> None:
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in raw])
    seen = (boxes[:, :2] < (width, height)).all(1) & (boxes[:, 2:] > 0).all(1)
    boxes = boxes[seen]  # as annotated: each meets the photo
    image = photo(height, width, seed)
    before = image.copy()
    out = obfuscate_blur(image, boxes, variant, radius)[0]
    assert np.array_equal(image, before) and out.dtype == np.uint8 and out.shape == image.shape
    expected = by_the_paper(image, boxes, variant, radius) if len(boxes) else image
    assert np.abs(out - expected).max() <= 0.5 + 1e-9  # of rounding to bytes, and what float64 holds


@given(height=st.integers(1, 60), width=st.integers(1, 60), raw=box_lists, colour=st.sampled_from(["mean", "red"]))
def test_overlays_cover_the_box_as_it_is(
    height: int, width: int, raw: list[tuple[float, float, float, float]], colour: str
) -> None:
    image = photo(height, width)
    before = image.copy()
    fill = {"mean": tuple(round(255 * v) for v in (0.485, 0.456, 0.406)), "red": (255, 0, 0)}[colour]
    expected = image.copy()
    for x, y, w, h in raw:
        for row in range(height):
            for column in range(width):
                # The pixel is covered when the box touches its square.
                if x < column + 1 and column <= x + w and y < row + 1 and row <= y + h and x + w > 0 and y + h > 0:
                    expected[row, column] = fill
    out = obfuscate_overlay(image, [[x, y, x + w, y + h] for x, y, w, h in raw], colour)
    assert np.array_equal(out, expected) and np.array_equal(image, before)


@pytest.mark.parametrize("side", [64, 112, 224])
@pytest.mark.parametrize("angle", [0.0, 0.2])
def test_the_box_of_a_crop_lies_on_the_face(side: int, angle: float) -> None:
    points = Alignment().points(side)
    centre = points.mean(0)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    landmarks = (points - centre) @ turn.T + centre
    x0, y0, x1, y1 = face_box(landmarks)
    apart = np.hypot(*(landmarks[1] - landmarks[0]))
    assert np.allclose([(x1 - x0) / apart, (y1 - y0) / apart], [2.1, 2.9])
    down = np.array([-math.sin(angle), math.cos(angle)])
    middle = landmarks[:2].mean(0) + 0.31 * apart * down + 0.5
    assert np.allclose([(x0 + x1) / 2, (y0 + y1) / 2], middle)
    assert ((landmarks + 0.5 > (x0, y0)) & (landmarks + 0.5 < (x1, y1))).all()
