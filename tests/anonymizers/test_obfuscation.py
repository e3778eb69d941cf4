"""Obfuscation against the paper's steps on the whole photo (PIL alone) and against box filters in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.obfuscation import (
    ObfuscationBlur,
    ObfuscationOverlay,
    face_box,
    obfuscate_blur,
    obfuscate_overlay,
)
from ficgan.errors import InputError, UsageError
from ficgan.faces import detector_missing, get_detector
from ficgan.faces.alignment import Alignment

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


def three_boxes(values: np.ndarray, sigma: float) -> np.ndarray:
    """PIL's documented approximation in float64: three box blurs of fractional width, edges repeated."""
    half = (math.sqrt(4 * sigma**2 + 1) - 1) / 2  # a box of side 2h + 1 has variance (w² − 1) / 12 = σ² / 3
    whole = math.floor(half)
    # The share of one more pixel on either side makes the variance exact.
    share = (2 * whole + 1) * (sigma**2 - whole * (whole + 1)) / (6 * ((whole + 1) ** 2 - sigma**2 / 3))
    kernel = np.array([share, *[1.0] * (2 * whole + 1), share])
    kernel /= kernel.sum()
    out = values.astype(float)
    for axis in (0, 1):
        for _ in range(3):
            out = ndimage.correlate1d(out, kernel, axis, mode="nearest")
    return out


box_lists = st.lists(
    st.tuples(st.floats(-20, 100), st.floats(-20, 100), st.floats(1, 60), st.floats(1, 60)), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    raw=box_lists,
    variant=st.sampled_from(VARIANTS),
    radius=st.sampled_from([0.05, 0.1, 0.5]),
    seed=st.integers(0, 99),
)
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
    out = obfuscate_blur(image, boxes, variant, radius)
    assert np.array_equal(image, before) and out.dtype == np.uint8 and out.shape == image.shape
    if len(boxes):
        # 0.5 for rounding to bytes, and what float64 holds.
        assert np.abs(out - by_the_paper(image, boxes, variant, radius)).max() <= 0.5 + 1e-9
    else:
        assert np.array_equal(out, image)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", [20, 61, 140])
