"""Fawkes against small verifiers made here: what it reaches, what it keeps, what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import structural_similarity
from torch import nn

from ficgan.anonymizers import Faces
from ficgan.anonymizers.cloak import Fawkes, VerifierView, _dissimilarity, _gain, load_verifiers
from ficgan.faces.crops import ARCFACE_POINTS, Alignment, similarity


class Tiny(nn.Module):
    """Grey levels N×3×32×32 → 6 features that depend on where things are."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 5, stride=4)
        self.two = nn.Linear(8 * 7 * 7, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one((x - 127.5) / 128)).flatten(1))


@pytest.fixture(scope="module")
def network() -> Tiny:
    torch.manual_seed(3)
    return Tiny().eval()


@pytest.fixture(scope="module")
def verifier(network: Tiny, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("verifier") / "tiny.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.rand(2, 3, 32, 32),),
            str(path),
            dynamo=False,
            input_names=["image"],
            dynamic_axes={"image": {0: "batch"}},
            opset_version=16,
        )
    return f"onnx:{path}"


def faces(count: int, side: int = 40, seed: int = 1) -> Faces:
    """Smooth random pictures, each with landmarks a little away from the template's."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.uniform(20, 235, (count, 3, 7, 7)))
    fine = nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 255)
    images = fine.permute(0, 2, 3, 1).round().to(torch.uint8).numpy()
    marks = (Alignment().points(side) + rng.normal(0, side / 50, (count, 5, 2))).astype(np.float32)
    return Faces(images, tuple(f"{index}.png" for index in range(count)), marks)


def grey(some: Faces) -> torch.Tensor:
    return torch.from_numpy(some.images.copy()).permute(0, 3, 1, 2).float()


def features(spec: str, some: Faces, images: np.ndarray) -> torch.Tensor:
    (one,) = load_verifiers(spec, images.shape[1], "cpu")
    with torch.no_grad():
        return VerifierView(one, some)(grey(some.with_images(images)))


def dissimilarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(1 − SSIM)/2 by scikit-image: per colour, over the pixels whose window lies inside."""
    out = []
    for one, two in zip(a, b, strict=True):
        values = [
            structural_similarity(
                one[..., c].astype(float),
                two[..., c].astype(float),
                data_range=255,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
                full=True,
            )[1][5:-5, 5:-5].mean()
            for c in range(3)
        ]
        out.append((1 - np.mean(values)) / 2)
    return np.array(out)


def cosines(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    return nn.functional.cosine_similarity(a, b).numpy()


def test_the_cosine_falls_and_the_budget_is_kept_in_whole_grey_levels(verifier: str) -> None:
    some = faces(1, 40)
    before = some.images.copy()
    got = Fawkes(verifier=verifier, steps=40, device="cpu")(some)
    assert got.dtype == np.uint8 and got.shape == before.shape and np.array_equal(some.images, before)
    change = dissimilarity(before, got)
    assert (change <= 0.017 + 1e-9).all() and (change > 0.01).all()  # and made use of
    assert (cosines(features(verifier, some, before), features(verifier, some, got)) < 0.5).all()


def test_the_gain_is_fawkes_own_over_the_length() -> None:
    """‖Δ‖²/‖f‖ of FACTS, over one more ‖f‖; two extractors are averaged."""
    rng = torch.Generator().manual_seed(0)
    f, g = (torch.rand(4, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    away = (g - f).norm(dim=1) ** 2 / f.norm(dim=1) / f.norm(dim=1)
    torch.testing.assert_close(_gain([g, 2 * g], [f, 2 * f]), away)


@given(side=st.integers(11, 30), seed=st.integers(0, 99), sigma=st.floats(0, 60))
def test_ssim_is_scikit_images(side: int, seed: int, sigma: float) -> None:
    some, rng = faces(2, side, seed=seed), np.random.default_rng(seed)
    other = np.clip(some.images + rng.normal(0, sigma, some.images.shape), 0, 255).astype(np.uint8)
    x, y = grey(some).double(), grey(some.with_images(other)).double()
    np.testing.assert_allclose(_dissimilarity(x, y), dissimilarity(some.images, other), atol=1e-9)


def test_the_verifier_sees_faces_through_their_landmarks(network: Tiny, verifier: str) -> None:
    """Against a loop over the pixels of V's crop, sampled bilinearly by hand."""
    side = 40
    some = faces(2, side)
    template = (ARCFACE_POINTS + 0.5) * 32 / 112 - 0.5
    expected = []
    for image, marks in zip(some.images.astype(np.float64), some.landmarks, strict=True):
        home = np.vstack([similarity(marks, Alignment().points(side)), [0, 0, 1]])
        to_v = np.vstack([similarity(Alignment().points(side), template), [0, 0, 1]]) @ home
        back = np.linalg.inv(to_v)
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
        crop = np.zeros((32, 32, 3))
        for row in range(32):
            for column in range(32):
                x, y, _ = back @ (column, row, 1)
                x0, y0 = int(np.floor(x)), int(np.floor(y))
                if -1 <= x0 < side and -1 <= y0 < side:
                    fx, fy = x - x0, y - y0
                    patch = padded[y0 + 1 : y0 + 3, x0 + 1 : x0 + 3]
                    weights = np.outer([1 - fy, fy], [1 - fx, fx])[..., None]
                    crop[row, column] = (patch * weights).sum((0, 1))
        expected.append(crop)
    with torch.no_grad():
        seen = network(torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2).float())
    torch.testing.assert_close(features(verifier, some, some.images), seen, rtol=1e-3, atol=1e-3)
