"""Wiener's filter and Richardson–Lucy against scikit-image, dense matrices and blurs that are known."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from attack_faces import psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import convolve1d

from ficgan.anonymizers import Faces
from ficgan.anonymizers.kernels import sigma_of
from ficgan.lab.attacks import Pairs, RichardsonLucy, Wiener, WienerBlind
from ficgan.lab.attacks.deconvolution import blur_between, blur_of
from ficgan.lab.attacks.similarity import luminance, some, ssim
from ficgan.lab.attacks.sparsity import NormSparsity, estimate_kernel, hyper_laplacian
from ficgan.lab.attacks.spectral import blur_matrix, blur_transfer, filtered, spectrum


def blurred(faces: Faces, width: int) -> Faces:
    return faces.with_images(np.stack([cv2.GaussianBlur(image, (width, width), 0) for image in faces.images]))


@settings(max_examples=20, deadline=None)
@given(size=st.integers(8, 40), half=st.integers(0, 7), seed=st.integers(0, 99))
def test_a_blur_is_a_product_in_the_cosine_domain(size: int, half: int, seed: int) -> None:
    width = 2 * min(half, size - 1) + 1
    image = np.random.default_rng(seed).integers(0, 256, (1, size, size, 3), dtype=np.uint8)
    taps = cv2.getGaussianKernel(width, sigma_of(width)).ravel()
    slow = convolve1d(convolve1d(image[0].astype(float), taps, axis=0, mode="mirror"), taps, axis=1, mode="mirror")
    gain = np.outer(blur_transfer(width, size), blur_transfer(width, size))
    assert np.allclose(filtered(image, gain)[0], slow, atol=2e-3)
    matrix = blur_matrix(width, size)
    assert np.allclose(matrix, convolve1d(np.eye(size), taps, axis=0, mode="mirror"), atol=1e-6)


def test_the_transform_is_its_own_inverse() -> None:
    planes = np.random.default_rng(0).normal(size=(2, 21, 21)).astype(np.float32)
    assert np.allclose(spectrum(spectrum(planes)) / (4 * 20**2), planes, atol=1e-5)


def test_wiener_is_scikit_images_on_the_reflected_picture() -> None:
    from skimage.restoration import wiener

    face = random_faces(1, 24, smooth=1)
    size, width, k = 24, 7, 0.05
    plane = face.images[0, :, :, 1].astype(float)
    period = np.pad(plane, ((0, size - 2), (0, size - 2)), "reflect")
    taps = cv2.getGaussianKernel(width, sigma_of(width))
    theirs = wiener(period, taps @ taps.T, k, clip=False)[:size, :size]
    ours = filtered(face.images, Wiener(width, k=k, prior="laplacian").gain(size))[0, :, :, 1]
    assert np.allclose(ours, theirs, atol=0.05)


def test_wiener_brings_a_known_blur_back() -> None:
    attacker, victim = random_faces(24, 48, seed=1), random_faces(6, 48, seed=2)
    fitted = Wiener().fit(Pairs(blurred(attacker, 15), attacker))
    hidden = blurred(victim, 15)
    assert abs(fitted.kernel - 15) <= 4
    assert psnr(fitted.guess(hidden), victim.images) > psnr(hidden.images, victim.images) + 8
    assert Wiener(kernel=5).fit(Pairs(blurred(attacker, 15), attacker)).kernel == 5  # what was given is kept


def test_wiener_leaves_the_brightness_alone() -> None:
    for prior in ("flat", "laplacian"):
        assert Wiener(9, k=20.0, prior=prior).gain(16)[0, 0] == pytest.approx(1)


def test_the_released_noise_shares_cannot_sharpen() -> None:
    """With K ≥ 1 every frequency is damped against the mean: the released grid blurs."""
    gain = Wiener(13, sigma=13 / 3, k=1, prior="flat").gain(32)
    assert gain[0, 0] == pytest.approx(1) and np.abs(gain).max() == pytest.approx(1)


@pytest.mark.parametrize("width", [7, 13, 25])
def test_the_blur_between_pairs_is_found(width: int) -> None:
    faces = random_faces(12, 48, smooth=1)
    assert blur_between(Pairs(blurred(faces, width), faces)) == width


def test_the_blind_width_and_the_blind_filter_on_the_published_prior() -> None:
    """Pictures with the spectrum that the method assumes: their blur is found without any pairs, and undone."""
    rng = np.random.default_rng(4)
    size = 64
    one = 2 - 2 * np.cos(np.pi * np.arange(size) / (size - 1))
    rise = one[:, None] + one[None, :]
    rise[0, 0] = np.inf
    field = spectrum((rng.normal(size=(6, size, size)) / rise).astype(np.float32))
    images = np.clip(np.rint(128 + 40 * field / field.std((1, 2), keepdims=True)), 0, 255).astype(np.uint8)
    clear = random_faces(6, size).with_images(np.repeat(images[..., None], 3, axis=3))
    hidden = blurred(clear, 13)
    widths, noise = blur_of(hidden.images)
    assert (np.abs(widths - 13) <= 2).all() and (noise > 0).all()
    assert psnr(WienerBlind().guess(hidden), clear.images) > psnr(hidden.images, clear.images) + 3
    assert (blur_of(clear.images)[0] <= 3).all()


def test_richardson_lucy_is_the_textbook_iteration() -> None:
    size, width, rounds = 12, 5, 7
    face = random_faces(1, size, smooth=1)
    taps = cv2.getGaussianKernel(width, sigma_of(width)).ravel()
    axis = convolve1d(np.eye(size), taps, axis=0, mode="mirror")
    blur = np.kron(axis, axis)
    guess = RichardsonLucy(kernel=width, rounds=rounds).guess(face)
    for channel in range(3):
        seen = face.images[0, :, :, channel].astype(float).ravel()
        estimate = seen.copy()
        for _ in range(rounds):
            estimate *= (blur.T @ (seen / (blur @ estimate))) / blur.sum(axis=0)
        assert np.abs(guess[0, :, :, channel].ravel() - np.clip(estimate, 0, 255)).max() <= 0.51


def test_richardson_lucy_sharpens_with_and_without_pairs() -> None:
    attacker, victim = random_faces(12, 48, seed=1), random_faces(4, 48, seed=2)
    hidden, pairs = blurred(victim, 9), Pairs(blurred(attacker, 9), attacker)
    fitted = RichardsonLucy().fit(pairs)
    assert fitted.kernel == 9
    assert psnr(fitted.guess(hidden), victim.images) > psnr(hidden.images, victim.images) + 4
    blind = RichardsonLucy(blind=True)
    assert blind.fit(pairs) is blind
    assert np.array_equal(blind.guess(hidden), RichardsonLucy().guess(hidden))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(8, 30))
def test_ssim_is_scikit_images(seed: int, size: int) -> None:
    from skimage.metrics import structural_similarity

    rng = np.random.default_rng(seed)
    left, right = luminance(rng.integers(0, 256, (2, 1, size, size, 3), dtype=np.uint8)[:, 0])[:, None]
    right = 0.7 * left + 0.3 * right
    theirs = structural_similarity(left[0].astype(float), right[0].astype(float), data_range=255)
    assert ssim(left, right)[0] == pytest.approx(theirs, abs=1e-6)


def test_some_pairs_are_spread_over_all() -> None:
    faces = random_faces(10, 8)
    few = some(Pairs(faces, faces), 4)
    assert few.clear.names == few.anonymised.names == ("0.png", "3.png", "6.png", "9.png")


def boxes(n: int, size: int) -> Faces:
    """Rectangles of flat colour: edges, of which the method's assumption is true."""
    rng = np.random.default_rng(8)
    faces = random_faces(n, size, smooth=4)
    images = faces.images.copy()
    for image in images:
        for _ in range(12):
            (y, x), (h, w) = rng.integers(0, size - 8, 2), rng.integers(6, 24, 2)
            image[y : y + h, x : x + w] = rng.integers(0, 256, 3)
    return faces.with_images(images)


