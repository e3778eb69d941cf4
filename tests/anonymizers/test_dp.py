"""DP-Pix, DP-Snow and DP-Samp against loops, exact binomials, scikit-learn, and the privacy they promise."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from stand_ins import faces_of

from ficgan.anonymizers import Faces, generator
from ficgan.anonymizers.dp import DPPix, DPSamp, DPSnow, colour_clusters, samples_allowed

Images = NDArray[np.uint8]


def flat(count: int, size: int, level: int) -> Faces:
    return faces_of(np.full((count, size, size, 3), level, np.uint8))


@given(size=st.integers(1, 40), block=st.integers(1, 45), seed=st.integers(0, 99))
def test_without_noise_dp_pix_is_the_loop_of_means(size: int, block: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    found = DPPix(eps=1e9, block=block, m=1)(faces_of(image[None]))[0]
    for y, x in itertools.product(range(0, size, block), repeat=2):
        for c in range(3):
            rows, columns = range(y, min(y + block, size)), range(x, min(x + block, size))
            values = [int(image[v, u, c]) for v in rows for u in columns]
            mean = Fraction(sum(values), len(values))
            cell = found[y : y + block, x : x + block, c]
            assert (cell == cell[0, 0]).all() and abs(int(cell[0, 0]) - mean) <= Fraction(1, 2) + Fraction(1, 1000)


@pytest.mark.parametrize("variant", ["as_described", "as_released"])
def test_the_noise_is_laplace_with_the_papers_scale(variant: str) -> None:
    """255·16/(12²·5) = 5.67 at the paper's parameters; n = 12,288."""
    method = DPPix(variant=variant)
    offset = 0 if variant == "as_described" else 0.5  # cut, not rounded
    noise = method(flat(16, 192, 127))[:, ::12, ::12].astype(np.int64).ravel() - 127
    scale = 255 * 16 / (144 * 5)
    assert scale == pytest.approx(5.67, abs=0.005)
    edges = np.arange(noise.min() - 1, noise.max() + 1) + 0.5
    found = np.searchsorted(np.sort(noise), edges) / len(noise)
    distance = math.sqrt(len(noise)) * np.abs(found - stats.laplace.cdf(edges + offset, scale=scale)).max()
    assert distance < 1.63  # 1 % level
    wrong = math.sqrt(len(noise)) * np.abs(found - stats.laplace.cdf(edges + offset, scale=1.1 * scale)).max()
    assert wrong > 1.95  # a tenth more would be noticed at the .1 % level


@given(delta=st.floats(0, 1), size=st.integers(1, 33), released=st.booleans())
def test_dp_snow_greys_exactly_the_fraction(delta: float, size: int, released: bool) -> None:
    faces = flat(1, size, 10)
    method = DPSnow(delta=delta, variant="as_released" if released else "as_described")
    grey = (method(faces)[0] == 127).all(axis=-1)
    exact = Fraction(delta) * size * size
    if released:
        assert abs(grey.sum() - (size * size - exact)) < 1 + Fraction(1, 10**6)
        assert grey.sum() <= size * size - exact + Fraction(1, 10**6)
    else:
        assert abs(grey.sum() - exact) <= Fraction(1, 2) + Fraction(1, 10**6)
    assert method.replaced(size) == grey.sum()
    assert (method(faces)[0][~grey] == 10).all()


def portrait(rng: np.random.Generator, size: int) -> Images:
    """Smooth colours with some noise, as photos have them."""
    y, x = np.mgrid[:size, :size] / size
    smooth = np.stack([200 * y, 120 + 100 * np.sin(5 * x), 60 + 150 * x * y], axis=-1)
    return (smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)


def within(f: int, m: int, x: int, eps: float) -> bool:
    """Whether C(f, x)/C(f − m, x) ≤ e^ε: whole numbers, and e^ε to 80 digits."""
    if x > f - m:
        return x == 0
    with localcontext() as context:
        context.prec = 80
        return Decimal(math.comb(f, x)) <= Decimal(math.comb(f - m, x)) * Decimal(eps).exp()


def released_loop(f: int, m: int, eps: float) -> int:
    """How the released program counts: from 2 upwards, and nothing at all where it divides by 0."""
    x = 1
    while True:
        x += 1
        if f < m or math.comb(f - m, x) == 0:
            return 0
        if Fraction(math.comb(f, x), math.comb(f - m, x)) > Fraction(math.exp(eps)):
            return x - 1


@given(f=st.integers(0, 300), m=st.integers(1, 40), eps=st.floats(0, 40))
def test_the_number_of_samples_is_the_largest_allowed(f: int, m: int, eps: float) -> None:
    x = samples_allowed(f, m, eps)
    assert 0 <= x <= max(f - m, 0)
    assert x == 0 or within(f, m, x, eps)
    assert not within(f, m, x + 1, eps)


@pytest.mark.parametrize("variant", ["as_described", "as_released"])
def test_the_whole_against_the_steps_of_the_paper(rng: np.random.Generator, variant: str) -> None:
    """Clusters and draws repeated from the same generator; counts, colours, griddata and fill by the text."""
    from scipy.interpolate import griddata

    size, image = 40, portrait(rng, 40)
    method = DPSamp(eps=20.0, k=6, m=3, threshold=20.0, variant=variant, seed=3)
    found = method(Faces(image[None], ("a",)))[0]
    draws, pixels = generator(3, "dp-samp", "a"), image.reshape(-1, 3)
    centres, labels = colour_clusters(pixels, 6, draws)
    near = [
        [i for i, pixel in enumerate(pixels.tolist()) if labels[i] == c and sum(map(abs, pixel - centres[c])) <= 20]
        for c in range(6)
    ]
    total = sum(map(len, near))
    assert 0 < total < size * size
    places, colours = [], []
    for c, members in enumerate(near):
        if not members:
            continue
        share = 20 * len(members) / total
        count = released_loop(len(members), 3, share)
        if variant == "as_described":
            count = max(x for x in range(len(members)) if within(len(members), 3, x, share))
        for i in draws.choice(members, count, replace=False):
            places.append(divmod(int(i), size))
            colours.append(centres[c])
    grid = tuple(np.mgrid[:size, :size])
    linear = griddata(np.array(places), np.array(colours), grid, method="linear")
    inside = ~np.isnan(linear[..., 0])
    assert len(places) > 10 and 0.3 < inside.mean() < 1
    expected = np.rint(linear) if variant == "as_described" else np.floor(linear + 1e-9)
    assert np.abs(found[inside] - expected[inside]).max() <= (0 if variant == "as_described" else 1)
    for y, x in np.argwhere(~inside):
        far = ((np.argwhere(inside) - (y, x)) ** 2).sum(axis=1)
        nearest = found[inside][far == far.min()]
        assert (nearest == found[y, x]).all(axis=1).any()