def test_the_blur_is_nearly_the_paper_s_gaussian(variant: str, side: int) -> None:
    """Float64 throughout, first with PIL's three boxes, then with the Gaussian that they stand for."""
    image = photo(200, 240)
    x0, y0 = 60, 30
    d = side * (math.sqrt(2) if variant == "paper" else 1)
    mask = np.zeros((200, 240, 1))
    low = (math.floor(max(x0 - d / 10, 0)), math.floor(max(y0 - d / 10, 0)))
    high = (math.floor(min(x0 + side + d / 10, 239)), math.floor(min(y0 + side + d / 10, 199)))
    mask[low[1] : high[1] + 1, low[0] : high[0] + 1] = 1
    out = obfuscate_blur(image, [[x0, y0, x0 + side, y0 + side]], variant)  # type: ignore[arg-type]

    def composed(blur: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        weight = blur(mask)
        return weight * blur(image.astype(float)) + (1 - weight) * image

    boxes = composed(lambda values: three_boxes(values, d / 10))
    assert np.abs(out - boxes).max() < 3.5  # six roundings to bytes
    assert np.abs(out - boxes).mean() < 0.6
    gauss = composed(lambda values: ndimage.gaussian_filter(values, (d / 10, d / 10, 0), mode="nearest", truncate=6))
    changed = (out != image).any(-1)
    assert np.abs(out - gauss)[changed].mean() < 0.15 * np.abs(out[changed] - image[changed].astype(float)).mean()


@pytest.mark.parametrize("variant", VARIANTS)
def test_beyond_the_feather_nothing_changes(variant: Literal["paper", "released"]) -> None:
    image = photo(300, 400)
    out = obfuscate_blur(image, [[50, 60, 90, 110], [300, 200, 340, 250]], variant)
    d = math.hypot(40, 50) if variant == "paper" else 50
    far = math.ceil(d / 10 + 3 * (d / 10 + 1)) + 1
    changed = (out != image).any(-1)
    assert changed[85, 70] and changed[225, 320]
    changed[60 - far : 110 + far, 50 - far : 90 + far] = False
    changed[200 - far : 250 + far, 300 - far : 340 + far] = False
    assert not changed.any()


def test_one_large_face_sets_the_blur_of_all() -> None:
    """Eqs. 3 and 4: the radius is that of the largest box."""
    image = photo(200, 400)
    small, large = [300, 90, 320, 110], [20, 20, 170, 180]
    alone, both = obfuscate_blur(image, [small]), obfuscate_blur(image, [small, large])
    d = math.hypot(150, 160) / math.hypot(20, 20)
    same = obfuscate_blur(image, [small], radius=0.1 * d)
    assert not np.array_equal(alone[80:120, 290:330], both[80:120, 290:330])
    assert np.array_equal(same[95:105, 305:315], both[95:105, 305:315])


def test_the_released_variant_blurs_less() -> None:
    image = photo(120, 120)
    changes = [np.abs(obfuscate_blur(image, [[30, 30, 80, 80]], v).astype(int) - image).sum() for v in VARIANTS]
    assert changes[0] > changes[1] > 0


@pytest.mark.parametrize("boxes", [[], np.zeros((0, 4)), [[5, 5, 5, 9]], [[9, 9, 3, 3]], [[200, 200, 260, 260]]])
def test_without_a_face_the_photo_is_the_same(boxes: object) -> None:
    image = photo(40, 50)
    for out in (obfuscate_blur(image, boxes), obfuscate_overlay(image, boxes)):  # type: ignore[arg-type]
        assert np.array_equal(out, image) and out is not image


def test_boxes_far_larger_than_the_photo() -> None:
    image = photo(30, 40)
    out = obfuscate_blur(image, [[-1e9, -1e9, 1e9, 1e9]])
    assert np.ptp(out.reshape(-1, 3).astype(int), axis=0).max() <= 4  # one grey
    assert (obfuscate_overlay(image, [[-1e9, -1e9, 1e9, 1e9]], "red") == (255, 0, 0)).all()


def test_a_constant_photo_stays_constant() -> None:
    image = np.full((60, 80, 3), 77, np.uint8)
    assert np.array_equal(obfuscate_blur(image, [[20, 10, 50, 40]]), image)


@settings(max_examples=60, deadline=None)
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


def test_a_large_photo_with_small_faces_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the surroundings of the faces are filtered, however far they lie apart."""
    pixels = 0
    original = Image.Image.filter

    def counted(self: Image.Image, kernel: object) -> Image.Image:
        nonlocal pixels
        pixels += self.width * self.height
        return original(self, kernel)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "filter", counted)
    image = np.zeros((3000, 4000, 3), np.uint8)
    obfuscate_blur(image, [[100, 100, 160, 180], [3900, 2900, 3960, 2980], [100, 2900, 150, 2960]])
    assert 0 < pixels < 0.02 * image.size / 3


# On crops


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


def test_the_box_is_near_a_detector_s(shared_data: Path) -> None:
    """On portraits that had no part in its numbers: the small faces of group photos."""
    if detector_missing("centerface"):
        pytest.skip("needs the detector centerface")
    overlaps = []
    for path in sorted((shared_data / "photos" / "groups").glob("*.jpg"))[:3]:
        image = np.asarray(Image.open(path).convert("RGB"))
        for face in get_detector("centerface").detect(image):
            ours, theirs = face_box(face.landmarks), face.box.astype(float)
            low, high = np.maximum(ours[:2], theirs[:2]), np.minimum(ours[2:], theirs[2:])
            common = np.prod((high - low).clip(0))
            overlaps.append(common / (np.prod(ours[2:] - ours[:2]) + np.prod(theirs[2:] - theirs[:2]) - common))
    assert len(overlaps) >= 5 and np.median(overlaps) > 0.6


MADE = [ObfuscationBlur(), ObfuscationBlur(variant="released"), ObfuscationOverlay(), ObfuscationOverlay(colour="blue")]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_crops_take_their_own_box(made: ObfuscationBlur | ObfuscationOverlay) -> None:
    images = np.stack([photo(64, 64, seed) for seed in range(3)])
    shift = np.float32([[0, 0], [4, 2], [-6, 5]])[:, None]
    landmarks = (Alignment().points(64) + shift).astype(np.float32)
    out = made(Faces(images, tuple("abc"), landmarks))
    for image, marks, got in zip(images, landmarks, out, strict=True):
        box = face_box(marks)[None]
        if isinstance(made, ObfuscationBlur):
            expected = by_the_paper(image, box, made.variant)
            assert np.abs(got - expected).max() <= 0.5 + 1e-9
        else:
            expected = obfuscate_overlay(image, box, made.colour)
            assert np.array_equal(got, expected) and (got != image).any()
    assert made.traits.domain == "scene" and made.traits.family == "obfuscation"


def test_a_wider_blur_hides_more() -> None:
    images = np.stack([photo(96, 96, seed) for seed in range(4)])
    faces = Faces(images, tuple("abcd"))
    changes = [np.abs(ObfuscationBlur(radius=r)(faces).astype(int) - images).mean() for r in (0.01, 0.03, 0.1, 0.3)]
    assert changes == sorted(changes) and changes[0] < changes[-1]


@settings(max_examples=30, deadline=None)
@given(side=st.integers(1, 40), count=st.integers(0, 2), made=st.sampled_from(MADE))
def test_any_crop_is_taken(side: int, count: int, made: ObfuscationBlur | ObfuscationOverlay) -> None:
    images = np.random.default_rng(side).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    before = images.copy()
    images.setflags(write=False)
    out = made(Faces(images, tuple(str(i) for i in range(count))))
    assert out.shape == images.shape and out.dtype == np.uint8 and np.array_equal(images, before)


@pytest.mark.parametrize(
    ("boxes", "says"),
    [([[1, 2, 3]], "[M,4]"), ([[0, 0, np.nan, 5]], "finite"), ([[0, 0, np.inf, 5]], "finite"), ([1, 2, 3, 4], "[M,4]")],
)
def test_boxes_that_are_none(boxes: list[object], says: str) -> None:
    for function in (obfuscate_blur, obfuscate_overlay):
        with pytest.raises(InputError) as error:
            function(photo(9, 9), boxes)  # type: ignore[operator]
        assert says in str(error.value)


def test_wrong_input_and_parameters_are_refused() -> None:
    image = photo(9, 9)
    for bad in (image.astype(float), image[..., 0], np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(InputError):
            obfuscate_blur(bad, [[1, 1, 4, 4]])
        with pytest.raises(InputError):
            obfuscate_overlay(bad, [[1, 1, 4, 4]])
    wrong: list[Callable[[], object]] = [
        lambda: obfuscate_blur(image, [[1, 1, 4, 4]], "diagonal"),  # type: ignore[arg-type]
        lambda: obfuscate_blur(image, [[1, 1, 4, 4]], radius=0.0),
        lambda: obfuscate_blur(image, [[1, 1, 4, 4]], radius=math.nan),
        lambda: obfuscate_overlay(image, [[1, 1, 4, 4]], "pink"),
        lambda: ANONYMIZERS.make("obfuscation-blur", variant="as_released"),
        lambda: ANONYMIZERS.make("obfuscation-blur", radius=0),
        lambda: ANONYMIZERS.make("obfuscation-overlay", colour="black"),
    ]
    for attempt in wrong:
        with pytest.raises(UsageError):
            attempt()
    with pytest.raises(InputError):
        ObfuscationBlur()(Faces(image[None], ("a",), np.zeros((1, 5, 2), np.float32)))
