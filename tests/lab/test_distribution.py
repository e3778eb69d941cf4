"""Fréchet distance against scipy's matrix root and Gaussians' closed form, kernel distance against loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.linalg

from ficgan.errors import InputError
from ficgan.lab.metrics.distribution import (
    distinct_share,
    frechet_distance,
    frechet_floor,
    kernel_distance,
    mean_pairwise_square,
)


def by_sqrtm(a: np.ndarray, b: np.ndarray) -> float:
    """The formula as it is printed, with a matrix square root."""
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(ca @ cb)
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * root.real))


def mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Unbiased squared maximum mean discrepancy, pair by pair."""
    k = lambda u, v: (float(u @ v) / len(u) + 1) ** 3  # noqa: E731
    m, n = len(x), len(y)
    xx = sum(k(x[i], x[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    yy = sum(k(y[i], y[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return xx + yy - 2 * sum(k(u, v) for u in x for v in y) / (m * n)


@pytest.mark.parametrize(("n", "m", "d"), [(60, 80, 12), (300, 40, 25), (40, 300, 25)])
def test_frechet_distance_equals_the_printed_formula(rng, n, m, d):
    a = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    b = rng.normal(size=(m, d)) @ rng.normal(size=(d, d)) + 0.5
    assert frechet_distance(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-8)


def test_frechet_distance_with_fewer_images_than_features(rng):
    """Where the covariance is singular the root is taken of its eigenvalues instead."""
    a, b = rng.normal(size=(10, 30)), rng.normal(size=(14, 30)) * 2 + 1
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(ca)
    half = vectors * np.sqrt(values.clip(0)) @ vectors.T
    trace = np.sqrt(np.linalg.eigvalsh(half @ cb @ half).clip(0)).sum()
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca) + np.trace(cb) - 2 * trace
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)


def test_frechet_distance_of_gaussians_is_the_closed_form(rng):
    """Diagonal covariances: Σ (Δμ² + (σ − τ)²); the sample is made to have them exactly."""
    z = rng.normal(size=(500, 6))
    z -= z.mean(0)
    z = z @ np.linalg.inv(np.linalg.cholesky(np.cov(z, rowvar=False))).T
    s, t, mu = np.array([1, 2, 3, 0.5, 1, 4.0]), np.array([2, 2, 1, 1.5, 1, 0.0]), np.arange(6) / 3
    assert frechet_distance(z * s, z * t + mu) == pytest.approx((mu**2).sum() + ((s - t) ** 2).sum(), rel=1e-9)


def test_frechet_distance_of_a_set_and_itself_is_nothing_and_the_floor_is_not(rng):
    a = rng.normal(size=(200, 128))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    # Identical 128-d Gaussians at 200 images score about 43: bias alone.
    assert frechet_distance(a, rng.normal(size=(200, 128))) == pytest.approx(43, abs=3)
    assert frechet_floor(a) > 50 and frechet_floor(a) == frechet_floor(a)
    assert frechet_floor(a, seed=1) != frechet_floor(a)


def test_kernel_distance_is_the_mean_over_all_subsets_in_the_limit(rng):
    """Many random subsets of three of six: their mean is near that over all 400 pairs of subsets, done by loops."""
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 4)) + 0.7
    every = [mmd(x[list(p)], y[list(q)]) for p in combinations(range(6), 3) for q in combinations(range(6), 3)]
    mean, spread = kernel_distance(x, y, subsets=20000)
    assert mean == pytest.approx(np.mean(every), abs=5 * np.std(every) / np.sqrt(20000))
    assert spread == pytest.approx(np.std(every), rel=0.05)


def test_kernel_distance_is_unbiased_and_sees_a_shift(rng):
    same = [kernel_distance(rng.normal(size=(40, 16)), rng.normal(size=(40, 16)), subsets=20)[0] for _ in range(60)]
    assert abs(np.mean(same)) < 4 * np.std(same) / np.sqrt(60)
    far = kernel_distance(rng.normal(size=(40, 16)), rng.normal(size=(40, 16)) + 1, subsets=20)[0]
    assert far > np.mean(same) + 10 * np.std(same)


def test_kernel_distance_in_blocks_and_whole(rng, monkeypatch):
    x, y = rng.normal(size=(50, 8)), rng.normal(size=(61, 8))
    whole = kernel_distance(x, y, subsets=7, seed=3)
    monkeypatch.setattr("ficgan.lab.metrics.distribution._ROWS", 16)
    np.testing.assert_allclose(kernel_distance(x, y, subsets=7, seed=3), whole, rtol=1e-9)


def test_mean_pairwise_square_equals_the_loop(rng):
    v = rng.normal(size=(9, 5)) + 4
    expected = np.mean([((a - b) ** 2).sum() for a, b in combinations(v, 2)])
    assert mean_pairwise_square(v.sum(0), float((v**2).sum()), 9) == pytest.approx(expected, rel=1e-10)
    assert mean_pairwise_square(v[0], float(v[0] @ v[0]), 1) == 0


def test_distinct_share(rng):
    images = rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    assert distinct_share(images) == 1
    assert distinct_share(images[[0, 0, 1, 1, 1, 2, 0, 0]]) == 3 / 8


def test_bad_features_are_refused(rng):
    good = rng.normal(size=(8, 3))
    with pytest.raises(InputError, match="no two sets"):
        frechet_distance(good, good[:, :2])
    with pytest.raises(InputError, match="no two sets"):
        frechet_distance(good[:1], good)
    with pytest.raises(InputError, match="not finite"):
        kernel_distance(good, np.where(good > 1, np.nan, good))
    with pytest.raises(InputError, match="too few"):
        kernel_distance(good, good[:3])
