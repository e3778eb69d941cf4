"""Restoration against scikit-image, scikit-learn, dense matrices, slow loops; kernels of blurs that are estimated."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.ndimage import convolve1d
from skimage.metrics import peak_signal_noise_ratio as psnr
from sklearn import metrics
from stand_ins import faces_of, random_faces
from torch import Tensor, nn
from torchvision import models

from ficgan.anonymizers import ANONYMIZERS, Faces, GaussianBlur
from ficgan.anonymizers.basic import scaled_kernel, sigma_of, spread
from ficgan.errors import UsageError
from ficgan.lab.attacks import Pairs, networks
from ficgan.lab.attacks.base import MeanFace, held_out, luminance
from ficgan.lab.attacks.deconvolution import (
    TRANSFERS,
    NormSparsity,
    RichardsonLucy,
    Wiener,
    WienerBlind,
    blur_matrix,
    blur_of,
    blur_transfer,
    blurred,
    equivalent_kernel,
    estimate_kernel,
    filtered,
    hyper_laplacian,
    scaled_blur,
    spectrum,
    transfers,
)
from ficgan.lab.attacks.networks import KernelEstimator, log_spectrum
from ficgan.lab.attacks.restoration import (
    HIGH,
    LOW,
    BicubicResampling,
    InterpolateGrey,
    LearnPermutation,
    LinearResampling,
    Ridge,
    Wavelet,
    wavelet_matrix,
)
from ficgan.lab.metrics.pictures import check_pretrained


def softened(faces: Faces, width: int) -> Faces:
    return faces.with_images(np.stack([cv2.GaussianBlur(image, (width, width), 0) for image in faces.images]))


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
    fitted = Wiener().fit(Pairs(softened(attacker, 15), attacker))
    hidden = softened(victim, 15)
    assert abs(fitted.kernel - 15) <= 4
    assert psnr(fitted.guess(hidden), victim.images) > psnr(hidden.images, victim.images) + 8
    assert Wiener(kernel=5).fit(Pairs(softened(attacker, 15), attacker)).kernel == 5  # what was given is kept


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
    hidden = softened(clear, 13)
    widths, noise = blur_of(hidden.images)
    assert (np.abs(widths - 13) <= 2).all() and (noise > 0).all()
    for blind in (WienerBlind(), RichardsonLucy()):
        assert psnr(blind.guess(hidden), clear.images) > psnr(hidden.images, clear.images) + 3
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


@pytest.mark.slow
def test_norm_sparsity_finds_a_kernel_and_sharpens() -> None:
    clear = boxes(2, 64)
    hidden = softened(clear, 9)
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


def test_one_level_is_the_sum_it_is_defined_by() -> None:
    planes = np.random.default_rng(3).normal(size=(6, 8)).astype(np.float32)
    ((ll, hl), (lh, hh)) = (
        np.split(half, 2, axis=1) for half in np.split(wavelet_matrix(6) @ planes @ wavelet_matrix(8).T, 2)
    )
    for y in range(3):
        for x in range(4):
            window = np.array([[planes[(2 * y + j) % 6, (2 * x + i) % 8] for i in range(4)] for j in range(4)])
            found = [ll[y, x], hl[y, x], lh[y, x], hh[y, x]]
            want = [down @ window @ across for down, across in ((LOW, LOW), (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))]
            assert np.allclose(found, want, atol=1e-5)


def test_wavelet_denoises_and_leaves_the_clean() -> None:
    faces = random_faces(4, 61, smooth=4)
    rng = np.random.default_rng(0)
    noisy = np.clip(faces.images + rng.normal(0, 25, faces.images.shape), 0, 255).astype(np.uint8)
    hidden = faces.with_images(noisy)
    assert psnr(Wavelet().guess(hidden), faces.images) > psnr(noisy, faces.images) + 5
    assert psnr(Wavelet().guess(faces), faces.images) > 45


@given(
    image=hnp.arrays(np.uint8, st.integers(8, 12).map(lambda s: (s, s, 3)), elements=st.sampled_from([127, 126, 9])),
    least=st.integers(1, 8),
)
def test_a_round_of_interpolation_is_the_mean_of_the_neighbours(image: np.ndarray, least: int) -> None:
    guess = InterpolateGrey(least=least).guess(faces_of(image[None]))[0].astype(int)
    empty = (image == 127).all(axis=2)
    assert np.array_equal(guess[~empty], image[~empty])
    for y, x in np.argwhere(empty):
        box = (slice(max(y - 1, 0), y + 2), slice(max(x - 1, 0), x + 2))
        near = image[box][~empty[box]].astype(int)
        if len(near) >= least:  # filled in the first round; means of half a level may fall either way in float32
            assert np.abs(guess[y, x] - near.mean(axis=0)).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("reverser", [LinearResampling(), BicubicResampling()], ids=repr)
def test_resampling_smooths_pixelation_by_the_ratio_of_the_highest_ssim(
    reverser: LinearResampling | BicubicResampling,
) -> None:
    def pixelated(images: np.ndarray) -> np.ndarray:
        small = [cv2.resize(i, (12, 12), interpolation=cv2.INTER_AREA) for i in images]
        return np.stack([cv2.resize(i, (48, 48), interpolation=cv2.INTER_NEAREST) for i in small])

    attacker, victim = random_faces(12, 48, seed=1, smooth=4), random_faces(4, 48, seed=2, smooth=4)
    fitted = reverser.fit(Pairs(attacker.with_images(pixelated(attacker.images)), attacker))
    hidden = victim.with_images(pixelated(victim.images))
    assert psnr(fitted.guess(hidden), victim.images) > psnr(hidden.images, victim.images) + 3
    assert round(fitted.ratio * 48) == 12  # the one right width
    assert type(reverser)(ratio=0.5).fit(Pairs(attacker, attacker)).ratio == 0.5


@pytest.mark.parametrize(("name", "given_"), [("gaussian-noise", {"sigma": 40}), ("dp-snow", {"delta": 0.5})])
def test_the_blind_wiener_filter_denoises_no_less_than_scikit_images(name: str, given_: dict[str, float]) -> None:
    """The paper's is scikit-image's `unsupervised_wiener` (Fantômas, Figures 26 and 30)."""
    from skimage.restoration import unsupervised_wiener

    assert name in WienerBlind.traits.against
    clear, method = random_faces(4, 48, smooth=4.0), ANONYMIZERS.make(name, **given_)
    seen = clear.with_images(method(clear))
    point = np.zeros((3, 3))
    point[1, 1] = 1
    theirs = np.empty_like(seen.images)
    for index, channel in np.ndindex(len(seen), 3):
        found, _ = unsupervised_wiener(seen.images[index, ..., channel] / 255, point, clip=False, rng=0)
        theirs[index, ..., channel] = np.clip(found * 255, 0, 255).round()
    own = WienerBlind().guess(seen)
    assert psnr(clear.images, own) > max(psnr(clear.images, theirs) - 0.1, psnr(clear.images, seen.images) + 2)


# -- permutations and linear maps --------------------------------------------------------------------------------------


def permuted(faces: Faces, order: np.ndarray) -> Faces:
    flat = faces.images.reshape(len(faces), -1, 3)
    return faces.with_images(flat[:, order].reshape(faces.images.shape))


@given(size=st.integers(8, 30), seed=st.integers(0, 99))
def test_positive_control_any_permutation_of_pixels_is_undone_exactly(size: int, seed: int) -> None:
    attacker, victim = random_faces(8, size, seed, smooth=1), random_faces(3, size, seed + 1000, smooth=1)
    order = np.random.default_rng(seed).permutation(size * size)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert np.array_equal(fitted.guess(permuted(victim, order)), victim.images)
    assert fitted.source is not None
    assert np.array_equal(order[fitted.source.ravel()], np.arange(size * size))


def low_rank(n: int, size: int, rank: int, seed: int, per_person: int = 2) -> Faces:
    """Pictures in a space of few dimensions, the same space for every seed."""
    basis = random_faces(rank, size, seed=77, smooth=1).images.reshape(rank, -1).astype(float) - 128
    codes = np.random.default_rng(seed).normal(size=(n, rank)) / np.sqrt(rank)
    images = np.clip(np.rint(128 + codes @ basis), 0, 255).astype(np.uint8)
    return faces_of(images.reshape(n, size, size, 3), per_person)


def mixed(faces: Faces) -> Faces:
    """A random rotation of all pixel values, about the middle grey."""
    flat = faces.images.reshape(len(faces), -1).astype(float) - 128
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(flat.shape[1], flat.shape[1])))[0]
    turned = np.clip(np.rint(128 + flat @ rotation), 0, 255).astype(np.uint8)
    return faces.with_images(turned.reshape(faces.images.shape))


def test_positive_control_a_random_orthogonal_mixing_is_undone() -> None:
    attacker, victim = low_rank(80, 12, 10, seed=1), low_rank(20, 12, 10, seed=2)
    fitted = Ridge().fit(Pairs(mixed(attacker), attacker))
    assert psnr(fitted.guess(mixed(victim)), victim.images) > 38
    nothing = MeanFace().fit(Pairs(attacker, attacker)).guess(victim)
    assert psnr(nothing, victim.images) < 24


def test_the_map_is_scikit_learns_ridge_regression_of_the_best_penalty() -> None:
    from sklearn.linear_model import Ridge as Theirs

    attacker, victim = low_rank(40, 8, 6, seed=1), low_rank(5, 8, 6, seed=2)
    hidden, probe = mixed(attacker), mixed(victim)
    ours = Ridge().fit(Pairs(hidden, attacker))
    x, y = (faces.images.reshape(40, -1).astype(float) for faces in (hidden, attacker))
    scale = float(np.mean(np.sum((x - x.mean(0)) ** 2, axis=1)))
    theirs = Theirs(alpha=ours.ridge * scale).fit(x, y)
    want = np.clip(theirs.predict(probe.images.reshape(5, -1).astype(float)), 0, 255).reshape(probe.images.shape)
    assert np.abs(ours.guess(probe) - want).max() < 1
    held = held_out(attacker, 0.2, 0)
    errors = {}
    for share in (10.0 ** np.arange(-6, 4.1, 0.5)).tolist():
        centred = x - x.mean(0), y - y.mean(0)
        one = Theirs(alpha=share * scale, fit_intercept=False).fit(*(part[~held] for part in centred))
        errors[share] = np.sum((one.predict(centred[0][held]) - centred[1][held]) ** 2)
    chosen = min(errors, key=lambda share: abs(share - ours.ridge))  # powers of ten may differ in the last digit
    assert errors[chosen] <= 1.001 * min(errors.values())


def test_the_choice_is_made_on_people_held_out() -> None:
    """Pairs with no relation: whoever chose on the pairs learnt from would believe in many components."""
    clear, other = random_faces(60, 12, 1, per_person=3), random_faces(60, 12, 2, per_person=3)
    fitted = Ridge().fit(Pairs(clear.with_images(other.images), clear))
    probe = random_faces(30, 12, 3)
    guess = fitted.guess(probe).astype(float)
    mean = clear.images.mean(axis=0)
    assert np.mean((guess - mean) ** 2) < 0.1 * np.mean((clear.images - mean) ** 2)


def test_what_has_learnt_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        Ridge().guess(random_faces(4, 16))


# -- the kernel estimator ----------------------------------------------------------------------------------------------


def test_a_blur_scales_with_the_crop() -> None:
    assert scaled_kernel(81, 64) == 21 and scaled_kernel(37, 64) == 9 and scaled_kernel(81, 256) == 81
    assert scaled_blur(GaussianBlur(kernel=81), 256).axes() == GaussianBlur(kernel=81).axes()
    (across, along) = transfers(64)["rectangle"].axes()
    assert across == (9, pytest.approx(1.475)) and along == (7, pytest.approx(1.25))


def test_blurs_that_look_alike_have_one_kernel() -> None:
    for kernel in (3, 9, 37, 81):
        assert equivalent_kernel(GaussianBlur(kernel=kernel)) == kernel
    assert all(abs(equivalent_kernel(blur) - 37) <= 2 for blur in TRANSFERS.values())
    assert equivalent_kernel(GaussianBlur(kernel=37, sigma=50)) > 60
    assert spread(101, 5.0) == pytest.approx(5.0, rel=1e-3) and spread(3, 1000.0) == pytest.approx((2 / 3) ** 0.5)


KERNELS = tuple(range(1, 14, 2))


def natural(count: int, seed: int, side: int = 32) -> np.ndarray:
    """Gaussian fields whose amplitude falls as a random power of frequency, as natural pictures' does."""
    rng = np.random.default_rng(seed)
    radius = np.maximum(np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None]) * side, 1)
    falls = radius[None] ** -rng.uniform(0.9, 1.3, (count, 1, 1))
    waves = np.fft.fft2(rng.normal(size=(3, count, side, side))) * falls
    planes = np.moveaxis(np.fft.ifft2(waves).real, 0, 3)
    planes /= np.abs(planes).max(axis=(1, 2, 3), keepdims=True)
    return (planes * 127 + 128).astype(np.uint8)