def test_norm_sparsity_finds_a_kernel_and_sharpens() -> None:
    clear = boxes(2, 64)
    hidden = blurred(clear, 9)
    kernel = estimate_kernel(luminance(hidden.images[:1])[0] / 255, 9)
    taps = cv2.getGaussianKernel(9, 0)
    assert kernel.sum() == pytest.approx(1, abs=1e-5) and kernel.min() >= 0
    assert np.abs(kernel - taps @ taps.T).sum() < 0.6  # of at most 2; one point alone is 1.84 away
    guess = NormSparsity(kernel=9).guess(hidden)
    assert psnr(guess, clear.images) > psnr(hidden.images, clear.images) + 1.5


def test_the_last_deconvolution_undoes_a_known_motion() -> None:
    clear = boxes(2, 64)
    kernel = np.zeros((7, 7), np.float32)
    kernel[3, :5] = 0.2  # not symmetric: a kernel turned round would show
    turned = np.ascontiguousarray(kernel[::-1, ::-1])
    moved = np.stack([cv2.filter2D(i, -1, turned, borderType=cv2.BORDER_REFLECT) for i in clear.images])
    planes = np.moveaxis(moved, 3, 1).reshape(-1, 64, 64).astype(np.float32) / 255
    back = np.moveaxis(hyper_laplacian(planes, kernel).reshape(2, 3, 64, 64), 1, 3) * 255
    inner = (slice(None), slice(8, -8), slice(8, -8))
    restored = np.clip(back, 0, 255).astype(np.uint8)[inner]
    assert psnr(restored, clear.images[inner]) > psnr(moved[inner], clear.images[inner]) + 5
