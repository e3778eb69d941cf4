"""k-Same with a background against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import StandardScaler

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.k_same import Eigenspace, KSameEigen, KSamePixel

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
