"""SSIM against scikit-image, MS-SSIM and PSNR against float64 loops, sharpness against a Laplacian by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import correlate1d
from skimage.metrics import peak_signal_noise_ratio
from skimage.metrics import structural_similarity as skimage_ssim

from ficgan.errors import InputError
from ficgan.lab.metrics.fidelity import SCALES, psnr, scales, sharpness, ssim, structural_similarity


def pictures(rng: np.random.Generator, count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth pictures and the same with noise, a shift of brightness and less contrast."""
    grid = np.linspace(0, 3, side)
    waves = rng.uniform(0.5, 2, (count, 3, 2))
    a = np.stack(
        [[np.outer(np.sin(grid * w[0]), np.cos(grid * w[1])) for w in three] for three in waves]
    ).transpose(0, 2, 3, 1)
    a = a * 90 + 128 + rng.normal(0, 8, a.shape)
    b = (a - 128) * rng.uniform(0.4, 1.2, (count, 1, 1, 1)) + 120 + rng.normal(0, 15, a.shape)
    return a.clip(0, 255).astype(np.uint8), b.clip(0, 255).astype(np.uint8)


def oracle_maps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Structure and SSIM maps of one channel in float64, window inside the image."""
    t = np.arange(-5, 6)
    g = np.exp(-t * t / (2 * 1.5**2))
    g /= g.sum()

    def blur(z: np.ndarray) -> np.ndarray:
        return correlate1d(correlate1d(z, g, axis=0), g, axis=1)[5:-5, 5:-5]

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mx, my = blur(x), blur(y)
    structure = (2 * (blur(x * y) - mx * my) + c2) / (blur(x * x) - mx**2 + blur(y * y) - my**2 + c2)
    return structure, structure * (2 * mx * my + c1) / (mx**2 + my**2 + c1)


def oracle_ms_ssim(a: np.ndarray, b: np.ndarray, count: int) -> float:
    weights = np.array([0.0448, 0.2856, 0.3001, 0.2363, 0.1333])[:count]
    weights = weights / weights.sum()
    channels = []
    for c in range(3):
        x, y = a[..., c].astype(np.float64), b[..., c].astype(np.float64)
        value = 1.0
        for level in range(count):
            structure, whole = oracle_maps(x, y)
            value *= max((whole if level == count - 1 else structure).mean(), 0) ** weights[level]
            h, w = x.shape[0] // 2 * 2, x.shape[1] // 2 * 2
            x, y = (z[:h, :w].reshape(h // 2, 2, w // 2, 2).mean((1, 3)) for z in (x, y))
        channels.append(value)
    return float(np.mean(channels))


@pytest.mark.parametrize("side", [11, 64, 129])
def test_ssim_is_that_of_scikit_image(rng, side):
    a, b = pictures(rng, 3, side)
    options = {"channel_axis": 2, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    expected = [skimage_ssim(x, y, data_range=255, **options) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(ssim(a, b), expected, atol=2e-5)


@pytest.mark.parametrize(("side", "count"), [(176, 5), (128, 4), (67, 3), (22, 2), (15, 1)])
def test_ms_ssim_equals_a_float64_loop(rng, side, count):
    assert scales(side) == count
    a, b = pictures(rng, 2, side)
    expected = [oracle_ms_ssim(x, y, count) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(structural_similarity(a, b)[1], expected, atol=5e-5)


def test_weights_are_those_of_the_paper_and_one_scale_is_ssim(rng):
    assert SCALES == (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
    a, b = pictures(rng, 2, 40)
    single, multi = structural_similarity(a, b, most=1)
    pairs = list(zip(a * 1.0, b * 1.0, strict=True))
    expected = [[max(oracle_maps(x[..., c], y[..., c])[1].mean(), 0) for c in range(3)] for x, y in pairs]
    np.testing.assert_allclose(multi, np.mean(expected, 1), atol=2e-5)
    np.testing.assert_allclose(single, multi, atol=1e-6)


def test_equal_images_are_perfect_and_negatives_are_not(rng):
    a, _ = pictures(rng, 2, 96)
    single, multi = structural_similarity(a, a)
    np.testing.assert_allclose(single, 1, atol=1e-6)
    np.testing.assert_allclose(multi, 1, atol=1e-6)
    single, multi = structural_similarity(a, 255 - a)
    assert (single < 0.2).all() and (multi >= 0).all() and (multi < 0.2).all()


@pytest.mark.parametrize(("a", "b"), [(0, 255), (0, 0), (255, 255), (10, 20)])
def test_flat_images_have_the_luminance_term_alone(a, b):
    x, y = (np.full((1, 32, 32, 3), value, np.uint8) for value in (a, b))
    c1 = (0.01 * 255) ** 2
    assert ssim(x, y)[0] == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), abs=1e-4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(side=st.integers(11, 40), seed=st.integers(0, 999))
def test_bounds_and_symmetry(side, seed):
    a, b = np.random.default_rng(seed).integers(0, 256, (2, 2, side, side, 3), dtype=np.uint8)
    single, multi = structural_similarity(a, b)
    assert (np.abs(single) <= 1).all() and ((multi >= 0) & (multi <= 1)).all()
    np.testing.assert_allclose(single, ssim(b, a), atol=1e-6)


def test_psnr_is_that_of_scikit_image_and_infinite_for_equals(rng):
    a, b = pictures(rng, 3, 32)
    b[2] = a[2]
    expected = [peak_signal_noise_ratio(x, y, data_range=255) for x, y in zip(a[:2], b[:2], strict=True)]
    found = psnr(a, b)
    np.testing.assert_allclose(found[:2], expected, rtol=1e-6)
    assert math.isinf(found[2]) and found[2] > 0


def test_sharpness_is_the_variance_of_the_laplacian_in_the_face(rng):
    image = np.repeat(rng.integers(0, 256, (1, 64, 64, 1), dtype=np.uint8), 3, axis=3)
    marks = np.array([[[24, 26], [40, 26], [32, 34], [26, 42], [38, 42]]], np.float32)
    # middle (32, 34), eye distance 16: columns 16…47, rows 18…49
    grey = np.pad(image[0, 18:50, 16:48, 0].astype(np.float64), 1, mode="reflect")
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * grey[1:-1, 1:-1]
    assert sharpness(image, marks)[0] == pytest.approx(laplacian.var(), rel=1e-5)
    image[:, :10] = 0  # outside the face
    assert sharpness(image, marks)[0] == pytest.approx(laplacian.var(), rel=1e-5)


def test_landmarks_off_the_image_and_flat_faces_have_a_number(rng):
    image = np.full((2, 32, 32, 3), 90, np.uint8)
    marks = np.array([[[-90, -90], [-80, -90], [-85, -80], [-90, -70], [-80, -70]], [[5, 5]] * 5], np.float32)
    np.testing.assert_array_equal(sharpness(image, marks), [0, 0])


def test_unequal_and_tiny_images_are_refused():
    with pytest.raises(InputError, match="cannot be compared"):
        ssim(np.zeros((1, 20, 20, 3), np.uint8), np.zeros((1, 21, 21, 3), np.uint8))
    with pytest.raises(InputError, match="too small"):
        ssim(np.zeros((1, 10, 10, 3), np.uint8), np.zeros((1, 10, 10, 3), np.uint8))
    with pytest.raises(InputError, match="cannot be compared"):
        psnr(np.zeros((1, 20, 20, 3), np.uint8), np.zeros((2, 20, 20, 3), np.uint8))
