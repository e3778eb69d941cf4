"""Wavelets against their definition, grey pixels against a loop, resampling against pixelation."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from attack_faces import faces_of, psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.lab.attacks import Bicubic, InterpolateGrey, Linear, Pairs, Wavelet
from ficgan.lab.attacks.denoising import HIGH, LOW, _shrunk, analyse, synthesise
from ficgan.lab.attacks.similarity import luminance, ssim


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(2, 12), columns=st.integers(2, 12), seed=st.integers(0, 99))
def test_the_transform_is_orthogonal_and_inverted(rows: int, columns: int, seed: int) -> None:
    planes = np.random.default_rng(seed).normal(size=(2, 2 * rows, 2 * columns)).astype(np.float32)
    bands = analyse(planes)
    assert all(band.shape == (2, rows, columns) for band in bands)
    assert np.allclose(sum((band**2).sum() for band in bands), (planes**2).sum(), rtol=1e-5)
    assert np.allclose(synthesise(*bands), planes, atol=1e-5)


def test_the_filters_have_two_vanishing_moments() -> None:
    assert LOW.sum() == pytest.approx(np.sqrt(2), abs=1e-6)
    assert HIGH.sum() == pytest.approx(0, abs=1e-6) and HIGH @ np.arange(4) == pytest.approx(0, abs=1e-6)


def test_one_level_is_the_sum_it_is_defined_by() -> None:
    planes = np.random.default_rng(3).normal(size=(6, 8)).astype(np.float32)
    ll, hl, lh, hh = analyse(planes)
    for y in range(3):
        for x in range(4):
            window = np.array([[planes[(2 * y + j) % 6, (2 * x + i) % 8] for i in range(4)] for j in range(4)])
            found = [ll[y, x], hl[y, x], lh[y, x], hh[y, x]]
            want = [down @ window @ across for down, across in ((LOW, LOW), (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))]
            assert np.allclose(found, want, atol=1e-5)


def test_shrinkage_is_bayes_shrink() -> None:
    band = np.random.default_rng(2).normal(scale=5, size=(1, 40, 40)).astype(np.float32)
    noise = np.full((1, 1, 1), 3.0, np.float32)
    threshold = 9 / np.sqrt(np.mean(band**2) - 9)
    want = np.sign(band) * np.maximum(np.abs(band) - threshold, 0)
    assert np.allclose(_shrunk(band, noise), want, atol=1e-4)
    assert not _shrunk(band, noise + 9).any()  # nothing but noise


def test_wavelet_denoises_and_leaves_the_clean() -> None:
    faces = random_faces(4, 61, smooth=4)
    rng = np.random.default_rng(0)
    noisy = np.clip(faces.images + rng.normal(0, 25, faces.images.shape), 0, 255).astype(np.uint8)
    hidden = faces.with_images(noisy)
    assert psnr(Wavelet().guess(hidden), faces.images) > psnr(noisy, faces.images) + 5
    assert psnr(Wavelet().guess(faces), faces.images) > 45


def slow_interpolation(image: np.ndarray, grey: int, least: int) -> np.ndarray:
    image = image.astype(int)
    empty = (image == grey).all(axis=2)
    while True:
        found = []
        for y, x in np.argwhere(empty):
            near = [
                image[v, u]
                for v in range(max(y - 1, 0), min(y + 2, len(image)))
                for u in range(max(x - 1, 0), min(x + 2, len(image)))
                if not empty[v, u]
            ]
            if len(near) >= least:
                found.append((y, x, np.rint(np.mean(near, axis=0))))
        if not found:
            return image.astype(np.uint8)
        for y, x, colour in found:
            image[y, x], empty[y, x] = colour, False


@settings(max_examples=30, deadline=None)
@given(
    image=hnp.arrays(np.uint8, st.integers(8, 12).map(lambda s: (1, s, s, 3)), elements=st.sampled_from([127, 126, 9])),
    least=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_interpolation_is_the_loop(image: np.ndarray, least: int, seed: int) -> None:
    holes = np.random.default_rng(seed).random(image.shape[:3]) < 0.5
    image = np.where(holes[..., None], np.uint8(127), image)
    guess = InterpolateGrey(least=least).guess(faces_of(image))
    # Means of exactly half a level may fall either way in float32.
    assert np.abs(guess[0].astype(int) - slow_interpolation(image[0], 127, least)).max() <= 1


def test_interpolation_removes_snow_and_stops() -> None:
    faces = random_faces(3, 40, smooth=3)
    snow = np.random.default_rng(1).random(faces.images.shape[:3]) < 0.5
    hidden = faces.with_images(np.where(snow[..., None], np.uint8(127), faces.images))
    guess = InterpolateGrey().guess(hidden)
    assert psnr(guess, faces.images) > psnr(hidden.images, faces.images) + 10
    assert np.array_equal(guess[~snow], faces.images[~snow])
    grey = faces_of(np.full((1, 9, 9, 3), 127, np.uint8))
    assert np.array_equal(InterpolateGrey().guess(grey), grey.images)


@pytest.mark.parametrize("reverser", [Linear(), Bicubic()], ids=repr)
def test_resampling_smooths_pixelation_by_the_ratio_of_the_highest_ssim(reverser: Linear | Bicubic) -> None:
    def pixelated(images: np.ndarray) -> np.ndarray:
        small = [cv2.resize(i, (12, 12), interpolation=cv2.INTER_AREA) for i in images]
        return np.stack([cv2.resize(i, (48, 48), interpolation=cv2.INTER_NEAREST) for i in small])

    attacker, victim = random_faces(12, 48, seed=1, smooth=4), random_faces(4, 48, seed=2, smooth=4)
    fitted = reverser.fit(Pairs(attacker.with_images(pixelated(attacker.images)), attacker))
    hidden = victim.with_images(pixelated(victim.images))
    assert psnr(fitted.guess(hidden), victim.images) > psnr(hidden.images, victim.images) + 3
    how = cv2.INTER_CUBIC if isinstance(reverser, Bicubic) else cv2.INTER_LINEAR

    def resampled(image: np.ndarray, middle: int) -> np.ndarray:
        small = cv2.resize(image, (middle, middle), interpolation=cv2.INTER_AREA)
        return cv2.resize(small, (48, 48), interpolation=how)

    middle = round(fitted.ratio * 48)
    assert middle == 12
    assert np.array_equal(fitted.guess(hidden)[0], resampled(hidden.images[0], middle))
    clear, blocky = luminance(attacker.images), luminance(pixelated(attacker.images))
    scores = {m: ssim(clear, np.stack([resampled(i, m) for i in blocky])).mean() for m in range(2, 49)}
    assert scores[middle] == max(scores.values())
    assert type(reverser)(ratio=0.5).fit(Pairs(attacker, attacker)).ratio == 0.5
