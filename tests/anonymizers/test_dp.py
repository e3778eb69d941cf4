"""Methods that promise a number: DP-Pix, DP-Snow, DP-Samp by loops and exact binomials; k-same by scikit-learn."""

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
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import StandardScaler
from stand_ins import faces_of

from ficgan.anonymizers import ANONYMIZERS, Faces, generator
from ficgan.anonymizers.dp import DPPix, DPSamp, DPSnow, colour_clusters, samples_allowed
from ficgan.anonymizers.k_same import Eigenspace, KSameEigen, KSamePixel

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


SIDE = 12
METHODS = (KSamePixel, KSameEigen)


def faces(rng: np.random.Generator, count: int, people: np.ndarray | None = None, side: int = SIDE) -> Faces:
    """Smooth structure and noise, so that neighbours are no matter of rounding; pixel 0 is the same everywhere."""
    modes = rng.normal(size=(6, side * side * 3))
    values = 128 + 12 * rng.normal(size=(count, 6)) @ modes + 6 * rng.normal(size=(count, side * side * 3))
    images = np.clip(values, 0, 255).astype(np.uint8).reshape(count, side, side, 3)
    images[:, 0, 0, 0] = 77
    return Faces(images, tuple(f"{index:03d}" for index in range(count)), people=people)


def by_scikit_learn(inputs: Faces, background: Faces, k: int, components: int, eigen: bool) -> np.ndarray:
    """The released method with scikit-learn, one face and one neighbour after another."""
    flat = background.images.reshape(len(background), -1).astype(np.float64)
    scaler = StandardScaler().fit(flat)
    # The last of N components of N centred images is rounding.
    pca = PCA(n_components=components or len(flat) - 1, svd_solver="full").fit(scaler.transform(flat))
    database = pca.transform(scaler.transform(flat))
    out = []
    for image in inputs.images:
        row = image.reshape(1, -1).astype(np.float64)
        code = pca.transform(scaler.transform(row))
        chosen: list[int] = []
        for index in np.argsort(-cosine_similarity(code, database)[0]):
            if background.people[index] not in [background.people[each] for each in chosen] and len(chosen) < k - 1:
                chosen.append(int(index))
        if eigen:
            mean = np.mean([code[0], *(database[each] for each in chosen)], axis=0)
            value = scaler.inverse_transform(pca.inverse_transform(mean[None]))[0]
        else:
            value = np.mean([row[0], *(flat[each] for each in chosen)], axis=0)
        out.append(value.reshape(image.shape))
    return np.clip(out, 0, 255)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("many", [False, True], ids=["fewer images than pixels", "more images than pixels"])
def test_as_released_is_scikit_learns(rng: np.random.Generator, method: type[KSamePixel], many: bool) -> None:
    side, count = (3, 60) if many else (SIDE, 40)
    background = faces(rng, count, np.arange(count) // 3 + 5, side)
    inputs = faces(rng, 9, side=side)
    components = side * side * 3 - 1 if many else 0  # all there are: one pixel does not vary
    expected = by_scikit_learn(inputs, background, 4, components, method is KSameEigen)
    before = inputs.images.copy()
    got = method(k=4).fit(background)(inputs)
    assert got.dtype == np.uint8 and got.shape == before.shape
    assert np.abs(got - expected).max() <= 0.5 + 1e-6
    assert np.array_equal(inputs.images, before)
    assert len(np.unique(got.reshape(len(got), -1), axis=0)) == len(got)


def test_eigen_loses_what_the_background_does_not_span(rng: np.random.Generator) -> None:
    background = faces(rng, 6, np.arange(6))
    inputs = faces(rng, 1)
    inputs.images[0, 4, 4] = (255, 0, 255) if inputs.images[0, 4, 4].mean() < 128 else (0, 0, 0)
    space = Eigenspace.of(background.images.reshape(6, -1))
    assert space.coordinates.shape == (6, 5)
    own = space.restore(space.coordinates)
    assert np.abs(own.astype(int) - background.images.reshape(6, -1)).max() == 0
    code = space.project(inputs.images.reshape(1, -1))
    np.testing.assert_allclose(space.project(space.restore(code)), code, atol=1.0)
    assert np.abs(space.restore(code).reshape(inputs.images.shape).astype(int) - inputs.images).max() > 20


def test_by_name_and_with_no_faces(rng: np.random.Generator) -> None:
    made = ANONYMIZERS.make("k-same-eigen", k="3").fit(faces(rng, 3, np.arange(3)))
    assert made == KSameEigen(k=3) and made.settings() == {"k": 3} and made.crop_side == SIDE
    assert made(faces(rng, 3).take([])).shape == (0, SIDE, SIDE, 3)
