"""How far guesses resemble clear faces: against scikit-image, slow loops and what is known beforehand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_world import people, prepared
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ficgan.anonymizers import Faces
from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab.bench import Bench
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.results import Figure
from ficgan.lab.run import Store
from ficgan.lab.sets import split

REGION = (4, 4, 36, 36)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    faces = people(6, 2, side=40)
    parts = split(faces.people, background=0, attacker=0, test=6, enrolment=0.5)  # type: ignore[arg-type]
    return Bench(prepared(faces, REGION), parts, (), None, Store(tmp_path / "store"), resamples=200)


class Means:
    """A stand-in for LPIPS and Inception: features are channel means, the distance is a mean difference."""

    network = "means"

    def distance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.abs(a.astype(float) - b).mean((1, 2, 3))

    def features(self, images: np.ndarray) -> np.ndarray:
        return images.mean((1, 2)).astype(np.float32)


def guessed(bench: Bench, rows: np.ndarray, strength: float = 30.0) -> Faces:
    """Noise on everything: what lies outside the square must not count."""
    clear = bench.prepared.faces.take(rows)
    noise = np.random.default_rng(1).normal(size=clear.images.shape) * strength
    return clear.with_images((clear.images + noise).clip(0, 255).astype(np.uint8))


def by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    return {one.metric: one for one in figures}


def test_means_are_of_the_replaced_square(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_bench, "find_judges", lambda _: Judges(lpips=Means(), inception=Means()))  # type: ignore[arg-type]
    rows = np.array([0, 1, 2, 4, 5, 7, 9])
    faces = guessed(bench, rows)
    found = by_name(matrix.fidelity_figures(bench, rows, faces))
    x0, y0, x1, y1 = REGION
    pairs = [
        (bench.prepared.faces.images[row][y0:y1, x0:x1], image[y0:y1, x0:x1])
        for row, image in zip(rows, faces.images, strict=True)
    ]
    assert found["PSNR"].value == pytest.approx(np.mean([peak_signal_noise_ratio(a, b) for a, b in pairs]))
    ssims = [
        structural_similarity(
            a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=2
        )
        for a, b in pairs
    ]
    assert found["SSIM"].value == pytest.approx(np.mean(ssims), abs=2e-3)
    differences = [np.abs(a.astype(float) - b).mean() for a, b in pairs]
    assert found["LPIPS"].value == pytest.approx(np.mean(differences), rel=1e-5)
    means = [np.array([image.mean((0, 1)) for image in side]) for side in zip(*pairs, strict=True)]
    shift = means[0].mean(0) - means[1].mean(0)
    assert found["FID"].value >= float(shift @ shift) * 0.999  # type: ignore[operator]
    assert {one.n for one in found.values()} == {7} and {one.unit for one in found.values()} == {"images"}
    assert found["PSNR"].low < found["PSNR"].value < found["PSNR"].high  # type: ignore[operator]


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_angles_are_angles(size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, count, size))
    found = matrix.angles(a.astype(np.float32), b.astype(np.float32) * 7)
    slow = [math.acos(max(-1, min(1, x @ y / math.sqrt((x @ x) * (y @ y))))) for x, y in zip(a, b, strict=True)]
    assert found == pytest.approx(slow, abs=1e-4)
    assert matrix.angles(a, a * 3) == pytest.approx(np.zeros(count), abs=1e-7)
    assert matrix.angles(a, -a) == pytest.approx(np.full(count, np.pi), abs=1e-7)
