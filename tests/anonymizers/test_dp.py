"""DP-Pix and DP-Snow: means against loops, noise against Laplace's distribution, counts exactly, budgets by search."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.dp import DPPix, DPSnow
from ficgan.errors import UsageError

Images = NDArray[np.uint8]


def faces_of(images: Images) -> Faces:
    return Faces(images, tuple(f"{i}.png" for i in range(len(images))))


def flat(count: int, size: int, level: int) -> Faces:
    return faces_of(np.full((count, size, size, 3), level, np.uint8))


def distance_from_laplace(noise: NDArray[np.int64], scale: float) -> float:
    """Kolmogorov's √n·D between rounded noise and the Laplace distribution, read between whole numbers."""
    edges = np.arange(noise.min() - 1, noise.max() + 1) + 0.5
    found = np.searchsorted(np.sort(noise), edges) / len(noise)
    return float(math.sqrt(len(noise)) * np.abs(found - stats.laplace.cdf(edges, scale=scale)).max())


@settings(max_examples=40, deadline=None)
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


def test_the_scale_is_right_within_two_percent() -> None:
    """255·16/(1²·510) = 8 for single pixels, of which there are many: n = 480,000."""
    noise = DPPix(eps=510.0, block=1)(flat(4, 200, 127)).astype(np.int64).ravel() - 127
    assert distance_from_laplace(noise, 8.0) < 1.63
    assert distance_from_laplace(noise, 8.0 * 1.02) > 1.95 and distance_from_laplace(noise, 8.0 / 1.02) > 1.95


def test_channels_and_blocks_have_noise_of_their_own() -> None:
    noise = DPPix()(flat(16, 192, 127))[:, ::12, ::12].astype(float).reshape(-1, 3) - 127
    across = np.corrcoef(noise.T)[np.triu_indices(3, 1)]
    beside = np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]
    assert np.abs([*across, beside]).max() < 4 / math.sqrt(len(noise))


@pytest.mark.parametrize(
    ("variant", "scale"), [("as_described", 255 * 16 / (64 * 5)), ("as_released", 255 * 16 / (144 * 5))]
)
def test_the_noise_of_smaller_blocks(variant: str, scale: float) -> None:
    """20 px in blocks of 12: the corner has 8×8. As described its noise is wider, as released it is not."""
    noise = DPPix(variant=variant)(flat(800, 20, 127))[:, -1, -1].astype(np.int64).ravel() - 127
    noise = noise if variant == "as_described" else noise[noise != 0]
    if variant == "as_described":
        assert distance_from_laplace(noise, scale) < 1.63
        assert distance_from_laplace(noise, 255 * 16 / (144 * 5)) > 1.95
    else:
        assert np.abs(noise).mean() == pytest.approx(scale, rel=0.15)


def test_values_are_clipped_not_wrapped() -> None:
    for level, quarter in ((0, (0, 64)), (255, (191, 255))):
        out = DPPix()(flat(4, 96, level))
        assert ((out >= quarter[0]) & (out <= quarter[1])).mean() > 0.999
        assert (out == level).mean() > 0.4


@pytest.mark.parametrize(
    ("size", "block", "m"), [(5, 3, 3), (5, 3, 7), (4, 3, 2), (7, 4, 13), (2, 5, 3), (6, 3, 4), (5, 2, 6)]
)
def test_the_budget_as_released_is_the_worst_neighbours(size: int, block: int, m: int) -> None:
    """Over every way to spread m changed pixels: Σ (change of a block's mean)/(scale of its noise), three channels."""
    sides = [min(block, size - start) for start in range(0, size, block)]
    areas = [a * b for a in sides for b in sides]
    method = DPPix(eps=0.7, block=block, m=m, variant="as_released")
    scale = Fraction(255 * m) / (Fraction(7, 10) * block**2)
    worst = Fraction(0)

    def spread(index: int, left: int, loss: Fraction) -> None:
        nonlocal worst
        worst = max(worst, loss)
        if index < len(areas):
            for count in range(min(left, areas[index]) + 1):
                spread(index + 1, left - count, loss + Fraction(255 * count, areas[index]) / scale)

    spread(0, m, Fraction(0))
    assert method.budget(size) == pytest.approx(float(3 * worst))