@pytest.fixture(scope="module")
def estimator() -> KernelEstimator:
    return KernelEstimator.train(natural(80, 0), KERNELS, validation=natural(20, 1), epochs=12)


def every(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([blurred(images, k) for k in KERNELS]), np.repeat(KERNELS, len(images))


@pytest.mark.slow
def test_kernel_sizes_of_unseen_pictures_are_found(estimator: KernelEstimator) -> None:
    seen, true = every(natural(20, 2))
    found = estimator.estimate(seen)
    assert found.dtype == np.int64 and set(found) <= set(KERNELS)
    error = metrics.mean_absolute_error(true, found)
    assert error < 0.5 < metrics.mean_absolute_error(true, np.full(len(true), 7))
    assert np.mean(true == found) > 0.8
    held, sizes = every(natural(20, 1))
    assert estimator.error == pytest.approx(metrics.mean_absolute_error(sizes, estimator.regress(held)))


class SmallNetwork(nn.Module):
    """Stands in for a network of torchvision: sharpness of its input, and a classifier like theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 1000))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3 and x.dtype == torch.float32 and float(x.abs().max()) <= 3
        steps = [(x[..., : -(2**k)] - x[..., 2**k :]).abs().mean((1, 2, 3)) for k in range(4)]
        out: Tensor = self.classifier(torch.stack(steps, 1).clamp_min(1e-4).log())
        return out


def test_a_network_of_torchvision_learns_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(models, "get_model", lambda name, weights: asked.append((name, weights)) or SmallNetwork())
    monkeypatch.setattr(networks._EfficientNet, "rate", 0.05)
    given_ = {"validation": natural(10, 1), "network": "efficientnet_v2_l", "pretrained": True, "epochs": 15}
    made = KernelEstimator.train(natural(60, 0), KERNELS, **given_)  # type: ignore[arg-type]
    seen, true = every(natural(20, 2))
    assert asked == [("efficientnet_v2_l", "DEFAULT")] and made.module.network.classifier[-1].out_features == 1  # type: ignore[union-attr]
    assert np.abs(made.regress(seen) - true).mean() < 0.7 * np.abs(true - np.median(true)).mean()


def test_weights_that_are_not_there_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match=r"efficientnet_v2_l-\w+\.pth"):
        check_pretrained("efficientnet_v2_l")


def test_the_windowed_spectrum_is_a_slow_fourier_sum() -> None:
    image = natural(1, 7, 8)
    hann = np.sin(np.pi * np.arange(1, 9) / 9) ** 2
    window, places = np.outer(hann, hann), np.arange(8)
    rings: dict[int, list[float]] = {}
    for u in range(-4, 4):
        for v in range(5):
            wave = window[..., None] * np.exp(-2j * np.pi * (u * places[:, None] + v * places[None]) / 8)[..., None]
            plain = image[0] - (image[0] * window[..., None]).sum((0, 1)) / window.sum()
            power = np.abs((plain * wave).sum((0, 1))) ** 2 / (window**2).sum()
            rings.setdefault(int(np.hypot(u, v)), []).append(float(np.log(power.mean() + 1e-2)))
    assert np.allclose(log_spectrum(image)[0], [np.mean(rings[r]) for r in sorted(rings)], atol=2e-3)