def test_budgets_at_the_papers_parameters() -> None:
    assert DPPix().budget() == 15 == DPPix().budget(100)
    assert DPPix(variant="as_released").budget(224) == pytest.approx(2.25 * 15)
    assert DPPix(variant="as_released").budget(228) == pytest.approx(15)


@settings(max_examples=50, deadline=None)
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
    assert method.replaced(size) == grey.sum() and method.budget(size) == pytest.approx(1 - grey.mean())
    assert (method(faces)[0][~grey] == 10).all()


def test_dp_snow_replaces_or_keeps_delta() -> None:
    faces = flat(1, 224, 10)
    assert (DPSnow(delta=0.3)(faces) == 127).sum() == 3 * 15053
    assert (DPSnow(delta=0.3, variant="as_released")(faces) == 127).sum() == 3 * 35123
    assert np.array_equal(DPSnow()(faces), DPSnow(variant="as_released")(faces))  # equal at one half
    assert (DPSnow(delta=1.0)(faces) == 127).all() and (DPSnow(delta=0.0)(faces) == 10).all()


def test_dp_snow_takes_every_pixel_as_often() -> None:
    grey = (DPSnow(delta=0.25)(flat(2000, 8, 0))[..., 0] == 127).sum(axis=0).ravel()
    variance = 2000 * 0.25 * 0.75
    # 16 of 64 without replacement: Σ (count − mean)²/variance·(63/64) is χ² with 63 degrees of freedom.
    statistic = ((grey - 500) ** 2).sum() / variance * 63 / 64
    assert stats.chi2.ppf(0.001, 63) < statistic < stats.chi2.ppf(0.999, 63)


@pytest.mark.parametrize("method", [DPPix, DPSnow])
def test_draws_depend_on_seed_and_name_alone(method: type[DPPix] | type[DPSnow]) -> None:
    faces = flat(3, 36, 100)
    out = method(seed=4)(faces)
    assert np.array_equal(out, method(seed=4)(faces))
    assert np.array_equal(out[[2, 0]], method(seed=4)(faces.take([2, 0])))
    assert not np.array_equal(out[0], out[1]) and not np.array_equal(out, method(seed=5)(faces))


@pytest.mark.parametrize("name", ["dp-pix", "dp-snow"])
@pytest.mark.parametrize("variant", ["as_described", "as_released"])
def test_the_input_is_not_changed(rng: np.random.Generator, name: str, variant: str) -> None:
    images = rng.integers(0, 256, (2, 31, 31, 3), np.uint8)
    images.setflags(write=False)
    out = ANONYMIZERS.make(name, variant=variant)(faces_of(images))
    assert out.shape == images.shape and out.dtype == np.uint8


def test_what_is_declared() -> None:
    for cls in (DPPix, DPSnow):
        assert cls.traits.stochastic and not cls.traits.keyed and cls.traits.family == "differential privacy"
        with pytest.raises(UsageError, match="not keyed"):
            cls().invert(flat(1, 8, 0))
    assert DPSnow().traits.stronger == "up" and DPSnow(variant="as_released").traits.stronger == "down"
    assert DPPix.traits.strength == "eps" and DPPix.traits.stronger == "down"
    assert ANONYMIZERS.make("dp-pix", eps="2.5", block="8", m="4").settings() == {
        "eps": 2.5, "block": 8, "m": 4, "variant": "as_described",
    }


@pytest.mark.parametrize(
    ("name", "given_", "words"),
    [
        ("dp-pix", {"eps": 0.0}, "eps is 0.0"),
        ("dp-pix", {"eps": math.inf}, "eps is inf"),
        ("dp-pix", {"block": 0}, "block is 0"),
        ("dp-pix", {"m": 0}, "m is 0"),
        ("dp-pix", {"block": 2.5}, "whole number"),
        ("dp-pix", {"variant": "x"}, "as_described, as_released"),
        ("dp-snow", {"delta": 1.01}, "delta is 1.01"),
        ("dp-snow", {"delta": -0.1}, "delta is -0.1"),
        ("dp-snow", {"d": 0.5}, "no parameter 'd'"),
    ],
)
def test_wrong_parameters(name: str, given_: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ANONYMIZERS.make(name, **given_)
